"""What can be rented: GPUs, node configurations, instance types and the catalogue of them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from corald.model.llm import LlmModel


class Link(StrEnum):
    """How the GPUs of one node reach each other."""

    NVLINK = "nvlink"
    PCIE = "pcie"


@dataclass(frozen=True, slots=True)
class GpuType:
    """One GPU: capacity, memory bandwidth (10^9 bytes/s) and dense peak compute (10^12 flop/s)."""

    name: str
    vendor: str
    memory_gib: float
    bandwidth_gb_per_second: float
    bf16_tflops: float
    fp8_tflops: float | None
    link_gb_per_second: float
    """Unidirectional NVLink bandwidth per GPU; 0 without NVLink."""
    pcie_gb_per_second: float
    supports_bf16: bool
    source: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """A hardware class that templates see: GPUs of one type in one node, their link, the network.

    `name` is `L4` for a single GPU and `4xL4` for several; a suffix tells variants apart.
    """

    name: str
    gpu: str
    gpus: int
    link: Link
    network_gbit_per_second: float


@dataclass(frozen=True, slots=True)
class ListPrice:
    """What one instance type costs in one region, and the zones (by zone id) that sell it."""

    region: str
    zones: tuple[str, ...]
    on_demand_usd_per_hour: float
    spot_usd_per_hour: float | None
    as_of: str
    source: str


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine that a cloud rents out, and the configuration it provides."""

    name: str
    cloud: str
    """`aws` or `gcp`."""
    configuration: str
    vcpus: int
    memory_gib: float
    quota_family: str
    """The bucket that the cloud counts it in: `G`, `P`, `A2`, ..."""
    prices: tuple[ListPrice, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything known about hardware and models, by name."""

    gpus: Mapping[str, GpuType]
    configurations: Mapping[str, Configuration]
    instance_types: Mapping[str, InstanceType]
    """By name; names of different clouds never collide."""
    models: Mapping[str, LlmModel]
