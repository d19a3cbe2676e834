from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import BIG, SPOT, T0, Cloud, Templates, choice, demand, engine, offers, running_world
from worlds import template as template_of

from corald.core.circuits import Circuits
from corald.core.fleet import Fleet
from corald.core.lifecycle import Lifecycle
from corald.core.notes import Notes
from corald.model.fleet import Intent, IntentState, Replica, ReplicaState
from corald.model.policy import Rules

RULES = Rules(gang_hold_seconds=600.0, ready_deadline_seconds=1200.0)
PAIR = template_of((("4xL4", 1), ("L4", 1)), rate=50.0)


class Scene:
    """A fleet with one gang of two, and the rules that time applies to it."""

    def __init__(self) -> None:
        cloud = Cloud(engine(templates=Templates(PAIR)))
        cloud.engine.apply(offers(), T0)
        cloud.observe()
        cloud.engine.apply(demand(50.0), T0)
        cloud.aim(choice(1, BIG, SPOT, of=PAIR))
        cloud.observe()
        source = cloud.engine.state.fleet
        self.fleet = Fleet(source.live_intents(), source.replicas.values())
        self.circuits = Circuits()
        self.notes = Notes()
        self.lifecycle = Lifecycle(self.fleet, self.circuits, self.notes)

    @property
    def replica(self) -> Replica:
        (replica,) = self.fleet.replicas.values()
        return replica

    @property
    def intents(self) -> list[Intent]:
        return sorted(self.fleet.intents.values(), key=lambda i: i.ordinal)

    def settle(self, now: float) -> None:
        self.lifecycle.settle(now, RULES)

    def put(self, ordinal: int, **changes) -> None:
        self.fleet.put_intent(replace(self.intents[ordinal], **changes))

    def ready(self, now: float) -> None:
        assert self.lifecycle.ready(self.replica, now)

    def noted(self) -> list[str]:
        return [note.event for note in self.notes.take()]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_replica_serves_once_all_its_machines_run(scene):
    scene.put(1, running_at=None)
    assert not scene.lifecycle.ready(scene.replica, T0 + 10)
    scene.put(1, running_at=T0 + 20)
    assert scene.lifecycle.ready(scene.replica, T0 + 30)
    assert scene.replica.state is ReplicaState.READY
    assert (scene.replica.ready_at, scene.replica.ever_ready) == (T0 + 30, True)


def test_a_replica_does_not_serve_with_a_lost_or_leaving_machine(scene):
    scene.put(1, lost=True)
    assert not scene.lifecycle.ready(scene.replica, T0 + 10)
    scene.put(1, lost=False, departing="interrupted")
    assert not scene.lifecycle.ready(scene.replica, T0 + 10)


def test_a_late_word_of_readiness_does_not_revive_a_draining_replica(scene):
    scene.ready(T0)
    scene.lifecycle.begin_drain(scene.replica, T0 + 5, reason="x", deadline=T0 + 600)
    assert not scene.lifecycle.ready(scene.replica, T0 + 10)
    assert scene.replica.state is ReplicaState.DRAINING


def test_a_serving_replica_that_loses_a_machine_stops_serving(scene):
    scene.ready(T0)
    scene.put(0, departing="interrupted", leave_by=T0 + 120)
    scene.settle(T0 + 1)
    assert scene.replica.state is ReplicaState.STARTING
    assert scene.replica.reason == "interrupted"
    assert scene.intents[0].state is IntentState.LAUNCHED


def test_a_leaving_machine_is_given_back_at_its_deadline_and_not_before(scene):
    scene.put(0, departing="interrupted", leave_by=T0 + 110)
    scene.settle(T0 + 109)
    assert scene.intents[0].state is IntentState.LAUNCHED
    scene.settle(T0 + 110)
    assert scene.intents[0].state is IntentState.TERMINATING


def test_a_gang_with_a_hole_is_held_for_a_while_and_then_given_up(scene):
    scene.put(1, state=IntentState.FAILED)
    scene.settle(T0 + 599)
    assert scene.replica.state is ReplicaState.STARTING
    scene.settle(T0 + 600)
    assert scene.replica.state is ReplicaState.RELEASING
    assert scene.intents[0].state is IntentState.TERMINATING


def test_a_replica_that_never_becomes_ready_is_given_up_and_counts_as_a_failure(scene):
    scene.settle(T0 + 1199)
    assert scene.replica.state is ReplicaState.STARTING
    for _ in range(2):
        scene.circuits.failed(PAIR.id, T0, RULES)
    scene.settle(T0 + 1200)
    assert scene.replica.state is ReplicaState.RELEASING
    assert PAIR.id in scene.circuits.open_at(T0 + 1200)


def test_a_replica_without_any_machine_is_given_up_at_once(scene):
    for ordinal in (0, 1):
        scene.put(ordinal, state=IntentState.FAILED)
    scene.settle(T0 + 1)
    assert scene.replica.state is ReplicaState.RELEASING


