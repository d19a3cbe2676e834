"""The machine's clock, made steady: it starts at the wall time and then follows the monotonic one.

A jump of the wall clock (by hand, by NTP, by suspend) therefore changes no decision.
"""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Implements `corald.plugin.Clock` on the running machine."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))
