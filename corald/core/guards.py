"""Brakes: one function per rule, each takes moves out and says why. The planner cannot pass them.

Order matters only for messages: every guard just removes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from corald.core.caps import Caps
from corald.core.fleet import Fleet
from corald.core.planner import Moves, Remove, Repair, RowKey, Start
from corald.core.problem import permits, shape_allowed
from corald.model.fleet import Replica, ReplicaState
from corald.model.market import OfferingKey
from corald.model.policy import PolicySet


@dataclass(frozen=True, slots=True)
class Situation:
    """All that guards look at."""

    now: float
    policies: PolicySet
    fleet: Fleet
    caps: Caps
    committed_usd_per_hour: float
    price_of: Callable[[OfferingKey], float | None]
    """Committed USD/h of an offering; None when it has no valid price."""
    blocked: Callable[[OfferingKey], str]
    """Why an offering is out of bounds (sold out, quota); empty when it is not."""
    required: Mapping[RowKey, float]
    """Demand of every row, in its unit."""
    min_replicas: Mapping[str, int]
    hold: Mapping[str, str]
    """Models that must not shrink, with the reason (stale demand, no demand known)."""
    closed_providers: AbstractSet[str]
    """Providers that take no new machines now (not synced, frozen)."""
    open_circuits: AbstractSet[str]
    probing_circuits: AbstractSet[str]
    frozen: str
    """Why voluntary actions are frozen; empty when they are not."""
    recent_voluntary: int
    """Machines given back voluntarily within the window."""


Guard = Callable[[Moves, Situation], Moves]


def guarded(moves: Moves, situation: Situation) -> Moves:
    """Apply every guard."""
    for guard in GUARDS:
        moves = guard(moves, situation)
    return moves


def held_models(moves: Moves, situation: Situation) -> Moves:
    """A model that must not shrink starts only what it lacks: an exchange could not be finished."""
    serving: dict[RowKey, float] = defaultdict(float)
    count: Counter[RowKey] = Counter()
    for replica in situation.fleet.replicas.values():
        alive = replica.state in (ReplicaState.STARTING, ReplicaState.READY)
        if alive and situation.fleet.whole(replica):
            serving[_row_of(replica)] += replica.template.throughput
            count[_row_of(replica)] += 1
    kept, refused = [], []
    for start in moves.starts:
        row = (start.model, start.phase)
        enough = serving[row] >= situation.required.get(row, 0.0) - 1e-9
        enough = enough and count[row] >= situation.min_replicas.get(start.model, 0)
        if enough and start.model in situation.hold:
            refused.append(f"{start.model}: {situation.hold[start.model]}")
        else:
            serving[row] += start.throughput
            count[row] += 1
            kept.append(start)
    return _with_starts(moves, kept, refused)


def permitted(moves: Moves, situation: Situation) -> Moves:
    """Nothing that the policies of this moment forbid, whatever the plan was made for."""
    models = situation.policies.models

    def why(model: str, template: str, keys: tuple[OfferingKey, ...]) -> str:
        policy = models.get(model)
        if policy is None:
            return f"{model}: no policy"
        if not all(permits(policy, key) for key in keys):
            return f"{model}: its policy forbids {', '.join(map(str, keys))}"
        return "" if shape_allowed(policy, template.rpartition("/")[2]) else "template denied"

    return _filter_launches(moves, why)


def paused(moves: Moves, situation: Situation) -> Moves:
    """Pause and dry run: nothing at all, or nothing for the models paused."""
    rules = situation.policies.rules
    if rules.paused or rules.dry_run:
        return (
            Moves(refused=("paused" if rules.paused else "dry run",)) if not moves.empty else moves
        )
    stopped = {name for name, policy in situation.policies.models.items() if policy.paused}
    return _without(moves, lambda model: "paused" if model in stopped else "")


def closed(moves: Moves, situation: Situation) -> Moves:
    """No machine from a closed provider, nor of an offering out of bounds or without a price."""

    def why(model: str, template: str, keys: tuple[OfferingKey, ...]) -> str:
        del model, template
        for key in keys:
            if key.provider in situation.closed_providers:
                return f"provider {key.provider} is not ready"
            if situation.price_of(key) is None:
                return f"{key} has no valid price"
            if reason := situation.blocked(key):
                return f"{key}: {reason}"
        return ""

    return _filter_launches(moves, why)


def circuits(moves: Moves, situation: Situation) -> Moves:
    """Nothing for a template whose circuit is open; one start at a time while it is on trial."""
    starting = Counter(
        r.template.id
        for r in situation.fleet.replicas.values()
        if r.state is ReplicaState.STARTING and not r.ever_ready
    )
    kept, refused = [], []
    for start in moves.starts:
        if start.template in situation.open_circuits:
            refused.append(f"{start.template}: circuit open")
        elif start.template in situation.probing_circuits and starting[start.template]:
            refused.append(f"{start.template}: one trial at a time")
        else:
            starting[start.template] += 1
            kept.append(start)
    repairs = tuple(
        r for r in moves.repairs if r.replica.template.id not in situation.open_circuits
    )
    return _with_starts(replace(moves, repairs=repairs), kept, refused)


def replica_limits(moves: Moves, situation: Situation) -> Moves:
    """Never above a model's maximum (plus one tenth, at least one, while a move overlaps)."""
    rules = situation.policies.rules
    live: Counter[RowKey] = Counter()
    for replica in situation.fleet.replicas.values():
        if replica.state is not ReplicaState.GONE:
            live[_row_of(replica)] += 1
    serving: Counter[RowKey] = Counter(
        _row_of(r)
        for r in situation.fleet.replicas.values()
        if r.state in (ReplicaState.STARTING, ReplicaState.READY)
    )
    removing = Counter(_row_of(m.replica) for m in moves.removes)
    added: Counter[str] = Counter()
    kept, refused = [], []
    for start in moves.starts:
        row = (start.model, start.phase)
        policy = situation.policies.models.get(start.model)
        limit = policy.max_replicas if policy else 0
        surge = max(1, int((limit or 0) * rules.disruption_share)) if removing[row] else 0
        if limit is not None and max(serving[row], live[row] - surge) >= limit + surge:
            refused.append(f"{start.model}: max_replicas {limit} reached")
        elif added[start.model] >= rules.max_step_replicas:
            refused.append(f"{start.model}: max_step_replicas {rules.max_step_replicas} reached")
        else:
            live[row] += 1
            serving[row] += 1
            added[start.model] += 1
            kept.append(start)
    return _with_starts(moves, kept, refused)


