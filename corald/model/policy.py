"""What the operator asks for, as plain values; `config` reads them from TOML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from corald.model.templates import Engine, Serving, Slo, Workload


class SpotUse(StrEnum):
    """Which markets a model may use."""

    ONLY = "only"
    PREFER = "prefer"
    NEVER = "never"


class Rebalance(StrEnum):
    """What a rebalance recommendation does."""

    IGNORE = "ignore"
    PREFER = "prefer"
    REPLACE = "replace"


class OrphanPolicy(StrEnum):
    """What happens to a machine of ours that no intent explains, after the grace."""

    REPORT = "report"
    TERMINATE = "terminate"


class OrphanModels(StrEnum):
    """What happens to the replicas of a model whose policy was removed."""

    KEEP = "keep"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """How one model shall be served."""

    model: str
    slo: Slo
    workload: Workload
    serving: Serving = Serving.MIXED
    engine: Engine = Engine.VLLM
    min_replicas: int = 0
    max_replicas: int | None = None
    priority: int = 0
    weight: float = 1.0
    headroom: float = 0.1
    """Share added to demand: the one safety margin."""
    scale_up_delay_seconds: float = 0.0
    scale_down_delay_seconds: float = 600.0
    scale_to_zero_after_seconds: float | None = None
    """None: never to zero; else explicit zeros must have stood this long."""
    spot: SpotUse = SpotUse.PREFER
    on_demand_base: int = 0
    max_spot_share: float = 1.0
    regions: tuple[str, ...] | None = None
    instance_types: tuple[str, ...] | None = None
    """Shell-style patterns; None allows all."""
    max_usd_per_hour: float | None = None
    drain_deadline_seconds: float = 600.0
    templates_allow: tuple[str, ...] | None = None
    """Shell-style patterns over template shapes (`2xL4*`); None allows all."""
    templates_deny: tuple[str, ...] = ()
    image: str = ""
    engine_args: tuple[str, ...] = ()
    ready_after: int = 2
    rebalance: Rebalance = Rebalance.PREFER
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all models; times in seconds."""

    budget_usd_per_hour: float | None = None
    budget_usd_per_day: float | None = None
    max_step_replicas: int = 50
    """Replicas that one decision may add to one model."""
    disruption_share: float = 0.1
    """At most max(1, this share) of a model's replicas drain voluntarily at one time."""
    max_voluntary_terminations: int = 5
    voluntary_window_seconds: float = 600.0
    freeze_unready_share: float = 0.45
    freeze_unready_count: int = 3
    min_life_seconds: float = 900.0
    debounce_seconds: float = 5.0
    """A decision follows the first change after the last decision by this much."""
    resolve_every_seconds: float = 300.0
    solver_deadline_seconds: float = 20.0
    solver_gap: float = 0.005
    amortize_seconds: float = 3600.0
    """The interval K spreads a start over."""
    boot_seconds: float = 120.0
    min_saving_share: float = 0.02
    """Of the cost of the plan: what runs is not changed to save less."""
    load_gib_per_second: float = 1.0
    """Modelled speed of loading weights, per node."""
    default_availability: int = 8
    """Machines assumed obtainable beyond those held where nobody says."""
    stale_demand_seconds: float = 90.0
    forget_demand_seconds: float | None = None
    """None: a silent source's last level counts for ever."""
    price_ttl_seconds: float = 7200.0
    price_hard_age_seconds: float = 172800.0
    stockout_seconds: float = 180.0
    stockout_max_seconds: float = 1800.0
    quota_seconds: float = 900.0
    launch_deadline_seconds: float = 300.0
    ready_deadline_seconds: float = 1200.0
    circuit_failures: int = 3
    circuit_seconds: float = 300.0
    circuit_max_seconds: float = 1800.0
    lost_after_seconds: float = 180.0
    gone_age_seconds: float = 600.0
    gone_gap_seconds: float = 60.0
    orphan_grace_seconds: float = 120.0
    stuck_terminating_seconds: float = 900.0
    notice_margin_seconds: float = 10.0
    route_propagation_seconds: float = 5.0
    gang_hold_seconds: float = 600.0
    epoch_reset_seconds: float = 300.0
    orphans: OrphanPolicy = OrphanPolicy.TERMINATE
    orphan_models: OrphanModels = OrphanModels.KEEP
    paused: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PolicySet:
    """All that the engine is told by configuration; swapped as a whole on reload."""

    cluster: str
    models: Mapping[str, ModelPolicy]
    rules: Rules = field(default_factory=Rules)
