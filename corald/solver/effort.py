"""How long a solve may go on: by the clock, by work, or both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

ROUNDS = 120
"""Pricing rounds when no work limit says otherwise; columns rarely need a third of them."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The limits of one solve. With a work limit and an idle clock a solve is deterministic.

    One unit of work is a round of pricing, or `NODES_A_UNIT` nodes of a branch-and-bound search.
    """

    clock: Callable[[], float]
    ends_at: float
    work_limit: int | None

    NODES_A_UNIT: ClassVar[int] = 20

    @property
    def rounds(self) -> int:
        return ROUNDS if self.work_limit is None else min(ROUNDS, self.work_limit)

    @property
    def nodes(self) -> int | None:
        return None if self.work_limit is None else self.work_limit * self.NODES_A_UNIT

    @property
    def left(self) -> float:
        """Seconds that remain; infinite without a deadline."""
        return max(0.0, self.ends_at - self.clock()) if math.isfinite(self.ends_at) else math.inf

    @property
    def over(self) -> bool:
        return self.left <= 0
