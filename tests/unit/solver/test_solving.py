"""The worker process seen from the daemon: it may hang, die or talk nonsense at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from corald.library import write_library
from corald.model.events import Solved, SolveFailed
from corald.model.plan import Solve
from corald.model.problem import SolveStatus
from corald.runtime.clock import SystemClock
from corald.runtime.solving import InlineSolving, ProcessSolving
from corald.solver.checker import check
from corald.solver.solve import solve
from tests.unit.solver.worlds import random_world

WORLD = random_world(3, rules=False, plenty=30)
DEADLINE = 20.0


@pytest.fixture
def library_path(tmp_path):
    path = tmp_path / "library.clt"
    write_library(path, WORLD.library)
    return path


def request(generation=1, problem=WORLD.problem):
    return Solve(generation, problem, "test")


def run(library_path, scenario, **options):
    async def main():
        solving = ProcessSolving(WORLD.library, library_path, SystemClock(), **options)
        try:
            return await asyncio.wait_for(scenario(solving), 60)
        finally:
            await solving.close()

    return asyncio.run(main())


def accepted(event, problem=WORLD.problem):
    assert isinstance(event, Solved)
    check(problem, WORLD.library, event.allocation, event.report)
    return event.report


def test_the_worker_answers_as_the_solver_does_and_stays_for_the_next_problem(library_path):
    async def scenario(solving):
        first = await solving.solve(request(1), deadline_seconds=DEADLINE)
        pid = solving.pid
        second = await solving.solve(request(2), deadline_seconds=DEADLINE)
        return first, second, pid == solving.pid

    first, second, same = run(library_path, scenario)

    expected, _ = solve(WORLD.problem, WORLD.library, deadline=9.0, clock=time.monotonic)
    assert accepted(first).status is SolveStatus.PROVEN
    assert first.allocation == expected
    assert (first.generation, second.generation, same) == (1, 2, True)


def test_a_worker_that_hangs_is_killed_at_the_deadline_and_a_fallback_answers(library_path):
    async def scenario(solving):
        await solving.solve(request(1), deadline_seconds=DEADLINE)
        pid = solving.pid
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        late = await solving.solve(request(2), deadline_seconds=0.3)
        seconds = time.monotonic() - started
        after = await solving.solve(request(3), deadline_seconds=DEADLINE)
        return late, seconds, after, pid

    late, seconds, after, pid = run(library_path, scenario, grace_seconds=0.2)

    report = accepted(late)
    assert report.status is SolveStatus.FALLBACK
    assert "gave no answer in 0.3 s" in report.messages[0]
    assert seconds < 10.0
    assert accepted(after).status is SolveStatus.PROVEN
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_killed_before_or_during_a_solve_is_replaced(library_path):
    async def scenario(solving):
        await solving.start()
        os.kill(solving.pid, signal.SIGKILL)
        died = await solving.solve(request(1), deadline_seconds=DEADLINE)
        task = asyncio.create_task(solving.solve(request(2), deadline_seconds=DEADLINE))
        os.kill(solving.pid, signal.SIGSTOP)  # so that it is certainly not done yet
        await asyncio.sleep(0.1)
        os.kill(solving.pid, signal.SIGKILL)
        return died, await task, await solving.solve(request(3), deadline_seconds=DEADLINE)

    died, during, after = run(library_path, scenario)

    assert accepted(died).status in {SolveStatus.FALLBACK, SolveStatus.PROVEN}
    assert accepted(during).status is SolveStatus.FALLBACK
    assert "ended (exit status -9)" in during.report.messages[0]
    assert accepted(after).status is SolveStatus.PROVEN


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        ("b'\\xff' * 64", "ended"),
        ("b'\\x00\\x00\\x00\\x05hello'", "a frame is garbage"),
        ("b'\\x00\\x00\\x00\\x0c{\"number\":9}'", "another request"),
        ("b'\\x00\\x00\\x00\\x0c{\"number\":1}'", "an empty answer"),
        ("b''", "ended"),
    ],
)
def test_garbage_from_the_worker_gives_a_fallback(library_path, garbage, reason):
    code = (
        f"import sys; sys.stdin.buffer.read(4); garbage = {garbage};"
        "sys.stdout.buffer.write(garbage); sys.stdout.flush();"
        "garbage and sys.stdin.read()"
    )

    async def scenario(solving):
        solving._command = [sys.executable, "-c", code]
        return await solving.solve(request(), deadline_seconds=DEADLINE)

    report = accepted(run(library_path, scenario))

    assert report.status is SolveStatus.FALLBACK
    assert reason in report.messages[0]


def test_a_plan_that_the_checker_refuses_is_replaced_by_a_fallback(library_path):
    code = (
        "import sys; from corald.solver import worker, wire; real = worker.solve\n"
        "def lie(problem, *args, **kwargs):\n"
        "    allocation, report = real(problem, *args, **kwargs)\n"
        "    return type(allocation)(allocation.choices[1:]), report\n"
        "worker.solve = lie; worker.main()"
    )

    async def scenario(solving):
        solving._command = [sys.executable, "-c", code, "--library", str(library_path)]
        return await solving.solve(request(), deadline_seconds=DEADLINE)

    report = accepted(run(library_path, scenario))

    assert report.status is SolveStatus.FALLBACK
    assert "plan rejected" in report.messages[0]


def test_a_worker_that_cannot_have_enough_memory_gives_a_fallback(library_path):
    async def scenario(solving):
        return await solving.solve(request(), deadline_seconds=DEADLINE)

    report = accepted(run(library_path, scenario, memory_limit_mib=40))

    assert report.status is SolveStatus.FALLBACK


def test_a_cancelled_solve_leaves_the_worker_ready_for_the_next(library_path):
    code = (
        "import math, time; from corald.solver import worker; real = worker.solve\n"
        "def slow(problem, *args, clock, **options):\n"
        "    while problem.gap == 0.5 and clock() < math.inf:\n"
        "        time.sleep(0.01)\n"
        "    return real(problem, *args, clock=clock, **options)\n"
        "worker.solve = slow; worker.main()"
    )

    async def scenario(solving):
        solving._command = [sys.executable, "-c", code, "--library", str(library_path)]
        await solving.solve(request(1), deadline_seconds=DEADLINE)
        pid = solving.pid
        endless = request(2, replace(WORLD.problem, gap=0.5))
        task = asyncio.create_task(solving.solve(endless, deadline_seconds=DEADLINE))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await solving.solve(request(3), deadline_seconds=DEADLINE), pid == solving.pid

    after, same = run(library_path, scenario, cancel_seconds=5.0)

    assert accepted(after).status is SolveStatus.PROVEN
    assert after.generation == 3
    assert same


def test_a_worker_deaf_to_cancellation_is_killed_for_the_next_solve(library_path):
    async def scenario(solving):
        await solving.solve(request(1), deadline_seconds=DEADLINE)
        pid = solving.pid
        os.kill(pid, signal.SIGSTOP)
        task = asyncio.create_task(solving.solve(request(2), deadline_seconds=DEADLINE))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await solving.solve(request(3), deadline_seconds=DEADLINE), pid == solving.pid

    after, same = run(library_path, scenario, cancel_seconds=0.1)

    assert accepted(after).status is SolveStatus.PROVEN
    assert not same


def test_a_problem_that_even_the_fallback_cannot_read_is_a_failed_solve(library_path):
    async def scenario(solving):
        foreign = replace(WORLD.problem, library="other")
        failed = await solving.solve(request(1, foreign), deadline_seconds=DEADLINE)
        return failed, await solving.solve(request(2), deadline_seconds=DEADLINE)

    failed, after = run(library_path, scenario)

    assert isinstance(failed, SolveFailed)
    assert "is for library other" in failed.message
    assert accepted(after).status is SolveStatus.PROVEN


def test_the_event_loop_runs_on_while_a_solve_is_under_way(library_path):
    async def scenario(solving):
        task = asyncio.create_task(solving.solve(request(), deadline_seconds=DEADLINE))
        longest = 0.0
        while not task.done():
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
            await asyncio.sleep(0.001)
        return await task, longest

    event, longest = run(library_path, scenario)

    accepted(event)
    assert longest < 0.5


class VirtualClock:
    """Time that only moves by sleeping."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    monotonic = now

    async def sleep(self, seconds):
        self.time += seconds


def test_inline_solving_takes_the_modelled_time_and_is_repeatable():
    def answers():
        clock = VirtualClock()
        solving = InlineSolving(WORLD.library, clock, latency_seconds=0.5, work_limit=50)

        async def scenario():
            return [await solving.solve(request(n), deadline_seconds=9.0) for n in (1, 2)]

        return asyncio.run(scenario())

    first, second = answers(), answers()

    assert first == second
    assert [event.at for event in first] == [0.5, 1.0]
    assert accepted(first[0]).status is SolveStatus.PROVEN
