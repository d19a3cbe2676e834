"""The one event loop on virtual time: for unit tests, seeded exploration and the paced demo.

Virtual time stands still while callbacks run. When nothing is ready it moves to the next timer: at
once, or, when paced, after the wall-clock time that the pace asks for, serving sockets meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

TIMER_RESOLUTION_SECONDS = 1e-6
"""Epoch seconds made of loop time round to about 2e-7; no timer shall wait for such a rest."""
CATCH_UP_SECONDS = 5.0
"""Wall time that a paced loop makes up for; what it lost beyond (a suspended machine) is lost."""

T = TypeVar("T")
Args = TypeVarTuple("Args")
Ready = list[tuple[selectors.SelectorKey, int]]
Poll = Callable[[float | None], Ready]


class SimulationStuckError(RuntimeError):
    """Every task waits, and no timer could ever wake one."""


class ThreadInSimulationError(RuntimeError):
    """Something wants to wait for a thread, beside which virtual time would race ahead."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is virtual and starts at 0.

    `pace` is virtual seconds per wall second; None jumps. A paced loop that fell behind catches up
    without skipping a timer, so that what happens does not depend on the speed of the machine.
    `seed` runs ready callbacks in a seeded random order, to explore interleavings.
    """

    _ready: deque[asyncio.Handle]  # of BaseEventLoop, in every version so far

    def __init__(self, *, pace: float | None = None, seed: int | None = None) -> None:
        self._pace = pace
        self._virtual_now = 0.0
        self._wall_origin: float | None = None
        super().__init__(_WatchedSelector(self._wait))
        self._clock_resolution = TIMER_RESOLUTION_SECONDS
        if seed is not None:
            self._ready = _ShuffledQueue(seed)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], T], *args: *Args
    ) -> asyncio.Future[T]:
        """Refuse unless paced: an unpaced loop would not wait for the thread."""
        if self._pace is None:
            name = getattr(func, "__qualname__", repr(func))
            raise ThreadInSimulationError(
                f"{name} would run in a thread, and virtual time does not wait for threads: "
                "use an inline part or a paced loop"
            )
        return super().run_in_executor(executor, func, *args)

    def _wait(self, idle: float | None, poll: Poll) -> Ready:
        """Wait for sockets or the next timer, `idle` virtual seconds ahead (None: no timer)."""
        if self._pace is not None:
            return self._wait_paced(self._pace, idle, poll)
        ready = poll(0)
        if not ready and idle is None:
            raise SimulationStuckError("every task waits and no timer is set")
        if not ready and idle is not None:
            self._virtual_now += idle
        return ready

    def _wait_paced(self, pace: float, idle: float | None, poll: Poll) -> Ready:
        if self._wall_origin is None:
            self._wall_origin = time.monotonic() - self._virtual_now / pace
        if idle is None:
            ready = poll(None)
        else:
            early = self._wall_origin + (self._virtual_now + idle) / pace - time.monotonic()
            self._wall_origin += max(0.0, -early - CATCH_UP_SECONDS)
            ready = poll(max(0.0, early))
        reached = (time.monotonic() - self._wall_origin) * pace
        if idle is not None:
            timer = self._virtual_now + idle
            reached = min(reached, timer) if ready else timer
        self._virtual_now = max(self._virtual_now, reached)
        return ready


def run_virtual(
    main: Coroutine[Any, Any, T], *, pace: float | None = None, seed: int | None = None
) -> T:
    """Run `main` on virtual time, as `asyncio.run` does on real time."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(pace=pace, seed=seed)) as runner:
        return runner.run(main)


class _WatchedSelector(selectors.DefaultSelector):
    """The real selector, which asks the loop how long to wait."""

    def __init__(self, wait: Callable[[float | None, Poll], Ready]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> Ready:
        return self._wait(timeout, super().select)


class _ShuffledQueue(deque[asyncio.Handle]):
    """A queue of ready callbacks that hands out any of them next."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)  # noqa: S311 (exploration, not secrecy)

    def popleft(self) -> asyncio.Handle:
        self.rotate(-self._random.randrange(len(self)))
        return super().popleft()
