"""A clock that only moves when a test says so."""

from __future__ import annotations

import asyncio


class ManualClock:
    """Implements `corald.plugin.Clock`; `advance` wakes whoever slept long enough, in order."""

    def __init__(self, *, start: float = 1_767_225_600.0) -> None:
        self._start = start
        self._now = start
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now - self._start

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + max(0.0, seconds), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Move the clock, stopping at every sleeper's time so that it acts at that time."""
        target = self._now + seconds
        await self._settle()
        while due := [s for s in self._sleepers if s[0] <= target]:
            first = min(due, key=lambda sleeper: sleeper[0])
            self._sleepers.remove(first)
            self._now = max(self._now, first[0])
            if not first[1].done():
                first[1].set_result(None)
            await self._settle()
        self._now = target

    async def _settle(self) -> None:
        for _ in range(20):  # a woken task may wake others in turn
            await asyncio.sleep(0)
