"""What will happen when: a queue of actions, run by whoever knows the time."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], object]


class Agenda:
    """Actions in order of their time; of equal times, the one planned first goes first."""

    def __init__(self, start: float) -> None:
        self.now = start
        self._heap: list[tuple[float, int, Action]] = []
        self._planned = 0

    def plan(self, seconds: float, action: Action) -> None:
        """Run `action` once, `seconds` from now."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now + seconds, self._planned, action))

    def advance(self, now: float) -> None:
        """Run everything due until `now`, each at its own time; time never runs back."""
        while self._heap and self._heap[0][0] <= now:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = max(self.now, now)
