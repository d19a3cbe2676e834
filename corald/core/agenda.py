"""When to decide and when to solve: what has changed, how urgent it is, which solve is under way.

Deciding is cheap and may happen at any time; a solve is debounced, except after a loss.
"""

from __future__ import annotations

from corald.model.plan import Solve
from corald.model.policy import Rules
from corald.model.problem import Problem

AT_ONCE = frozenset({"policy", "pause"})
"""What makes a new plan without waiting for more news."""


class Agenda:
    """The engine's sense of what is due."""

    def __init__(self, now: float) -> None:
        self.generation = 0
        self.trigger = "start"
        """Of the newest solve."""
        self.urgent = False
        """Decide with the next turn."""
        self._solving: int | None = None
        self._problem: Problem | None = None
        self._problem_at = 0.0
        self._decided_at = now
        self._dirty_since: float | None = now
        self._loss = ""
        self._triggers = {"start"}
        self._expiry_at: float | None = None
        self._window_at: float | None = None

    @property
    def solving(self) -> bool:
        """Whether a solve is under way, for the fleet as it was when it began."""
        return self._solving is not None

    def mark(self, trigger: str, now: float) -> None:
        """Something that a plan depends on has changed."""
        self._triggers.add(trigger)
        if self._dirty_since is None:
            self._dirty_since = now

    def lost(self, how: str) -> None:
        """Capacity was lost: decide at once and give up a solve in flight."""
        self._loss = self._loss or how
        self.urgent = True

    def decided(self, now: float, *, expiry_at: float | None, window_at: float | None) -> None:
        """Close a decision; say when a mark ends and when a window lets demand move."""
        self.urgent, self._decided_at = False, now
        self._expiry_at, self._window_at = expiry_at, window_at

    def next_wakeup(self, now: float, rules: Rules, *, synced: bool) -> float:
        """When the next decision is due, as far as events and plans go."""
        if self.urgent:
            return now
        times = [self._decided_at + rules.resolve_every_seconds]
        if self._dirty_since is not None and not self.solving and synced:
            times.append(self._dirty_since + rules.debounce_seconds)
        times.extend(t for t in (self._expiry_at, self._window_at) if t is not None)
        return min(times)

    def solve_wanted(self, now: float, rules: Rules, *, planned: bool) -> bool:
        """Whether a solve is worth while now; `planned` says that there is a plan already."""
        urgent = self._urgent_solve
        since = self._dirty_since
        waited = since is not None and now >= since + rules.debounce_seconds
        expired = self._expiry_at is not None and now >= self._expiry_at
        if expired and self._dirty_since is None:
            self._dirty_since = now  # stays due when a solve under way is not given up for it
        wanted = urgent or waited or expired or not planned or self._periodic(now, rules)
        return wanted and (urgent or not self.solving)

    def begin_solve(self, problem: Problem, now: float, rules: Rules) -> Solve | None:
        """Pose a problem, unless it is the one whose answer is in force."""
        trigger = self._loss or next(iter(sorted(self._triggers)), "periodic")
        urgent = self._urgent_solve
        unchanged = problem == self._problem and not self._periodic(now, rules)
        self._loss, self._dirty_since = "", None
        self._triggers.clear()
        if unchanged:
            return None
        self._problem, self._problem_at = problem, now
        self.generation += 1
        self._solving, self.trigger = self.generation, trigger
        return Solve(self.generation, problem, trigger, urgent=urgent)

    def end_solve(self, generation: int) -> bool:
        """Take an answer; False when it belongs to a solve that was given up."""
        if generation != self._solving:
            return False
        self._solving = None
        return True

    def ask_again(self, now: float) -> None:
        """The last solve gave no answer: pose the same problem once more."""
        self._problem = None
        self.mark("solver", now)

    @property
    def _urgent_solve(self) -> bool:
        return bool(self._loss or self._triggers & AT_ONCE)

    def _periodic(self, now: float, rules: Rules) -> bool:
        return now >= self._problem_at + rules.resolve_every_seconds
