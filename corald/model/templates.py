"""Serving templates: how one replica of a model is laid over a set of nodes, and what it yields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Which part of serving a template does; it also fixes the unit of its throughput."""

    MIXED = "mixed"
    """Prefill and decode together; throughput in requests/s at the workload class."""
    PREFILL = "prefill"
    """Throughput in input tokens/s."""
    DECODE = "decode"
    """Throughput in output tokens/s."""


class Engine(StrEnum):
    """Which layouts the serving engine can run (a part of a template's identity)."""

    VLLM = "vllm"
    """One TP size on every stage, no data parallelism inside a stage, any layer split."""
    CORAL = "coral"
    """The paper's runtime: TP per node, several unlike nodes may share a stage."""


class Serving(StrEnum):
    """Whether a model's replicas do both phases or are split by phase."""

    MIXED = "mixed"
    DISAGGREGATED = "disaggregated"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase.MIXED,) if self is Serving.MIXED else (Phase.PREFILL, Phase.DECODE)


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency targets, in milliseconds, at the given percentile."""

    ttft_ms: float
    tpot_ms: float
    percentile: float = 95.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The class of requests a library is built for, in tokens per request."""

    input_tokens_mean: float
    input_tokens_p95: float
    output_tokens_mean: float
    output_tokens_p95: float


Nodes = tuple[tuple[str, int], ...]
"""A multiset of configurations: (configuration name, how many), sorted by name, counts ≥ 1."""


def shape_of(nodes: Nodes) -> str:
    """Render a node multiset for people and labels: `2xL4+1xA10G`."""
    return "+".join(f"{count}x{name}" for name, count in nodes)


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: the layers it holds and the nodes that share its load.

    A node that carries several stages (profile `vllm`) appears in each of them; `node_ordinals`
    index the template's nodes, expanded in order of `ServingTemplate.nodes`.
    """

    layers: int
    tp: int
    """The largest TP size among the stage's nodes."""
    node_ordinals: tuple[int, ...]
    node_tps: tuple[int, ...] = ()
    """TP size of every node where they differ; a node with more GPUs holds copies of the stage."""

    @property
    def tps(self) -> tuple[int, ...]:
        """TP size of every node."""
        return self.node_tps or (self.tp,) * len(self.node_ordinals)


@dataclass(frozen=True, slots=True)
class ServingTemplate:
    """The best placement of a model and phase on a multiset of nodes; price is no part of it."""

    model: str
    phase: Phase
    engine: Engine
    nodes: Nodes
    stages: tuple[Stage, ...]
    throughput: float
    """Per replica, in the unit of `phase`; an unbiased estimate, without any safety margin."""
    uncalibrated: bool = False
    """True when no measurement backs one of its GPUs."""

    @property
    def id(self) -> str:
        """Stable and readable: a node multiset has exactly one best placement in a library."""
        return f"{self.model}/{self.phase}/{self.engine}/{self.shape}"

    @property
    def shape(self) -> str:
        return shape_of(self.nodes)

    @property
    def node_configurations(self) -> tuple[str, ...]:
        """The configuration of every node, by ordinal."""
        return tuple(name for name, count in self.nodes for _ in range(count))
