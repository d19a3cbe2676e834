"""The fleet as far as it is known: intents (requested), what listings showed, and replicas.

Every change goes through `put_intent` and `put_replica`, which remember what must be stored.
Absence needs proof here: no error, partial or early listing ever makes a machine GONE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from corald.model.fleet import (
    Instance,
    InstanceState,
    Intent,
    IntentState,
    Replica,
    ReplicaState,
)
from corald.model.policy import Rules


class Fleet:
    """Intents and replicas by id, with those that changed since they were last taken."""

    def __init__(self, intents: Iterable[Intent] = (), replicas: Iterable[Replica] = ()) -> None:
        self._intents: dict[str, Intent] = {}
        self._by_replica: dict[str, dict[str, None]] = {}
        self._by_instance: dict[tuple[str, str], str] = {}
        for intent in intents:
            self.refresh_intent(intent)
        self._replicas = {r.id: r for r in replicas}
        self._changed_intents: dict[str, None] = {}
        self._changed_replicas: dict[str, None] = {}
        self.revision = 0
        """Rises with every change worth storing."""

    @property
    def intents(self) -> Mapping[str, Intent]:
        return self._intents

    @property
    def replicas(self) -> Mapping[str, Replica]:
        return self._replicas

    def put_intent(self, intent: Intent) -> None:
        self.refresh_intent(intent)
        self._changed_intents[intent.id] = None
        self.revision += 1

    def put_intent_if_changed(self, intent: Intent) -> None:
        if self._intents.get(intent.id) != intent:
            self.put_intent(intent)

    def refresh_intent(self, intent: Intent) -> None:
        """Replace an intent without storing it: nothing durable changed."""
        self._intents[intent.id] = intent
        self._by_replica.setdefault(intent.replica, {})[intent.id] = None
        if intent.instance is not None:
            self._by_instance[intent.request.offering.provider, intent.instance] = intent.id

    def put_replica(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica
        self._changed_replicas[replica.id] = None
        self.revision += 1

    def take_changes(self) -> tuple[tuple[Intent, ...], tuple[Replica, ...]]:
        """What must be stored; ended intents and gone replicas leave memory with it."""
        intents = tuple(self._intents[i] for i in self._changed_intents)
        replicas = tuple(self._replicas[r] for r in self._changed_replicas)
        self._changed_intents.clear()
        self._changed_replicas.clear()
        for replica in replicas:
            if replica.state is ReplicaState.GONE:
                del self._replicas[replica.id]
        for intent in intents:
            if intent.state.ended:
                self._forget(intent)
        return intents, replicas

    def _forget(self, intent: Intent) -> None:
        del self._intents[intent.id]
        siblings = self._by_replica[intent.replica]
        del siblings[intent.id]
        if not siblings:
            del self._by_replica[intent.replica]
        if intent.instance is not None:
            self._by_instance.pop((intent.request.offering.provider, intent.instance), None)

    # Queries

    def live_intents(self) -> list[Intent]:
        """Everything that exists or may exist."""
        return [i for i in self._intents.values() if not i.state.ended]

    def intents_of(self, replica: str) -> list[Intent]:
        """All live machines of a replica, leavers included."""
        siblings = (self._intents[i] for i in self._by_replica.get(replica, ()))
        return [i for i in siblings if not i.state.ended]

    def nodes_of(self, replica: Replica) -> list[Intent | None]:
        """The machine in each of the replica's slots; None is a hole."""
        slots: list[Intent | None] = [None] * len(replica.offerings)
        for intent in self.intents_of(replica.id):
            if intent.usable:
                slots[intent.ordinal] = intent
        return slots

    def whole(self, replica: Replica) -> bool:
        """Whether every slot has a machine, started or on its way, and none is lost."""
        return all(node is not None and not node.lost for node in self.nodes_of(replica))

    def advised(self, replica: Replica) -> bool:
        """Whether the cloud advises to leave one of the replica's machines."""
        return any(i.advised for i in self.intents_of(replica.id))

    def by_instance(self, provider: str, instance: str) -> Intent | None:
        name = self._by_instance.get((provider, instance))
        return None if name is None else self._intents[name]


def seen(intent: Intent, instance: Instance, asked_at: float) -> Intent:
    """What a listing that shows the machine makes of its intent."""
    known = replace(
        intent,
        instance=instance.id,
        instance_state=instance.state,
        address=instance.address or intent.address,
        seen_at=asked_at,
        missing_since=None,
        lost=False,
        unknown_since=None,
        launched_at=intent.launched_at or instance.launched_at or asked_at,
    )
    if instance.state is InstanceState.TERMINATED:
        return ended(known, IntentState.GONE, instance.state_reason or intent.reason)
    if instance.state is InstanceState.RUNNING and known.running_at is None:
        known = replace(known, running_at=asked_at)
    if intent.state is IntentState.TERMINATING:
        return known
    known = replace(known, state=IntentState.LAUNCHED)
    if intent.state.ended:
        return replace(known, departing="appeared after it was given up", leave_by=asked_at)
    if instance.state in (InstanceState.STOPPING, InstanceState.STOPPED) and not known.departing:
        return replace(known, departing=f"cloud: {instance.state}", leave_by=asked_at)
    return known


def absent(intent: Intent, asked_at: float, rules: Rules, *, calling: bool) -> Intent:
    """What a *complete* listing that does not show the machine makes of its intent.

    While a create call is under way (`calling`) nothing is concluded about its machine.
    """
    known = (
        intent.created_at,
        intent.called_at,
        intent.launched_at,
        intent.seen_at,
        intent.unknown_since,
    )
    confirmed = max(at for at in known if at is not None)
    if asked_at <= confirmed:
        return intent
    if intent.missing_since is None:
        return replace(intent, missing_since=asked_at)
    twice = asked_at - intent.missing_since >= rules.gone_gap_seconds
    age = asked_at - intent.created_at
    if intent.instance is None:
        # Never seen at all: the call failed, unless its answer is still to come.
        given_up = intent.state is IntentState.UNKNOWN or bool(intent.departing)
        proven = given_up and not calling and twice and age > rules.lost_after_seconds
        why = intent.reason or "never appeared"
        return ended(intent, IntentState.FAILED, why) if proven else intent
    if twice and age > rules.gone_age_seconds:
        return ended(intent, IntentState.GONE, intent.reason or "absent from the cloud")
    # `seen_at` is not kept over a restart, so absence counts from its first proof.
    lost = asked_at - intent.missing_since >= rules.lost_after_seconds
    return replace(intent, lost=lost)


def ended(intent: Intent, state: IntentState, reason: str) -> Intent:
    """Close an intent."""
    return replace(intent, state=state, reason=reason, lost=False)


def leaving(intent: Intent, why: str, leave_by: float) -> Intent:
    """Take a machine out of its replica; the earliest deadline stands."""
    earlier = leave_by if intent.leave_by is None else min(intent.leave_by, leave_by)
    return replace(intent, departing=intent.departing or why, leave_by=earlier)


def terminating(intent: Intent, why: str, now: float) -> Intent:
    """Decide to give a machine back; driven until the cloud confirms."""
    if intent.state is IntentState.TERMINATING or intent.state.ended:
        return intent
    if intent.instance is None:
        # The create call may still take effect: wait for its answer, then terminate.
        return leaving(intent, why, now)
    return replace(
        intent,
        state=IntentState.TERMINATING,
        departing=intent.departing or why,
        reason=why,
        terminating_since=now,
    )
