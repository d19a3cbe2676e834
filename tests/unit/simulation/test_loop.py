"""The virtual-time loop: time jumps, sockets are served, orders can be explored."""

from __future__ import annotations

import asyncio
import time

import pytest

from corald.simulation.clock import VirtualClock
from corald.simulation.loop import (
    SimulationStuckError,
    ThreadInSimulationError,
    run_virtual,
)


def test_a_day_of_sleep_passes_at_once():
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(main()) == pytest.approx(86_400)
    assert time.monotonic() - started < 2


def test_timers_fire_in_order_at_exactly_their_times():
    seen: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(wait("late", 7.5), wait("early", 0.1), wait("middle", 3600))

    run_virtual(main())
    assert [name for name, _ in seen] == ["early", "late", "middle"]
    assert [at for _, at in seen] == pytest.approx([0.1, 7.5, 3600])


def test_time_stands_still_while_callbacks_run():
    async def main() -> float:
        time.sleep(0.02)  # noqa: ASYNC251 (a slow callback is the point)
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_a_timeout_ends_on_virtual_time():
    async def main() -> None:
        async with asyncio.timeout(3600):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        run_virtual(main())


def test_waiting_for_nothing_is_an_error_not_a_hang():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationStuckError):
        run_virtual(main())


def test_waiting_for_a_thread_is_refused_with_the_name_of_the_function():
    async def main() -> None:
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(ThreadInSimulationError, match="run"):
        run_virtual(main())


def interleaving(seed: int | None) -> list[int]:
    order: list[int] = []

    async def step(number: int) -> None:
        await asyncio.sleep(1)
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(step(number) for number in range(6)))

    run_virtual(main(), seed=seed)
    return order


def test_a_seed_fixes_the_order_and_seeds_explore_several():
    assert interleaving(1) == interleaving(1)
    assert len({tuple(interleaving(seed)) for seed in range(20)}) > 10
    assert interleaving(None) == interleaving(None)


def test_a_paced_loop_takes_its_wall_time_and_hits_its_timers():
    async def main() -> float:
        await asyncio.sleep(100)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run_virtual(main(), pace=1000) == pytest.approx(100)
    assert 0.09 < time.monotonic() - started < 2


def test_a_paced_loop_serves_sockets_while_it_waits():
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async def main() -> tuple[bytes, float]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        return answer, asyncio.get_running_loop().time()

    answer, at = run_virtual(main(), pace=10)
    assert answer == b"hello\n"
    assert at < 100


def test_a_paced_loop_catches_up_after_a_slow_callback():
    async def main() -> list[float]:
        seen = []
        for _ in range(10):
            await asyncio.sleep(10)
            seen.append(asyncio.get_running_loop().time())
            if len(seen) == 1:
                time.sleep(0.1)  # noqa: ASYNC251 (a slow callback is the point)
        return seen

    started = time.monotonic()
    assert run_virtual(main(), pace=1000) == pytest.approx([10.0 * n for n in range(1, 11)])
    assert time.monotonic() - started < 0.19  # 0.1 of pace; 0.2 if the delay came on top


def test_the_clock_keeps_wall_and_monotonic_time_apart():
    async def main() -> tuple[float, float]:
        clock = VirtualClock(asyncio.get_running_loop(), epoch_seconds=1_000.0)
        await clock.sleep(5)
        clock.shift_wall(-600)
        return clock.now(), clock.monotonic()

    assert run_virtual(main()) == (405.0, 5.0)
