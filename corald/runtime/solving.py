"""Where a solve runs: in a worker process that may be killed, or inline in a simulation.

Every answer passes the independent checker before it leaves here. When the solver gives none in
time, or garbage, the answer is a fallback plan made in the daemon itself, with the reason in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from corald.errors import CoraldError, PlanRejectedError, SolverError
from corald.library import Library
from corald.model.events import Event, Solved, SolveFailed
from corald.model.plan import Solve
from corald.model.problem import Allocation, Problem, SolveReport
from corald.plugin import Clock
from corald.solver.checker import check
from corald.solver.fallback import fall_back
from corald.solver.memory import SolverMemory
from corald.solver.tables import PreparedLibrary
from corald.solver.wire import (
    LENGTH,
    Request,
    body_length,
    decode_answer,
    encode_request,
)

Answered = tuple[Allocation, SolveReport]


class _Fallback:
    """Knows the last plan, and makes a checked plan without the solver."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.prepared = PreparedLibrary(library)
        self.last: Allocation | None = None

    def answer(self, request: Solve, reason: str, clock: Clock) -> Event:
        """A fallback plan that the checker accepts, or SolveFailed."""
        problem = request.problem
        started = clock.monotonic()
        try:
            allocation, report = fall_back(problem, self.prepared, self.last, reason)
            check(problem, self.library, allocation, report)
        except CoraldError as error:
            return SolveFailed(request.generation, f"{reason}; no fallback: {error}", clock.now())
        report = replace(report, seconds=clock.monotonic() - started)
        return Solved(request.generation, allocation, report, clock.now())


