"""Carries the target out: what differs, past the guards, becomes replicas and durable intents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from corald.core.caps import committed_spend
from corald.core.fleet import leaving
from corald.core.guards import Situation, guarded
from corald.core.identity import intent_id, name_of, tags_of, token_of
from corald.core.lifecycle import Lifecycle
from corald.core.planner import Moves, Remove, Repair, RowKey, Start, plan_moves
from corald.core.problem import Want
from corald.core.state import ClusterState
from corald.model.fleet import Intent, LaunchRequest, Replica, ReplicaState
from corald.model.policy import OrphanModels
from corald.model.problem import Allocation, SolveStatus

DRAIN_SECONDS = 600.0
"""Drain deadline of a model whose policy was removed."""


def proposed_moves(target: Allocation, state: ClusterState) -> Moves:
    """What differs from the target, before any guard."""
    drains_orphans = state.policies.rules.orphan_models is OrphanModels.DRAIN
    return plan_moves(
        target,
        state.fleet,
        governs=lambda model: drains_orphans or model in state.policies.models,
        configuration_of=state.configuration_of,
    )


class Execution:
    """Turns moves into replicas and intents."""

    def __init__(self, state: ClusterState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._incarnation = state.settings.get("incarnation", "")
        self._sequence = int(state.settings.get("sequence", "0"))
        self._voluntary: list[float] = []

    def carry_out(
        self,
        target: Allocation,
        wants: Mapping[str, Want],
        hold: Mapping[str, str],
        closed: frozenset[str],
        now: float,
    ) -> bool:
        """Apply what differs from the target, as far as guards allow; True when anything did."""
        proposed = proposed_moves(target, self._state)
        if self._state.agenda.solving:
            # The answer under way knows nothing of further starts and removes: it would undo them.
            proposed = replace(proposed, starts=(), removes=())
        moves = guarded(proposed, self._situation(wants, hold, closed, now))
        self._state.refused = moves.refused
        for repair in moves.repairs:
            self._repair(repair, now)
        for undrain in moves.undrains:
            self._lifecycle.call_off_drain(undrain.replica, now)
        for start in moves.starts:
            self._start(start, now)
        for remove in moves.removes:
            self._remove(remove, now)
        if not moves.empty:
            self._note_moves(moves, now)
        return not moves.empty

    def _situation(
        self,
        wants: Mapping[str, Want],
        hold: Mapping[str, str],
        closed: frozenset[str],
        now: float,
    ) -> Situation:
        state = self._state
        window = state.policies.rules.voluntary_window_seconds
        self._voluntary = [t for t in self._voluntary if now - t < window]
        return Situation(
            now=now,
            policies=state.policies_in_force(),
            fleet=state.fleet,
            caps=state.caps(now),
            committed_usd_per_hour=committed_spend(state.fleet.live_intents()),
            price_of=lambda key: state.committed_price(key, now),
            blocked=lambda key: state.offers.blocked(key, now),
            required=self._required(wants),
            min_replicas={name: want.min_replicas for name, want in wants.items()},
            hold=hold,
            closed_providers=closed,
            open_circuits=frozenset(state.circuits.open_at(now)),
            probing_circuits=state.circuits.on_trial(),
            frozen=state.frozen,
            recent_voluntary=len(self._voluntary),
        )

    def _required(self, wants: Mapping[str, Want]) -> dict[RowKey, float]:
        """Demand of every row; under scarcity only what the plan means to serve of it."""
        state = self._state
        scaled = state.report is not None and state.report.status is SolveStatus.SCALED
        served = state.target.served if scaled and state.target else None
        return {
            (name, phase): min(amount, served(name, phase)) if served else amount
            for name, want in wants.items()
            for phase, amount in want.amounts.items()
        }

    def _start(self, start: Start, now: float) -> None:
        template = self._state.templates.template(start.template)
        if template is None:
            raise AssertionError(f"the plan names an unknown template: {start.template}")
        replica = Replica(
            id=self._new_replica_id(now),
            template=template,
            zone=start.zone,
            offerings=start.offerings,
            attempts=(1,) * len(start.offerings),
            created_at=now,
            starting_since=now,
            cause=str(self._state.agenda.generation),
        )
        self._state.fleet.put_replica(replica)
        for ordinal in range(len(start.offerings)):
            self._commit(replica, ordinal, now)

    def _new_replica_id(self, now: float) -> str:
        """An id never used before, not even by a store that was lost."""
        if not self._incarnation:
            self._incarnation = str(int(now))
            self._state.journal.setting("incarnation", self._incarnation)
        self._sequence += 1
        self._state.journal.setting("sequence", str(self._sequence))
        return f"r{self._incarnation}-{self._sequence}"

    def _repair(self, repair: Repair, now: float) -> None:
        fleet, replica = self._state.fleet, repair.replica
        offerings, attempts = list(replica.offerings), list(replica.attempts)
        for intent in fleet.intents_of(replica.id):
            if intent.usable and intent.lost:
                fleet.put_intent(leaving(intent, "lost", now))
        for ordinal, key in repair.holes:
            offerings[ordinal] = key
            attempts[ordinal] += 1
        repaired = replace(
            replica,
            state=ReplicaState.STARTING,
            offerings=tuple(offerings),
            attempts=tuple(attempts),
            starting_since=now,
        )
        fleet.put_replica(repaired)
        for ordinal, _ in repair.holes:
            self._commit(repaired, ordinal, now)

    def _commit(self, replica: Replica, ordinal: int, now: float) -> None:
        """Write the wish for one machine down, with its whole request, before any call."""
        state, cluster = self._state, self._state.policies.cluster
        template, key = replica.template, replica.offerings[ordinal]
        attempt = replica.attempts[ordinal]
        name = intent_id(cluster, template.model, replica.id, ordinal, attempt)
        policy = state.policies.models.get(template.model)
        price, committed = state.offers.price_or_list(key)
        request = LaunchRequest(
            token=token_of(name),
            name=name_of(cluster, name),
            offering=key,
            image=policy.image if policy else "",
            user_data="",
            tags=tags_of(
                cluster=cluster,
                model=template.model,
                replica=replica.id,
                template=template.id,
                intent=name,
            ),
        )
        intent = Intent(
            id=name,
            replica=replica.id,
            ordinal=ordinal,
            attempt=attempt,
            request=request,
            usd_per_hour=price,
            committed_usd_per_hour=committed,
            created_at=now,
        )
        state.fleet.put_intent(intent)
        state.note_machine(
            "launch_committed",
            intent,
            now,
            usd_per_hour=price,
            reason=state.agenda.trigger,
            cause=state.agenda.generation,
        )

    def _remove(self, remove: Remove, now: float) -> None:
        replica = remove.replica
        if replica.state is not ReplicaState.READY:
            self._lifecycle.release(replica, now, reason=remove.reason)
            return
        policy = self._state.policies.models.get(replica.template.model)
        seconds = policy.drain_deadline_seconds if policy else DRAIN_SECONDS
        self._voluntary.extend([now] * len(replica.offerings))
        self._lifecycle.begin_drain(replica, now, reason=remove.reason, deadline=now + seconds)

    def _note_moves(self, moves: Moves, now: float) -> None:
        touched = len(moves.starts) + len(moves.removes)
        self._state.notes.add(
            "plan_moves",
            now,
            audit=True,
            add=len(moves.starts),
            keep=len(self._state.fleet.replicas) - touched,
            repair=len(moves.repairs),
            undrain=len(moves.undrains),
            drain=len(moves.removes),
            cause=self._state.agenda.generation,
        )
