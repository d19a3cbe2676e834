"""Token buckets: how often a provider is called, whatever the planner wishes."""

from __future__ import annotations

from corald.plugin import Clock


class TokenBucket:
    """Lets `rate` calls a second through, `burst` at once; waits instead of refusing."""

    def __init__(self, clock: Clock, *, rate: float, burst: int) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = clock.monotonic()

    async def take(self) -> None:
        """Wait for a token. Each caller reserves its place, so that none starves."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1.0
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / self._rate)
