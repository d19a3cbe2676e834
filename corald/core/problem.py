"""Builds the solver's problem from what is known: rows, supplies, what runs, what a start costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

from corald.core.caps import Caps, committed_spend
from corald.core.fleet import Fleet
from corald.core.offers import Offers
from corald.model.fleet import Intent, Replica, ReplicaState
from corald.model.market import Market, OfferingKey, ZoneKey
from corald.model.policy import ModelPolicy, PolicySet, Rules, SpotUse
from corald.model.problem import DemandRow, OfferingCounts, Problem, RunningReplica, Supply
from corald.model.templates import Engine, Phase, ServingTemplate

STAYING = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)


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
                if not shape_allowed(policy, name.rpartition("/")[2])
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
    caps: Caps,
    library: str,
    shapes: ShapeRules,
    open_circuits: AbstractSet[str],
    closed_providers: AbstractSet[str],
    now: float,
) -> Problem:
    """Pose the problem of this moment; equal states give equal problems."""
    rules = policies.rules
    served = {name: policies.models[name] for name in sorted(wants)}
    live = fleet.live_intents()
    governed = {i.id: i for i in live if _governed(fleet, i, served)}
    supplies = offers.supplies(
        live,
        now,
        rules,
        usable=governed.keys(),
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
    running, supplies = _running(fleet, served, supplies)
    limit = caps.limit()
    others = committed_spend(i for i in live if i.id not in governed)
    return Problem(
        library=library,
        rows=rows,
        supplies=supplies,
        running=running,
        start_cost=_start_costs(supplies, rules),
        budget_usd_per_hour=None if limit is None else max(0.0, limit - others),
        new_usd_per_hour=None if limit is None else max(0.0, limit - committed_spend(live)),
        gap=rules.solver_gap,
        min_saving=rules.min_saving_share,
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


def _governed(fleet: Fleet, intent: Intent, served: Mapping[str, ModelPolicy]) -> bool:
    """Whether a machine belongs to a replica that the solver may keep or give up."""
    replica = fleet.replicas.get(intent.replica)
    return (
        replica is not None
        and intent.usable
        and replica.state in STAYING
        and _serves(replica, served)
    )


def _serves(replica: Replica, served: Mapping[str, ModelPolicy]) -> bool:
    """Whether the replica answers a demand row that exists."""
    policy = served.get(replica.template.model)
    return policy is not None and replica.template.phase in policy.serving.phases


def _running(
    fleet: Fleet, served: Mapping[str, ModelPolicy], supplies: tuple[Supply, ...]
) -> tuple[tuple[RunningReplica, ...], tuple[Supply, ...]]:
    """Replicas that may stay, grouped, and what is obtainable besides.

    Whole replicas may stay, draining ones included, since a drain can be called off; a broken one
    may when the machines it lacks can be had: they are reserved for it.
    """
    obtainable = {s.offering: s.obtainable or 0 for s in supplies}
    groups: dict[tuple[str, ZoneKey, OfferingCounts], list[Replica]] = defaultdict(list)
    for replica in sorted(fleet.replicas.values(), key=lambda r: (r.created_at, r.id)):
        if not _serves(replica, served):
            continue
        offerings: tuple[OfferingKey, ...] | None = replica.offerings
        if not may_stay(fleet, replica):
            policy = served[replica.template.model]
            offerings = _repaired(fleet, replica, policy, supplies, obtainable)
        if offerings is not None:
            key = (replica.template.id, replica.zone, offering_counts(offerings))
            groups[key].append(replica)
    running = tuple(
        RunningReplica(
            template=template,
            model=replicas[0].template.model,
            phase=replicas[0].template.phase,
            zone=zone,
            nodes=replicas[0].template.nodes,
            offerings=counts,
            throughput=replicas[0].template.throughput,
            count=len(replicas),
        )
        for (template, zone, counts), replicas in sorted(groups.items(), key=lambda g: g[0])
    )
    return running, tuple(replace(s, obtainable=obtainable[s.offering]) for s in supplies)


def _repaired(
    fleet: Fleet,
    replica: Replica,
    policy: ModelPolicy,
    supplies: tuple[Supply, ...],
    obtainable: dict[OfferingKey, int],
) -> tuple[OfferingKey, ...] | None:
    """The offerings of a broken replica once its holes are filled, which are then set aside.

    A hole takes its own offering again, else the cheapest like it in the zone; None when one of
    them cannot be filled.
    """
    if replica.state is not ReplicaState.STARTING or fleet.advised(replica):
        return None
    left = dict(obtainable)
    offerings = list(replica.offerings)
    for ordinal, node in enumerate(fleet.nodes_of(replica)):
        if node is not None and not node.lost:
            continue
        configuration = replica.template.node_configurations[ordinal]
        own = replica.offerings[ordinal]
        found = min(
            (
                (s.offering != own, s.usd_per_hour, s.offering)
                for s in supplies
                if s.offering.zone_key == replica.zone
                and s.configuration == configuration
                and left[s.offering] > 0
                and permits(policy, s.offering)
            ),
            default=None,
        )
        if found is None:
            return None
        offerings[ordinal] = found[2]
        left[found[2]] -= 1
    obtainable.update(left)
    return tuple(offerings)


def may_stay(fleet: Fleet, replica: Replica) -> bool:
    """Whether a replica counts as supply, present or on its way."""
    return replica.state in STAYING and fleet.whole(replica) and not fleet.advised(replica)


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


def shape_allowed(policy: ModelPolicy, shape: str) -> bool:
    """Whether the policy lets replicas of this shape start."""
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
