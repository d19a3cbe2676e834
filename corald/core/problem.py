"""Builds the solver's problem from what is known: rows, supplies, what runs, what a start costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from corald.core.caps import committed_spend
from corald.core.fleet import Fleet
from corald.core.offers import Offers
from corald.model.fleet import Replica, ReplicaState
from corald.model.market import Market, OfferingKey
from corald.model.policy import ModelPolicy, PolicySet, Rules, SpotUse
from corald.model.problem import DemandRow, OfferingCounts, Problem, RunningReplica, Supply
from corald.model.templates import Engine, Phase, ServingTemplate


class TemplateSource(Protocol):
    """The template library, as the core needs it."""

    @property
    def fingerprint(self) -> str: ...

    def template(self, template_id: str) -> ServingTemplate | None: ...

    def template_ids(self, model: str, phase: Phase, engine: Engine) -> tuple[str, ...]: ...


class ShapeRules:
    """Which templates a policy's patterns deny; remembered, since libraries are large."""

    def __init__(self, templates: TemplateSource) -> None:
        self._templates = templates
        self._denied: dict[tuple[object, ...], frozenset[str]] = {}

    def denied(self, policy: ModelPolicy, phase: Phase) -> frozenset[str]:
        """Ids of the model's templates that the policy does not allow."""
        allow, deny = policy.templates_allow, policy.templates_deny
        if allow is None and not deny:
            return frozenset()
        key = (policy.model, phase, policy.engine, allow, deny)
        if key not in self._denied:
            self._denied[key] = frozenset(
                name
                for name in self._templates.template_ids(policy.model, phase, policy.engine)
                if not _shape_allowed(policy, name.rpartition("/")[2])
            )
        return self._denied[key]


@dataclass(frozen=True, slots=True)
class Want:
    """What one model needs now: the amount of each row, and how many replicas at least."""

    amounts: Mapping[Phase, float]
    min_replicas: int


def build_problem(  # noqa: PLR0913 - everything a plan depends on, in one place
    *,
    policies: PolicySet,
    wants: Mapping[str, Want],
    offers: Offers,
    fleet: Fleet,
    library: str,
    shapes: ShapeRules,
    open_circuits: AbstractSet[str],
    closed_providers: AbstractSet[str],
    now: float,
) -> Problem:
    """The problem of this moment; equal states give equal problems."""
    rules = policies.rules
    served = {name: policies.models[name] for name in sorted(wants)}
    supplies = offers.supplies(
        fleet.live_intents(),
        now,
        rules,
        closed=closed_providers,
        wanted=lambda key: any(permits(policy, key) for policy in served.values()),
    )
    rows = tuple(
        _row(
            policy,
            phase,
            wants[name],
            supplies,
            shapes.denied(policy, phase) | _ids_of(open_circuits, policy, phase),
        )
        for name, policy in served.items()
        for phase in sorted(wants[name].amounts)
    )
    return Problem(
        library=library,
        rows=rows,
        supplies=supplies,
        running=running_replicas(fleet, served),
        start_cost=_start_costs(supplies, rules),
        budget_usd_per_hour=_budget(fleet, rules),
        gap=rules.solver_gap,
    )


def permits(policy: ModelPolicy, key: OfferingKey) -> bool:
    """Whether the policy lets its model use this offering."""
    if policy.regions is not None and key.region not in policy.regions:
        return False
    if policy.instance_types is not None and not _matches(key.instance_type, policy.instance_types):
        return False
    if policy.spot is SpotUse.NEVER:
        return key.market is not Market.SPOT
    return policy.spot is not SpotUse.ONLY or key.market is Market.SPOT


def running_replicas(fleet: Fleet, served: Mapping[str, ModelPolicy]) -> tuple[RunningReplica, ...]:
    """Replicas that may stay, grouped: whole ones, draining ones (a drain can be called off)."""
    groups: Counter[tuple[Replica, OfferingCounts]] = Counter()
    samples: dict[tuple[str, object, OfferingCounts], tuple[Replica, OfferingCounts]] = {}
    for replica in fleet.replicas.values():
        if replica.template.model not in served or not may_stay(fleet, replica):
            continue
        counts = offering_counts(replica.offerings)
        key = (replica.template.id, replica.zone, counts)
        sample = samples.setdefault(key, (replica, counts))
        groups[sample] += 1
    return tuple(
        sorted(
            (
                RunningReplica(
                    template=replica.template.id,
                    model=replica.template.model,
                    phase=replica.template.phase,
                    zone=replica.zone,
                    nodes=replica.template.nodes,
                    offerings=counts,
                    throughput=replica.template.throughput,
                    count=count,
                )
                for (replica, counts), count in groups.items()
            ),
            key=lambda r: (r.template, r.zone, r.offerings),
        )
    )


def may_stay(fleet: Fleet, replica: Replica) -> bool:
    """Whether a replica counts as supply, present or on its way."""
    states = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)
    return replica.state in states and fleet.whole(replica) and not fleet.advised(replica)


def offering_counts(offerings: tuple[OfferingKey, ...]) -> OfferingCounts:
    """Count the offerings of a replica's nodes."""
    return tuple(sorted(Counter(offerings).items()))


def _row(
    policy: ModelPolicy,
    phase: Phase,
    want: Want,
    supplies: tuple[Supply, ...],
    denied: AbstractSet[str],
) -> DemandRow:
    allowed = tuple(i for i, s in enumerate(supplies) if permits(policy, s.offering))
    return DemandRow(
        model=policy.model,
        phase=phase,
        engine=policy.engine,
        amount=want.amounts[phase],
        min_replicas=want.min_replicas,
        max_replicas=policy.max_replicas,
        priority=policy.priority,
        weight=policy.weight,
        supplies=None if len(allowed) == len(supplies) else allowed,
        denied_templates=frozenset(denied),
        max_usd_per_hour=policy.max_usd_per_hour,
    )


def _ids_of(names: AbstractSet[str], policy: ModelPolicy, phase: Phase) -> frozenset[str]:
    prefix = f"{policy.model}/{phase}/{policy.engine}/"
    return frozenset(name for name in names if name.startswith(prefix))


def _shape_allowed(policy: ModelPolicy, shape: str) -> bool:
    allow = policy.templates_allow
    return (allow is None or _matches(shape, allow)) and not _matches(shape, policy.templates_deny)


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _start_costs(supplies: tuple[Supply, ...], rules: Rules) -> dict[str, float]:
    """K by configuration: boot time, and a typical load, over the interval that must repay it.

    The load is taken as long as the boot: K must not depend on the template, or pruning the
    library would no longer be exact.
    """
    share = 2.0 * rules.boot_seconds / rules.amortize_seconds
    return dict.fromkeys(sorted({s.configuration for s in supplies}), share)


def _budget(fleet: Fleet, rules: Rules) -> float | None:
    """What the budget leaves for replicas that stay or start, after machines that are leaving."""
    if rules.budget_usd_per_hour is None:
        return None
    leaving = committed_spend(i for i in fleet.live_intents() if not i.usable)
    return max(0.0, rules.budget_usd_per_hour - leaving)