class _Worker:
    """One worker process; its reader keeps frames whole whatever is cancelled around it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.unread = 0
        """Requests whose answer was not taken yet; the worker answers each exactly once."""
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read(), name="solver-answers")

    @classmethod
    async def start(cls, command: Sequence[str]) -> _Worker:
        try:
            return cls(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE))
        except OSError as error:
            raise SolverError(f"the solver process cannot be started ({error})") from error

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and not self._reader.done()

    async def ask(self, frame: bytes) -> None:
        """Send a request."""
        self.unread += 1
        self.tell(frame)
        if self.process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # the answer will tell
                await self.process.stdin.drain()

    def tell(self, frame: bytes) -> None:
        """Send something that is not answered by itself."""
        if self.process.stdin is not None:
            self.process.stdin.write(frame)

    async def answer(self) -> bytes:
        """The body of the next answer; a SolverError when the process has ended."""
        body = await self._frames.get()
        if body is None:
            code = await self.process.wait()
            raise SolverError(f"the solver process ended (exit status {code})")
        self.unread -= 1
        return body

    async def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self._reader
        await self.process.wait()

    async def _read(self) -> None:
        stdout = self.process.stdout
        try:
            while stdout is not None:
                length = body_length(await stdout.readexactly(LENGTH.size))
                self._frames.put_nowait(await stdout.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            pass  # the process ended; `None` says so
        except SolverError:
            self.process.kill()  # what it writes is no frame
        self._frames.put_nowait(None)


class ProcessSolving:
    """Solves in one warm worker process, killed when it is late and started anew.

    Encoding, decoding, checking and the fallback run in a thread, so that a large problem does not
    hold up the event loop. A solve whose task is cancelled is stopped in the worker.
    """

    def __init__(
        self,
        library: Library,
        library_path: Path,
        clock: Clock,
        *,
        grace_seconds: float = 1.0,
        cancel_seconds: float = 0.3,
        memory_limit_mib: int = 3072,
    ) -> None:
        self._clock = clock
        self._fallback = _Fallback(library)
        self._command = [
            *(sys.executable, "-m", "corald.solver.worker"),
            *("--library", str(library_path), "--memory-limit-mib", str(memory_limit_mib)),
        ]
        self._grace, self._cancel_seconds = grace_seconds, cancel_seconds
        self._worker: _Worker | None = None
        self._number = 0
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id, if one is there."""
        return None if self._worker is None else self._worker.process.pid

    async def start(self) -> None:
        """Start the worker early, so that it has the library when it is asked."""
        async with self._lock:
            await self._ready()

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        """Answer with Solved; its status is FALLBACK when the worker failed or was late."""
        async with self._lock:
            try:
                allocation, report = await self._ask(request.problem, deadline_seconds)
            except (SolverError, PlanRejectedError) as error:
                event = await self._after_failure(request, str(error))
            else:
                event = Solved(request.generation, allocation, report, self._clock.now())
            if isinstance(event, Solved):
                self._fallback.last = event.allocation
            return event

    async def close(self) -> None:
        """End the worker."""
        async with self._lock:
            await self._kill()

    async def _after_failure(self, request: Solve, reason: str) -> Event:
        await self._kill()
        with contextlib.suppress(SolverError):  # the next solve tries again, and reports it
            await self._ready()
        return await asyncio.to_thread(self._fallback.answer, request, reason, self._clock)

    async def _ask(self, problem: Problem, deadline_seconds: float) -> Answered:
        self._number += 1
        request = Request(self._number, deadline_seconds, problem)
        frame = await asyncio.to_thread(encode_request, request)
        await self._drain()
        worker = await self._ready()
        try:
            async with asyncio.timeout(deadline_seconds + self._grace):
                await worker.ask(frame)
                body = await worker.answer()
        except TimeoutError as error:
            raise SolverError(f"the solver gave no answer in {deadline_seconds:g} s") from error
        except asyncio.CancelledError:
            worker.tell(encode_request(Request(request.number)))
            raise
        return await asyncio.to_thread(self._checked, request, body)

    def _checked(self, request: Request, body: bytes) -> Answered:
        answer = decode_answer(body)
        if answer.number != request.number or request.problem is None:
            raise SolverError("the solver answered another request")
        if answer.allocation is None or answer.report is None:
            raise SolverError(answer.error or "the solver gave an empty answer")
        check(request.problem, self._fallback.library, answer.allocation, answer.report)
        return answer.allocation, answer.report

    async def _ready(self) -> _Worker:
        """The worker; a new one if there is none or it has ended."""
        if self._worker is None or not self._worker.alive:
            await self._kill()
            self._worker = await _Worker.start(self._command)
        return self._worker

    async def _drain(self) -> None:
        """Give a worker that was told to stop a moment to do so; kill it if it does not."""
        worker = self._worker
        try:
            async with asyncio.timeout(self._cancel_seconds):
                while worker is not None and worker.unread:
                    await worker.answer()
        except (TimeoutError, SolverError):
            await self._kill()

    async def _kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()


class InlineSolving:
    """Solves in the caller's own thread, with a work limit instead of a clock: repeatable."""

    def __init__(
        self, library: Library, clock: Clock, *, latency_seconds: float, work_limit: int
    ) -> None:
        # OR-Tools is heavy: a daemon that solves in a worker process does not load it.
        from corald.solver.solve import solve

        self._solve = solve
        self._clock = clock
        self._fallback = _Fallback(library)
        self._memory = SolverMemory()
        self._latency_seconds, self._work_limit = latency_seconds, work_limit

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        """Answer after the modelled latency (at most the deadline)."""
        await self._clock.sleep(min(self._latency_seconds, deadline_seconds))
        try:
            allocation, report = self._solve(
                request.problem,
                self._fallback.prepared,
                deadline=deadline_seconds,
                clock=lambda: 0.0,
                work_limit=self._work_limit,
                memory=self._memory,
            )
            check(request.problem, self._fallback.library, allocation, report)
        except (SolverError, PlanRejectedError) as error:
            return self._fallback.answer(request, str(error), self._clock)
        report = replace(report, seconds=self._latency_seconds)
        self._fallback.last = allocation
        return Solved(request.generation, allocation, report, self._clock.now())

    async def close(self) -> None:
        """Nothing to end."""
