"""The whole picture for people, metrics and routers: read from the state, changing nothing."""

from __future__ import annotations

from collections import Counter, defaultdict

from corald.core.caps import committed_spend
from corald.core.demand import requests_per_second
from corald.core.execution import proposed_moves
from corald.core.problem import offering_counts
from corald.core.state import ClusterState
from corald.model.fleet import InstanceState, Intent, IntentState, Replica, ReplicaState
from corald.model.market import Market
from corald.model.plan import Move, PlanRow
from corald.model.policy import ModelPolicy
from corald.model.status import (
    Endpoint,
    InstanceStatus,
    ModelStatus,
    ProviderStatus,
    ReplicaStatus,
    Status,
)
from corald.model.templates import Phase


def status_of(state: ClusterState, now: float) -> Status:
    """Everything at this moment."""
    rules = state.policies.rules
    live = state.fleet.live_intents()
    stuck = sum(
        i.state is IntentState.TERMINATING
        and now - (i.terminating_since or now) >= rules.stuck_terminating_seconds
        for i in live
    )
    return Status(
        at=now,
        cluster=state.policies.cluster,
        synced=state.synced,
        waiting=state.waiting,
        paused=state.policies_in_force().rules.paused,
        frozen=state.frozen,
        degraded=_degraded(state, now, stuck),
        models=tuple(
            _model_status(state, policy, now) for _, policy in sorted(state.policies.models.items())
        ),
        replicas=tuple(
            _replica_status(state, replica, now)
            for replica in sorted(state.fleet.replicas.values(), key=lambda r: r.id)
        ),
        instances=tuple(_instance_status(state, i, now) for i in sorted(live, key=lambda i: i.id)),
        providers=tuple(
            _provider_status(state, name, now) for name in sorted(state.providers.names)
        ),
        marks=state.offers.marks(now),
        quota_blocked=tuple(
            (region, market) for _, region, _, market in state.offers.blocked_quotas(now)
        ),
        open_circuits=tuple(sorted(state.circuits.open_at(now))),
        orphans=len(state.orphans),
        stuck_terminating=stuck,
        usd_per_hour=sum(i.usd_per_hour for i in live),
        committed_usd_per_hour=committed_spend(live),
        usd_today=state.spend.today(now),
        budget_usd_per_hour=rules.budget_usd_per_hour,
        solve=state.report,
        plan_age_seconds=None if state.solved_at is None else now - state.solved_at,
    )


def endpoints_of(state: ClusterState) -> tuple[Endpoint, ...]:
    """Replicas that take requests now: ready, whole, and not about to lose a machine."""
    endpoints = []
    for replica in sorted(state.fleet.replicas.values(), key=lambda r: r.id):
        nodes = state.fleet.nodes_of(replica)
        if replica.state is not ReplicaState.READY or nodes[0] is None or None in nodes:
            continue
        endpoints.append(
            Endpoint(
                replica=replica.id,
                model=replica.template.model,
                phase=replica.template.phase,
                region=replica.zone.region,
                zone=replica.zone.zone,
                address=nodes[0].address,
                weight=replica.template.throughput,
            )
        )
    return tuple(endpoints)


def plan_rows(state: ClusterState) -> tuple[PlanRow, ...]:
    """What the present target adds, keeps and drains, against what exists."""
    if state.target is None:
        return ()
    moves = proposed_moves(state.target, state)
    rows: Counter[tuple[Move, str, Phase, str, object, str, str]] = Counter()
    prices: dict[tuple[Move, str, Phase, str, object, str, str], float] = defaultdict(float)

    def add(move: Move, replica: Replica, reason: str) -> None:
        counts = offering_counts(replica.offerings)
        markets = "+".join(sorted({key.market for key, _ in counts}))
        key = (
            move,
            replica.template.model,
            replica.template.phase,
            replica.template.shape,
            replica.zone,
            markets,
            reason,
        )
        rows[key] += 1
        prices[key] += sum(state.offers.price_or_list(k)[0] * n for k, n in counts)

    removed = {m.replica.id: m.reason for m in moves.removes}
    called_back = {m.replica.id for m in moves.undrains}
    for start in moves.starts:
        template = state.templates.template(start.template)
        if template is not None:
            add(
                Move.ADD,
                Replica("", template, start.zone, start.offerings, (), 0.0),
                "covers demand at least cost",
            )
    for replica in state.fleet.replicas.values():
        leaving = replica.state in (ReplicaState.DRAINING, ReplicaState.RELEASING)
        if replica.id in removed:
            add(Move.DRAIN, replica, removed[replica.id])
        elif leaving and replica.id not in called_back:
            add(Move.DRAIN, replica, replica.reason)
        else:
            add(Move.KEEP, replica, "")
    order = sorted(rows, key=lambda k: (k[1], k[2], list(Move).index(k[0]), k[3], str(k[4]), k[5]))
    return tuple(
        PlanRow(
            move=key[0],
            model=key[1],
            phase=key[2],
            shape=key[3],
            zone=key[4],  # type: ignore[arg-type]
            markets=key[5],
            count=rows[key],
            usd_per_hour=prices[key],
            reason=key[6],
        )
        for key in order
    )


