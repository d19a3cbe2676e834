"""The online problem as a value, and its answer: what `core` builds and `solver` solves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from corald.model.market import OfferingKey, ZoneKey
from corald.model.templates import Engine, Nodes, Phase

OfferingCounts = tuple[tuple[OfferingKey, int], ...]
"""Which offerings a replica's nodes come from: (offering, how many), sorted by offering."""


@dataclass(frozen=True, slots=True)
class DemandRow:
    """Demand of one (model, phase) that the chosen replicas must cover together."""

    model: str
    phase: Phase
    engine: Engine
    amount: float
    """In the unit of `phase` per second, headroom included."""
    min_replicas: int = 0
    max_replicas: int | None = None
    priority: int = 0
    """Higher is served first under scarcity."""
    weight: float = 1.0
    """Share among rows of one priority under scarcity."""
    supplies: tuple[int, ...] | None = None
    """Indices into `Problem.supplies` that this row may use; None means all of them."""
    denied_templates: frozenset[str] = frozenset()
    """Template ids that may not be started now (policy or open circuit); running ones may stay."""
    max_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Supply:
    """One offering as the solver sees it."""

    offering: OfferingKey
    configuration: str
    usd_per_hour: float
    budget_usd_per_hour: float
    """`committed_price()`: what caps count this machine at."""
    available: int
    """Obtainable machines *including* those held."""
    obtainable: int | None = None
    """Of these, machines that can be had new; None: all that running replicas do not hold.

    A held machine cannot change its replica, so what starts must fit in here.
    """


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """Equal replicas that exist already (starting ones included); they may stay at price p."""

    template: str
    model: str
    phase: Phase
    zone: ZoneKey
    nodes: Nodes
    offerings: OfferingCounts
    throughput: float
    count: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything a solve depends on, besides the template library it names."""

    library: str
    """Fingerprint of the template library."""
    rows: tuple[DemandRow, ...]
    supplies: tuple[Supply, ...]
    running: tuple[RunningReplica, ...] = ()
    start_cost: Mapping[str, float] = field(default_factory=dict)
    """K by configuration: a new node costs p·(1+K); missing means 0."""
    budget_usd_per_hour: float | None = None
    new_usd_per_hour: float | None = None
    """What may be committed for new machines while all that runs is still paid for."""
    gap: float = 0.005
    """Stop when the proven relative gap is this small."""
    min_saving: float = 0.0
    """Share of the objective: what runs is not changed to save less than this."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`count` equal replicas of one template in one zone; `kept` of them are running already."""

    template: str
    model: str
    phase: Phase
    zone: ZoneKey
    nodes: Nodes
    offerings: OfferingCounts
    throughput: float
    """Of each replica."""
    count: int
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """Which replicas shall exist."""

    choices: tuple[Choice, ...] = ()

    def served(self, model: str, phase: Phase) -> float:
        """Throughput allocated to one demand row."""
        return sum(
            choice.throughput * choice.count
            for choice in self.choices
            if choice.model == model and choice.phase is phase
        )


class SolveStatus(StrEnum):
    """How good an answer is."""

    PROVEN = "proven"
    """Within the wanted gap of the optimum, proven."""
    BEST_FOUND = "best-found"
    """Feasible; the proven gap is larger than wanted (deadline or work limit)."""
    SCALED = "scaled"
    """Not all demand can be met; the unmet part is reported by row."""
    FALLBACK = "fallback"
    """The solver failed; this is the better of greedy and the last plan, re-checked."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What one demand row gets."""

    model: str
    phase: Phase
    demanded: float
    served: float

    @property
    def unmet(self) -> float:
        return max(0.0, self.demanded - self.served)


@dataclass(frozen=True, slots=True)
class SolveReport:
    """What is known about an allocation; costs in USD/h, objective includes start costs."""

    status: SolveStatus
    objective: float
    usd_per_hour: float
    lower_bound: float | None
    """Of the objective, proven against the library used; None when nothing was proven."""
    seconds: float
    columns: int
    """(template, zone) pairs considered."""
    method: str
    library_note: str
    """Which library the proof speaks of, and whether pruning is exact under the rules in force."""
    rows: tuple[RowOutcome, ...]
    baselines: Mapping[str, float] = field(default_factory=dict)
    """USD/h (objective) by baseline name: `greedy`, `best-one-configuration`, `best-one-gpu`."""
    messages: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """Proven relative gap of the objective."""
        if self.lower_bound is None:
            return None
        if self.objective <= 0:
            return 0.0
        return max(0.0, (self.objective - self.lower_bound) / self.objective)