def budget(moves: Moves, situation: Situation) -> Moves:
    """Every machine is reserved against the caps before it is asked for; repairs come first."""
    committed = situation.committed_usd_per_hour
    by_model: dict[str, float] = defaultdict(float)
    for intent in situation.fleet.live_intents():
        replica = situation.fleet.replicas.get(intent.replica)
        if replica is not None:
            by_model[replica.template.model] += intent.committed_usd_per_hour

    def why(keys: tuple[OfferingKey, ...], model: str) -> str:
        nonlocal committed
        extra = sum(situation.price_of(key) or 0.0 for key in keys)
        refusal = situation.caps.refusal(committed, extra)
        policy = situation.policies.models.get(model)
        cap = policy.max_usd_per_hour if policy else None
        if not refusal and cap is not None and by_model[model] + extra > cap + 1e-9:
            refusal = f"max_usd_per_hour {cap:g} of {model} reached"
        if not refusal:
            committed += extra
            by_model[model] += extra
        return refusal

    repairs, starts, refused = [], [], []
    for repair in moves.repairs:
        reason = why(tuple(key for _, key in repair.holes), repair.replica.template.model)
        refused.append(reason) if reason else repairs.append(repair)
    for start in moves.starts:
        reason = why(start.offerings, start.model)
        refused.append(reason) if reason else starts.append(start)
    kept = replace(moves, repairs=tuple(repairs))
    return _with_starts(kept, starts, refused)


def stale_demand(moves: Moves, situation: Situation) -> Moves:
    """Missing is not zero: a model whose demand is not fresh does not shrink."""
    return _filter_removes(
        moves, lambda remove: situation.hold.get(remove.replica.template.model, "")
    )


def freeze(moves: Moves, situation: Situation) -> Moves:
    """Mass failure, adoption, or an operator's freeze: nothing voluntary."""
    return _filter_removes(moves, lambda _: situation.frozen)


def min_life(moves: Moves, situation: Situation) -> Moves:
    """A replica that serves is not ended before its minimum life; a never-ready one may be."""
    seconds = situation.policies.rules.min_life_seconds

    def why(remove: Remove) -> str:
        ready_at = remove.replica.ready_at
        young = ready_at is not None and situation.now - ready_at < seconds
        return "younger than its minimum life" if young else ""

    return _filter_removes(moves, why)


