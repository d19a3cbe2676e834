"""Deaths at named points: what took effect stays, what did not never will."""

from __future__ import annotations

import asyncio

import pytest

from corald.model.events import Batch
from corald.model.state import Changes, StoredState
from corald.simulation.failpoints import FailPoints, Killed, Life, MortalSource, MortalStore


class MemoryStore:
    def __init__(self):
        self.commits = []

    async def load(self):
        return StoredState()

    async def commit(self, changes):
        self.commits.append(changes)

    async def audit(self, limit):
        return ()

    async def close(self):
        pass


def lived():
    points = FailPoints()
    deaths = []
    store = MemoryStore()
    life = Life(points, lambda: deaths.append("dead"))
    return points, life, store, MortalStore(store, life), deaths


def test_nothing_dies_unless_armed_and_visits_are_counted():
    points, _, store, mortal, deaths = lived()
    asyncio.run(mortal.commit(Changes()))
    assert store.commits == [Changes()]
    assert points.visits == {"store.commit:before": 1, "store.commit:after": 1}
    assert deaths == []


@pytest.mark.parametrize(("point", "kept"), [("before", 1), ("after", 2)])
def test_a_death_at_a_later_visit_keeps_what_was_durable_by_then(point, kept):
    points, _, store, mortal, deaths = lived()
    points.arm(f"store.commit:{point}", after=1)
    asyncio.run(mortal.commit(Changes()))
    with pytest.raises(Killed):
        asyncio.run(mortal.commit(Changes()))
    assert len(store.commits) == kept
    assert deaths == ["dead"]


def test_the_dead_have_no_effect_and_die_only_once():
    points, life, store, mortal, deaths = lived()
    life.end()
    life.end()
    with pytest.raises(Killed):
        asyncio.run(mortal.commit(Changes()))
    assert store.commits == []
    assert deaths == ["dead"]
    assert points.visits == {}


def test_a_death_after_delivery_leaves_the_batch_applied():
    points, life, *_ = lived()
    applied = []

    class OneBatch:
        name = "one"

        async def run(self, deliver):
            await deliver(Batch())

    async def deliver(batch):
        applied.append(batch)

    points.arm("events.deliver:after")
    with pytest.raises(Killed):
        asyncio.run(MortalSource(OneBatch(), life).run(deliver))
    assert applied == [Batch()]


def test_no_handler_of_ordinary_errors_survives_a_death():
    assert not issubclass(Killed, Exception)
