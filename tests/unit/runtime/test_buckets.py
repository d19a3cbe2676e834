from __future__ import annotations

import asyncio

import pytest

from corald.runtime.buckets import TokenBucket
from corald.simulation.clock import VirtualClock
from tests.unit.runtime.rig import play


def bucket() -> tuple[TokenBucket, VirtualClock]:
    clock = VirtualClock(asyncio.get_running_loop())
    return TokenBucket(clock, rate=2.0, burst=3), clock


async def taken(of: TokenBucket, clock: VirtualClock, count: int) -> list[float]:
    async def take() -> float:
        await of.take()
        return round(clock.monotonic(), 3)

    return await asyncio.gather(*(take() for _ in range(count)))


def test_a_burst_passes_at_once_and_the_rest_at_the_rate():
    async def act():
        assert await taken(*bucket(), 6) == [0.0, 0.0, 0.0, 0.5, 1.0, 1.5]

    play(act)


def test_an_idle_bucket_fills_up_to_its_burst_and_no_further():
    async def act():
        of, clock = bucket()
        await taken(of, clock, 3)
        await asyncio.sleep(1000.0)
        assert await taken(of, clock, 5) == pytest.approx([1000.0] * 3 + [1000.5, 1001.0])

    play(act)


def test_those_who_wait_are_served_in_their_order():
    async def act():
        of, _ = bucket()
        served: list[int] = []

        async def take(number: int) -> None:
            await of.take()
            served.append(number)

        await asyncio.gather(*(take(n) for n in range(8)))
        assert served == list(range(8))

    play(act)