def make_before_break(moves: Moves, situation: Situation) -> Moves:
    """Ready capacity never falls below what is required, nor below itself while short.

    A replica of a phase that its policy no longer has goes when every new row is covered.
    """
    ready: dict[RowKey, float] = defaultdict(float)
    for replica in situation.fleet.replicas.values():
        if replica.state is ReplicaState.READY:
            ready[_row_of(replica)] += replica.template.throughput

    def why(remove: Remove) -> str:
        replica = remove.replica
        if replica.state is not ReplicaState.READY:
            return ""
        row = _row_of(replica)
        rows = [r for r in situation.required if r[0] == replica.template.model]
        if row not in situation.required:
            short = any(ready[r] < situation.required[r] - 1e-9 for r in rows)
            return "its successors are not ready" if short else ""
        left = ready[row] - replica.template.throughput
        if left < situation.required.get(row, 0.0) - 1e-9:
            return "its replacement is not ready"
        ready[row] = left
        return ""

    return _filter_removes(moves, why)


def disruption(moves: Moves, situation: Situation) -> Moves:
    """At most a tenth of a model's replicas drain at one time, and few machines in a window."""
    rules = situation.policies.rules
    total: Counter[str] = Counter()
    draining: Counter[str] = Counter()
    for replica in situation.fleet.replicas.values():
        if replica.state is ReplicaState.GONE or not replica.ever_ready:
            continue
        total[replica.template.model] += 1
        if replica.state is ReplicaState.DRAINING:
            draining[replica.template.model] += 1
    given_back = situation.recent_voluntary

    def why(remove: Remove) -> str:
        nonlocal given_back
        replica = remove.replica
        if not replica.ever_ready:
            return ""
        model = replica.template.model
        if draining[model] >= max(1, int(total[model] * rules.disruption_share)):
            return "disruption limit of the model"
        if given_back and given_back + len(replica.offerings) > rules.max_voluntary_terminations:
            return "limit of voluntary terminations"
        draining[model] += 1
        given_back += len(replica.offerings)
        return ""

    return _filter_removes(moves, why)


GUARDS: tuple[Guard, ...] = (
    paused,
    permitted,
    held_models,
    closed,
    circuits,
    replica_limits,
    budget,
    stale_demand,
    freeze,
    min_life,
    make_before_break,
    disruption,
)


def _row_of(replica: Replica) -> RowKey:
    return replica.template.model, replica.template.phase


def _with_starts(moves: Moves, starts: list[Start], refused: list[str]) -> Moves:
    return replace(moves, starts=tuple(starts), refused=(*moves.refused, *refused))


def _filter_removes(moves: Moves, why: Callable[[Remove], str]) -> Moves:
    kept, refused = [], []
    for remove in moves.removes:
        reason = why(remove)
        if reason:
            refused.append(f"keep {remove.replica.id}: {reason}")
        else:
            kept.append(remove)
    return replace(moves, removes=tuple(kept), refused=(*moves.refused, *refused))


def _filter_launches(
    moves: Moves, why: Callable[[str, str, tuple[OfferingKey, ...]], str]
) -> Moves:
    repairs: list[Repair] = []
    starts: list[Start] = []
    refused: list[str] = []
    for repair in moves.repairs:
        template = repair.replica.template
        reason = why(template.model, template.id, tuple(key for _, key in repair.holes))
        refused.append(f"repair {repair.replica.id}: {reason}") if reason else repairs.append(
            repair
        )
    for start in moves.starts:
        reason = why(start.model, start.template, start.offerings)
        refused.append(f"start {start.template}: {reason}") if reason else starts.append(start)
    return _with_starts(replace(moves, repairs=tuple(repairs)), starts, refused)


def _without(moves: Moves, why: Callable[[str], str]) -> Moves:
    """Take out every move of the models that `why` gives a reason for."""
    return Moves(
        starts=tuple(s for s in moves.starts if not why(s.model)),
        repairs=tuple(r for r in moves.repairs if not why(r.replica.template.model)),
        undrains=tuple(u for u in moves.undrains if not why(u.replica.template.model)),
        removes=tuple(r for r in moves.removes if not why(r.replica.template.model)),
        refused=moves.refused,
    )
