"""Stabilisation: what demand to plan for, given what was known at each recent decision."""

from __future__ import annotations


class StabilityWindow:
    """Follows a level upwards after one delay and downwards after another.

    The level in use rises to the lowest level of the last `up` seconds and falls to the highest of
    the last `down` seconds, so one jittery sample neither starts nor prevents a move.
    """

    def __init__(self, *, now: float, floor: float) -> None:
        """Begin at `floor`, what runs already: a restart never shrinks before a full window."""
        self._known: list[tuple[float, float]] = [(now, floor)] if floor > 0 else []
        self._used = floor

    @property
    def used(self) -> float:
        return self._used

    @property
    def last(self) -> float | None:
        """The newest level recorded."""
        return self._known[-1][1] if self._known else None

    def update(self, now: float, level: float, *, up: float, down: float) -> float:
        """Record what is known now and answer the level to use."""
        if not self._known or self._known[-1][1] != level:
            self._known.append((now, level))
        self._forget(now, max(up, down))
        self._used = min(max(self._used, min(self._within(now, up))), max(self._within(now, down)))
        return self._used

    def next_change(self, now: float, *, up: float, down: float) -> float | None:
        """When the level in use may move although nothing new is known; None if never."""
        level = self._known[-1][1] if self._known else self._used
        if level == self._used:
            return None
        delay = up if level > self._used else down
        ends = [end + delay for end in self._ends()]
        return min((end for end in ends if end > now), default=None)

    def _ends(self) -> list[float]:
        """When each recorded level stopped being the current one (the last has not)."""
        return [start for start, _ in self._known[1:]]

    def _within(self, now: float, seconds: float) -> list[float]:
        """Levels that were current at some moment of the last `seconds`."""
        ends = [*self._ends(), float("inf")]
        levels = zip(self._known, ends, strict=True)
        # The same sum as in `next_change`: a difference could miss the moment by a rounding.
        return [level for (_, level), end in levels if end + seconds > now]

    def _forget(self, now: float, seconds: float) -> None:
        while len(self._known) > 1 and self._known[1][0] + seconds <= now:
            self._known.pop(0)
