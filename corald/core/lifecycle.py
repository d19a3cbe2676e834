"""What time and losses do to replicas and machines: deadlines, drains, releases, holes.

`settle` is a fixed point over the fleet: running it twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from corald.core.circuits import Circuits
from corald.core.fleet import Fleet, ended, leaving, terminating
from corald.core.notes import Notes
from corald.model.fleet import Intent, IntentState, Replica, ReplicaState
from corald.model.policy import Rules


class Lifecycle:
    """Moves replicas and intents through their states."""

    def __init__(self, fleet: Fleet, circuits: Circuits, notes: Notes) -> None:
        self._fleet = fleet
        self._circuits = circuits
        self._notes = notes

    def settle(self, now: float, rules: Rules) -> None:
        """Apply every deadline that has passed and every loss that shows."""
        for intent in list(self._fleet.intents.values()):
            self._settle_intent(intent, now, rules)
        for replica in list(self._fleet.replicas.values()):
            self._settle_replica(replica, now, rules)

    def next_change(self, rules: Rules) -> float | None:
        """When a replica's deadline comes."""
        times = []
        for replica in self._fleet.replicas.values():
            if replica.state is ReplicaState.DRAINING and replica.drain_deadline is not None:
                times.append(replica.drain_deadline)
            elif replica.state is ReplicaState.STARTING:
                deadline = self._ready_deadline_at(replica, rules)
                if deadline is not None:
                    times.append(deadline)
        return min(times, default=None)

    def _ready_deadline_at(self, replica: Replica, rules: Rules) -> float | None:
        """When a starting replica is given up; None while a call for it still waits its turn."""
        since = replica.starting_since or replica.created_at
        if not self._fleet.whole(replica):
            return since + rules.gang_hold_seconds
        called = [node.called_at for node in self._fleet.nodes_of(replica) if node is not None]
        if None in called:
            return None
        return max(since, *(at for at in called if at is not None)) + rules.ready_deadline_seconds

    def begin_drain(self, replica: Replica, now: float, *, reason: str, deadline: float) -> None:
        """Take a replica out of the routes and let it finish what it has."""
        self._fleet.put_replica(
            replace(
                replica,
                state=ReplicaState.DRAINING,
                reason=reason,
                drain_since=now,
                drain_deadline=deadline,
            )
        )
        self._note("drain_started", replica, now, reason=reason, deadline=deadline)

    def call_off_drain(self, replica: Replica, now: float) -> None:
        """Serve again: demand returned before the machines were given back."""
        self._fleet.put_replica(
            replace(
                replica,
                state=ReplicaState.READY,
                reason="drain called off",
                drain_since=None,
                drain_deadline=None,
            )
        )
        self._note("drain_called_off", replica, now)

    def release(self, replica: Replica, now: float, *, reason: str) -> None:
        """Give all machines of a replica back."""
        if replica.drain_since is not None:
            seconds = now - replica.drain_since
            self._note("drain_ended", replica, now, seconds=seconds, reason=reason)
        self._fleet.put_replica(replace(replica, state=ReplicaState.RELEASING, reason=reason))
        self._note("replica_released", replica, now, reason=reason)
        for intent in self._fleet.intents_of(replica.id):
            self._fleet.put_intent(terminating(intent, reason, now))

    def ready(self, replica: Replica, now: float) -> bool:
        """Note that the model answers; True when the replica serves from now on."""
        nodes = self._fleet.nodes_of(replica)
        running = all(n is not None and n.running_at is not None and not n.lost for n in nodes)
        if replica.state is not ReplicaState.STARTING or not running:
            return False
        since = replica.starting_since or replica.created_at
        self._fleet.put_replica(
            replace(replica, state=ReplicaState.READY, ready_at=now, ever_ready=True, reason="")
        )
        self._circuits.succeeded(replica.template.id)
        self._note("replica_ready", replica, now, seconds=now - since)
        return True

    def unready(self, replica: Replica, now: float, reason: str) -> None:
        """Take a replica that stopped serving out of the routes and wait for it again."""
        self._fleet.put_replica(
            replace(replica, state=ReplicaState.STARTING, starting_since=now, reason=reason)
        )
        self._note("replica_unready", replica, now, reason=reason)

    def _settle_intent(self, intent: Intent, now: float, rules: Rules) -> None:
        deadline = launch_deadline_at(intent, rules)
        if deadline is not None and now >= deadline:
            intent = leaving(intent, "not launched in time", now)
            self._fleet.put_intent(intent)
        if not intent.departing or intent.state.ended:
            return
        if intent.instance is None and intent.called_at is None:
            # No call was ever handed out, so there is nothing to wait for.
            self._fleet.put_intent(ended(intent, IntentState.FAILED, intent.departing))
            return
        if intent.state is not IntentState.TERMINATING and (intent.leave_by or 0.0) <= now:
            self._fleet.put_intent_if_changed(terminating(intent, intent.departing, now))

    def _settle_replica(self, replica: Replica, now: float, rules: Rules) -> None:
        match replica.state:
            case ReplicaState.READY:
                if not self._fleet.whole(replica):
                    self.unready(replica, now, self._loss(replica))
            case ReplicaState.STARTING:
                self._settle_starting(replica, now, rules)
            case ReplicaState.DRAINING:
                if not any(True for _ in self._working(replica)):
                    self.release(replica, now, reason="its machines are gone")
                elif replica.drain_deadline is not None and replica.drain_deadline <= now:
                    self.release(replica, now, reason="drain deadline")
            case ReplicaState.RELEASING:
                self._settle_releasing(replica, now)
            case ReplicaState.GONE:
                pass

    def _settle_starting(self, replica: Replica, now: float, rules: Rules) -> None:
        deadline = self._ready_deadline_at(replica, rules)
        if not self._fleet.intents_of(replica.id):
            self.release(replica, now, reason="none of its machines is left")
        elif not self._fleet.whole(replica):
            if deadline is not None and now >= deadline:
                self.release(replica, now, reason="could not be completed")
        elif deadline is not None and now >= deadline:
            ran = all(n is not None and n.running_at for n in self._fleet.nodes_of(replica))
            self.release(replica, now, reason="never became ready")
            # Machines that a cloud never started say nothing about the template.
            if ran and self._circuits.failed(replica.template.id, now, rules):
                self._note("circuit_opened", replica, now, template=replica.template.id)

    def _settle_releasing(self, replica: Replica, now: float) -> None:
        left = self._fleet.intents_of(replica.id)
        for intent in left:
            self._fleet.put_intent_if_changed(terminating(intent, replica.reason, now))
        if not left:
            self._fleet.put_replica(replace(replica, state=ReplicaState.GONE))
            self._note("replica_gone", replica, now, reason=replica.reason)

    def _working(self, replica: Replica) -> Iterator[Intent]:
        """Machines of a draining replica that may still have requests in flight."""
        for intent in self._fleet.intents_of(replica.id):
            if intent.state is not IntentState.TERMINATING and not intent.lost:
                yield intent

    def _loss(self, replica: Replica) -> str:
        reasons = [i.departing for i in self._fleet.intents_of(replica.id) if i.departing]
        return reasons[0] if reasons else "lost a machine"

    def _note(self, event: str, replica: Replica, now: float, **fields: str | float) -> None:
        self._notes.add(
            event,
            now,
            audit=True,
            replica=replica.id,
            model=replica.template.model,
            **fields,
        )


def launch_deadline_at(intent: Intent, rules: Rules) -> float | None:
    """When a create call that brought no machine is given up; None when it does not apply."""
    if not intent.usable or intent.instance is not None or intent.called_at is None:
        return None
    return intent.called_at + rules.launch_deadline_seconds