def test_a_drain_ends_at_its_deadline_and_not_before(scene):
    scene.ready(T0)
    scene.lifecycle.begin_drain(scene.replica, T0 + 10, reason="x", deadline=T0 + 610)
    scene.settle(T0 + 609)
    assert scene.replica.state is ReplicaState.DRAINING
    assert {i.state for i in scene.intents} == {IntentState.LAUNCHED}
    scene.settle(T0 + 610)
    assert scene.replica.state is ReplicaState.RELEASING
    assert {i.state for i in scene.intents} == {IntentState.TERMINATING}


def test_a_drain_keeps_its_deadline_over_a_restart(scene):
    scene.ready(T0)
    scene.lifecycle.begin_drain(scene.replica, T0 + 10, reason="x", deadline=T0 + 610)
    fleet = Fleet(scene.intents, [scene.replica])
    Lifecycle(fleet, Circuits(), Notes()).settle(T0 + 609, RULES)
    assert fleet.replicas[scene.replica.id].state is ReplicaState.DRAINING
    Lifecycle(fleet, Circuits(), Notes()).settle(T0 + 610, RULES)
    assert fleet.replicas[scene.replica.id].state is ReplicaState.RELEASING


def test_a_draining_replica_whose_machines_are_gone_is_done(scene):
    scene.ready(T0)
    scene.lifecycle.begin_drain(scene.replica, T0 + 10, reason="x", deadline=T0 + 610)
    for ordinal in (0, 1):
        scene.put(ordinal, lost=True)
    scene.settle(T0 + 20)
    assert scene.replica.state is ReplicaState.RELEASING


def test_a_drain_that_is_called_off_leaves_no_trace_of_a_deadline(scene):
    scene.ready(T0)
    scene.lifecycle.begin_drain(scene.replica, T0 + 10, reason="x", deadline=T0 + 610)
    scene.lifecycle.call_off_drain(scene.replica, T0 + 20)
    scene.settle(T0 + 9999)
    assert scene.replica.state is ReplicaState.READY
    assert scene.replica.drain_deadline is None


def test_a_released_replica_is_gone_when_its_last_machine_is(scene):
    scene.lifecycle.release(scene.replica, T0 + 10, reason="x")
    scene.put(0, state=IntentState.GONE)
    scene.settle(T0 + 20)
    assert scene.replica.state is ReplicaState.RELEASING
    scene.put(1, state=IntentState.GONE)
    scene.settle(T0 + 30)
    assert scene.replica.state is ReplicaState.GONE


def test_a_released_machine_whose_launch_is_not_answered_waits_for_the_answer(scene):
    scene.put(1, instance=None, state=IntentState.UNKNOWN)
    scene.lifecycle.release(scene.replica, T0 + 10, reason="x")
    scene.settle(T0 + 20)
    assert scene.intents[1].state is IntentState.UNKNOWN
    assert not scene.intents[1].usable
    scene.put(1, instance="i-late", state=IntentState.LAUNCHED)
    scene.settle(T0 + 30)
    assert scene.intents[1].state is IntentState.TERMINATING


@pytest.mark.parametrize("seconds", [1.0, 600.0, 1200.0, 5000.0])
@pytest.mark.parametrize("hole", [False, True])
def test_settling_twice_changes_nothing_more(scene, seconds, hole):
    if hole:
        scene.put(1, state=IntentState.FAILED)
    for _ in range(3):
        scene.settle(T0 + seconds)
    revision = scene.fleet.revision
    scene.noted()
    scene.settle(T0 + seconds)
    assert scene.fleet.revision == revision
    assert scene.noted() == []


def test_what_ended_leaves_memory_with_the_changes_that_store_it(scene):
    scene.fleet.take_changes()
    scene.lifecycle.release(scene.replica, T0 + 10, reason="x")
    for ordinal in (0, 1):
        scene.put(ordinal, state=IntentState.GONE)
    scene.settle(T0 + 20)
    intents, replicas = scene.fleet.take_changes()
    assert {i.state for i in intents} == {IntentState.GONE}
    assert [r.state for r in replicas] == [ReplicaState.GONE]
    assert not scene.fleet.intents
    assert not scene.fleet.replicas
    assert scene.fleet.take_changes() == ((), ())


def test_the_whole_life_of_a_replica_is_told():
    cloud = running_world(1)
    cloud.engine.state.notes.take()
    (replica,) = cloud.engine.state.fleet.replicas.values()
    lifecycle = cloud.engine.lifecycle
    lifecycle.begin_drain(replica, cloud.now, reason="surplus", deadline=cloud.now + 60)
    lifecycle.settle(cloud.now + 60, RULES)
    told = {note.event: note for note in cloud.engine.state.notes.take()}
    assert told["drain_started"].field("reason") == "surplus"
    assert told["drain_ended"].field("seconds") == 60.0
    assert all(note.audit for note in told.values())
