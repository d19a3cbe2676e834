"""How long a solve may go on: by the clock, by work, or both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 120
"""Pricing rounds when no work limit says otherwise; columns rarely need a third of them."""
COLUMNS = 1500
"""Of an integer program over single templates when no work limit says otherwise."""

DIVES = 6
"""Plans row by row at the best prices."""

ROUNDS_A_UNIT, MOST_ROUNDS = 3, 30
UNITS_A_DIVE, MOST_DIVES = 2, 2
COLUMNS_A_UNIT, MOST_COLUMNS = 75, 800
NODES_A_UNIT, NODES_TIMES_COLUMNS_SQUARED = 20, 8_000_000


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of one solve. With a work limit and an idle clock a solve is deterministic.

    A unit of work allows a little more of everything, up to what a second or two of one core can
    do: no clock ends a solve that is limited by work, so every part of it must be small by itself.
    """

    clock: Callable[[], float]
    ends_at: float
    work_limit: int | None

    @property
    def rounds(self) -> int:
        """Of pricing."""
        if self.work_limit is None:
            return ROUNDS
        return min(ROUNDS_A_UNIT * self.work_limit, MOST_ROUNDS)

    @property
    def dives(self) -> int:
        """Plans row by row at the best prices."""
        if self.work_limit is None:
            return DIVES
        return max(1, min(self.work_limit // UNITS_A_DIVE, MOST_DIVES))

    @property
    def columns(self) -> int:
        """Of an integer program over single templates."""
        if self.work_limit is None:
            return COLUMNS
        return min(COLUMNS_A_UNIT * self.work_limit, MOST_COLUMNS)

    def nodes(self, columns: int) -> int | None:
        """Of the search tree of an integer program; one of a wide program costs far more."""
        if self.work_limit is None:
            return None
        most = NODES_TIMES_COLUMNS_SQUARED // max(1, columns) ** 2
        return max(1, min(NODES_A_UNIT * self.work_limit, most))

    @property
    def left(self) -> float:
        """Seconds that remain; infinite without a deadline."""
        return max(0.0, self.ends_at - self.clock()) if math.isfinite(self.ends_at) else math.inf

    @property
    def over(self) -> bool:
        return self.left <= 0
