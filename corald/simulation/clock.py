"""The clock of a simulation: the virtual time of its loop, as wall and as monotonic time."""

from __future__ import annotations

import asyncio

DEFAULT_EPOCH = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


class VirtualClock:
    """Implements `corald.plugin.Clock` on a loop; the wall clock can be moved, the other cannot."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, epoch_seconds: float = DEFAULT_EPOCH
    ) -> None:
        self._loop = loop
        self._epoch_seconds = epoch_seconds

    def now(self) -> float:
        """Epoch seconds on the (movable) wall clock."""
        return self._epoch_seconds + self._loop.time()

    def monotonic(self) -> float:
        """Seconds since the loop was made."""
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """Wait for virtual time to pass."""
        await asyncio.sleep(seconds)

    def shift_wall(self, seconds: float) -> None:
        """Step the wall clock, as a bad time server would."""
        self._epoch_seconds += seconds