def _degraded(state: ClusterState, now: float, stuck: int) -> tuple[str, ...]:
    """Short reasons why things are not as they should be."""
    reasons = []
    if state.solve_failure:
        reasons.append(f"solver: {state.solve_failure}")
    if state.event_trouble:
        reasons.append(f"events: {state.event_trouble}")
    reasons.extend(
        f"provider {name}: {state.providers.message(name) or 'not listed yet'}"
        for name in sorted(state.providers.closed(now))
    )
    reasons.extend(
        f"{name}: demand is stale"
        for name in sorted(state.policies.models)
        if state.hold_reason(name, now) == "demand is stale"
    )
    reasons.extend(f"circuit open: {t}" for t in sorted(state.circuits.open_at(now)))
    if state.report is not None:
        reasons.extend(
            f"{row.model} {row.phase}: {row.unmet:.4g} of {row.demanded:.4g} unmet"
            for row in state.report.rows
            if row.unmet > 1e-6 * max(1.0, row.demanded)
        )
    strange = Counter(
        i.request.offering.provider
        for i in state.fleet.live_intents()
        if i.request.offering.provider not in state.providers.names
    )
    reasons.extend(
        f"{count} machines at provider {name}, which is not configured"
        for name, count in sorted(strange.items())
    )
    loose = sum(i.replica not in state.fleet.replicas for i in state.fleet.live_intents())
    if loose:
        reasons.append(f"{loose} adopted machines belong to no replica that is known")
    ttl = state.policies.rules.price_ttl_seconds
    reasons.extend(
        f"provider {name}: prices are stale"
        for name in sorted(state.providers.names)
        if (state.offers.price_age(name, now) or 0.0) > ttl
    )
    if stuck:
        reasons.append(f"{stuck} machines are stuck terminating")
    return tuple(reasons)


def _model_status(state: ClusterState, policy: ModelPolicy, now: float) -> ModelStatus:
    level = state.demand.level(policy.model)
    replicas = [r for r in state.fleet.replicas.values() if r.template.model == policy.model]
    ready = _capacity(state, policy, replicas, (ReplicaState.READY,))
    starting = _capacity(state, policy, replicas, (ReplicaState.STARTING,))
    demand = level.request_rate if level else 0.0
    by_market: dict[Market, float] = defaultdict(float)
    for replica in replicas:
        for intent in state.fleet.intents_of(replica.id):
            by_market[intent.request.offering.market] += intent.usd_per_hour
    states = Counter(r.state for r in replicas)
    return ModelStatus(
        model=policy.model,
        demand=demand,
        demand_age_seconds=None if level is None else max(0.0, now - level.oldest_at),
        stale=state.hold_reason(policy.model, now) != "",
        capacity_ready=ready,
        capacity_starting=starting,
        unmet=max(0.0, demand - ready),
        replicas_ready=states[ReplicaState.READY],
        replicas_starting=states[ReplicaState.STARTING],
        replicas_draining=states[ReplicaState.DRAINING] + states[ReplicaState.RELEASING],
        usd_per_hour=sum(by_market.values()),
        usd_per_hour_by_market=dict(by_market),
        paused=policy.paused or policy.model in state.paused_models,
        messages=tuple(r for r in state.refused if policy.model in r),
    )


def _capacity(
    state: ClusterState,
    policy: ModelPolicy,
    replicas: list[Replica],
    states: tuple[ReplicaState, ...],
) -> float:
    """Requests/s that the replicas in these states carry: the scarcer phase decides."""
    level = state.demand.level(policy.model)
    by_phase = {
        phase: sum(
            r.template.throughput
            for r in replicas
            if r.state in states and r.template.phase is phase
        )
        for phase in policy.serving.phases
    }
    return min(requests_per_second(policy, level, p, t) for p, t in by_phase.items())


def _replica_status(state: ClusterState, replica: Replica, now: float) -> ReplicaStatus:
    intents = state.fleet.intents_of(replica.id)
    return ReplicaStatus(
        id=replica.id,
        model=replica.template.model,
        phase=replica.template.phase,
        template=replica.template.id,
        shape=replica.template.shape,
        zone=replica.zone,
        state=replica.state,
        reason=replica.reason,
        throughput=replica.template.throughput,
        usd_per_hour=sum(i.usd_per_hour for i in intents),
        instances=tuple(i.instance for i in intents if i.instance),
        age_seconds=now - replica.created_at,
        drain_deadline=replica.drain_deadline,
    )


def _instance_status(state: ClusterState, intent: Intent, now: float) -> InstanceStatus:
    replica = state.fleet.replicas.get(intent.replica)
    serving = replica is not None and replica.state is ReplicaState.READY
    return InstanceStatus(
        intent=intent.id,
        instance=intent.instance,
        offering=intent.request.offering,
        replica=intent.replica,
        state=intent.state,
        ready=serving and intent.instance_state is InstanceState.RUNNING and intent.usable,
        departing=intent.departing,
        usd_per_hour=intent.usd_per_hour,
        age_seconds=now - intent.created_at,
        lost=intent.lost,
    )


def _provider_status(state: ClusterState, name: str, now: float) -> ProviderStatus:
    book = state.providers
    return ProviderStatus(
        name=name,
        synced=book.synced(name),
        frozen=book.frozen(name),
        message=book.message(name),
        offerings=state.offers.count(name),
        listing_age_seconds=book.listing_age(name, now),
        price_age_seconds=state.offers.price_age(name, now),
    )
