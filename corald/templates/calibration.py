"""Measured (or assumed) factors that turn peak numbers into real speeds. No formula lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from corald.library import digest_of
from corald.model.hardware import GpuType, Link
from corald.model.templates import Engine


@dataclass(frozen=True, slots=True)
class GpuFactors:
    """How much of its peak one GPU type reaches, and what each step costs besides."""

    compute: float = 0.6
    """Share of peak compute that dense matrix products reach."""
    moe_compute: float = 0.16
    """The same for the products of routed experts, with their routing and permuting."""
    bandwidth: float = 0.8
    """Share of peak memory bandwidth that weight reads reach."""
    attention: float = 0.6
    """Share of the above two that attention reaches."""
    layer_overhead_seconds: float = 30e-6
    step_overhead_seconds: float = 2e-3
    allreduce_gb_per_second: Mapping[int, float] = field(default_factory=dict)
    """Measured bus bandwidth by number of GPUs; empty takes that of the link's kind."""
    calibrated: bool = False
    source: str = "assumed"


@dataclass(frozen=True, slots=True)
class Calibration:
    """All factors of the performance model; what is not listed takes the default."""

    gpus: Mapping[str, GpuFactors] = field(default_factory=dict)
    other: GpuFactors = field(default_factory=GpuFactors)
    nvlink_share: float = 0.6
    """Of NVLink's bandwidth that an all-reduce reaches."""
    pcie_allreduce_share: Mapping[int, float] = field(
        default_factory=lambda: {2: 0.58, 4: 0.12, 8: 0.056, 16: 0.028}
    )
    """Of PCIe's bandwidth, by GPUs: traffic crosses the host bridge (measured on L40S)."""
    nvlink_alpha_seconds: Mapping[int, float] = field(
        default_factory=lambda: {2: 4.3e-6, 4: 4.6e-6, 8: 4.7e-6, 16: 6e-6}
    )
    pcie_alpha_seconds: Mapping[int, float] = field(
        default_factory=lambda: {2: 5.6e-6, 4: 14e-6, 8: 27e-6, 16: 54e-6}
    )
    memory_reserve: float = 0.08
    """Share of GPU memory that the engine leaves for its runtime, graphs and fragmentation."""
    pipeline_efficiency: Mapping[Engine, Mapping[int, float]] = field(
        default_factory=lambda: {
            Engine.VLLM: {1: 1.0, 2: 1.0, 4: 0.83, 8: 0.57},
            Engine.CORAL: {1: 1.0},
        }
    )
    """Share of the stages' rate that a pipeline of this depth keeps; linear in between."""

    def factors(self, gpu: str) -> GpuFactors:
        return self.gpus.get(gpu, self.other)

    def digest(self, gpu: str) -> str:
        """Changes when anything does that the speed of this GPU depends on."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return digest_of([asdict(self.factors(gpu)), _plain(shared)])

    def allreduce_bytes_per_second(self, gpu: GpuType, link: Link, tp: int) -> float:
        """Bus bandwidth of an all-reduce among `tp` GPUs of one node."""
        measured = self.factors(gpu.name).allreduce_gb_per_second.get(tp)
        if measured is not None and (link is Link.NVLINK) == (gpu.link_gb_per_second > 0):
            return measured * 1e9
        if link is Link.NVLINK:
            return self.nvlink_share * gpu.link_gb_per_second * 1e9
        return self.pcie_allreduce_share[tp] * gpu.pcie_gb_per_second * 1e9

    def allreduce_alpha_seconds(self, link: Link, tp: int) -> float:
        """Latency of an all-reduce of nothing."""
        nvlink = link is Link.NVLINK
        return (self.nvlink_alpha_seconds if nvlink else self.pcie_alpha_seconds)[tp]

    def pipeline_share(self, engine: Engine, stages: int) -> float:
        """Interpolated `pipeline_efficiency`; beyond the last point it stays."""
        points = sorted(self.pipeline_efficiency[engine].items())
        for (left, low), (right, high) in pairwise(points):
            if stages <= right:
                return low + (high - low) * (max(stages, left) - left) / (right - left)
        return points[-1][1]


_SHARED = (
    "nvlink_share",
    "pcie_allreduce_share",
    "nvlink_alpha_seconds",
    "pcie_alpha_seconds",
    "memory_reserve",
    "pipeline_efficiency",
)

_FITTED = "first fit of isolated steps, public measurements; not yet checked on held-out points"
_DATASHEET = "by likeness to measured GPUs of its generation"

DEFAULT_CALIBRATION = Calibration(
    gpus={
        # Low power limits keep T4 and L4 far below the TFLOPS on their datasheets.
        "T4": GpuFactors(compute=0.36, moe_compute=0.1, source=_FITTED),
        "L4": GpuFactors(compute=0.36, moe_compute=0.1, source=_FITTED),
        "A10G": GpuFactors(compute=0.6, source=_DATASHEET),
        "L40S": GpuFactors(
            compute=0.5, allreduce_gb_per_second={2: 18.7, 4: 3.8, 8: 1.8}, source=_FITTED
        ),
        "RTX-PRO-6000": GpuFactors(
            compute=0.6, allreduce_gb_per_second={2: 21.0, 4: 28.0, 8: 22.0}, source=_FITTED
        ),
        "A100-40": GpuFactors(
            compute=0.75, allreduce_gb_per_second={2: 142.0, 4: 145.0, 8: 149.0}, source=_FITTED
        ),
        "A100-80": GpuFactors(
            compute=0.75, allreduce_gb_per_second={2: 142.0, 4: 145.0, 8: 149.0}, source=_FITTED
        ),
        "H100": GpuFactors(
            compute=0.75, allreduce_gb_per_second={2: 207.0, 4: 245.0, 8: 304.0}, source=_FITTED
        ),
        "H200": GpuFactors(
            compute=0.75, allreduce_gb_per_second={2: 207.0, 4: 245.0, 8: 304.0}, source=_FITTED
        ),
        "B200": GpuFactors(
            compute=0.63, allreduce_gb_per_second={2: 303.0, 4: 330.0, 8: 422.0}, source=_FITTED
        ),
    }
)
"""Honest first values; no GPU counts as calibrated until they are fitted and checked."""


def _plain(value: object) -> object:
    """Mappings with any keys, as JSON can hold them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
