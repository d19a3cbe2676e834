from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from corald.model.events import ReplicaReady, RequestsInFlight
from corald.model.fleet import ReplicaState
from corald.runtime.ports import ReplicaView
from corald.runtime.readiness import ModelledReadiness
from tests.unit.core.worlds import (
    BIG,
    SPOT,
    T0,
    Cloud,
    Templates,
    choice,
    demand,
    engine,
    offers,
    template,
)

PAIR = template((("4xL4", 1), ("L4", 1)), rate=50.0)


def view(**changes) -> ReplicaView:
    """A gang of two whose machines run since T0, starting."""
    cloud = Cloud(engine(templates=Templates(PAIR)))
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(50.0), T0)
    cloud.aim(choice(1, BIG, SPOT, of=PAIR))
    (replica,) = cloud.engine.state.fleet.replicas.values()
    intents = sorted(cloud.engine.state.fleet.live_intents(), key=lambda i: i.ordinal)
    running = tuple(replace(i, running_at=T0 + i.ordinal) for i in intents)
    return ReplicaView(replace(replica, **changes), running)


def observed(seen: ReplicaView, now: float):
    readiness = ModelledReadiness(lambda _: 100.0, drain_seconds=30.0)
    return list(asyncio.run(readiness.observe([seen], [], now)))


def test_a_replica_serves_when_its_last_machine_has_loaded():
    assert observed(view(), T0 + 100.9) == []
    assert observed(view(), T0 + 101) == [ReplicaReady(view().replica.id, T0 + 101)]


@pytest.mark.parametrize(
    "fault", [{"running_at": None}, {"lost": True}, {"departing": "interrupted"}]
)
def test_a_gang_does_not_serve_while_a_machine_is_missing(fault):
    whole = view()
    broken = replace(whole, intents=(whole.intents[0], replace(whole.intents[1], **fault)))
    assert observed(broken, T0 + 5000) == []
    assert observed(replace(whole, intents=whole.intents[:1]), T0 + 5000) == []


def test_a_serving_replica_is_not_announced_again():
    assert observed(view(state=ReplicaState.READY), T0 + 5000) == []


def test_a_drain_is_taken_to_be_done_after_a_while():
    draining = view(state=ReplicaState.DRAINING, drain_since=T0 + 50)
    assert observed(draining, T0 + 79) == []
    assert observed(draining, T0 + 80) == [RequestsInFlight(draining.replica.id, 0, T0 + 80)]
