"""The simulated event log: it outlives its reader and is read from the stored offset."""

from __future__ import annotations

import asyncio

import pytest

from corald.model.events import ConsumerHealth, DemandObserved, Offset
from corald.simulation.broker import BATCH_LIMIT, TOPIC, Log, LogSource
from corald.simulation.clock import VirtualClock
from corald.simulation.demand import DemandShape, demand_events, generate_day
from corald.simulation.loop import run_virtual

DAY = generate_day([DemandShape("m", 1.0, 10, 10, peak_hour=1)], seed=1)
EVENTS = tuple(demand_events(DAY, source="meter", start_at=0.0))


def consume(log: Log, offsets=(), *, seconds: float = 1.0):
    async def main():
        batches = []

        async def deliver(batch):
            batches.append(batch)

        clock = VirtualClock(asyncio.get_running_loop())
        source = LogSource(log, clock, offsets=offsets)
        reader = asyncio.create_task(source.run(deliver))
        await asyncio.sleep(seconds)
        reader.cancel()
        return batches

    return run_virtual(main())


def test_a_source_first_says_that_it_is_healthy():
    first, *rest = consume(Log())
    assert isinstance(first.events[0], ConsumerHealth)
    assert first.events[0].healthy
    assert rest == []


def test_records_come_in_order_in_batches_with_the_offset_after_them():
    log = Log()
    log.append(EVENTS)
    _, *batches = consume(log)
    assert tuple(event for batch in batches for event in batch.events) == EVENTS
    assert max(len(batch.events) for batch in batches) == BATCH_LIMIT
    assert batches[-1].offsets == (Offset(TOPIC, 0, len(EVENTS)),)


def test_a_new_reader_goes_on_from_the_stored_offset():
    log = Log()
    log.append(EVENTS[:5])
    _, batch = consume(log, [Offset(TOPIC, 0, 3), Offset("other", 0, 5)])
    assert batch.events == EVENTS[3:5]


def test_a_waiting_reader_wakes_when_records_arrive():
    async def main():
        log = Log()
        got = asyncio.create_task(log.read(0))
        await asyncio.sleep(10)
        assert not got.done()
        log.append(EVENTS[:1])
        return await got

    (event,) = run_virtual(main())
    assert isinstance(event, DemandObserved)


def test_dropped_records_are_gone_and_offsets_go_on():
    async def main():
        log = Log()
        log.append(EVENTS[:4])
        log.drop_before(3)
        log.append(EVENTS[4:5])
        assert len(log) == 5
        assert await log.read(3) == EVENTS[3:5]
        with pytest.raises(IndexError, match="dropped"):
            await log.read(2)

    run_virtual(main())
