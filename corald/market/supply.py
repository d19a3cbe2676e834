"""How supply and price of one offering move by themselves: two small random processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

HOUR = 3600.0
PRICE_STEP_SECONDS = 900.0
PRICE_MEMORY_HOURS = 48.0


class Rng(Protocol):
    """A source of randomness; `random.Random` is one."""

    def random(self) -> float:
        """Draw uniformly from [0, 1)."""


def exponential(rng: Rng, per_hour: float) -> float:
    """Draw the seconds until the next event of a Poisson process."""
    return -math.log(1.0 - rng.random()) / per_hour * HOUR


def normal(rng: Rng) -> float:
    """Draw from the standard normal distribution."""
    radius = math.sqrt(-2.0 * math.log(1.0 - rng.random()))
    return radius * math.cos(2.0 * math.pi * rng.random())


@dataclass(frozen=True, slots=True)
class SupplyProcess:
    """Immigration and death: machines arrive at a steady rate, each leaves after a while.

    The level reverts to `mean`; the part above `floor` is Poisson distributed in the long run, so
    that a scarce offering is often sold out and a plentiful one hardly ever.
    """

    mean: float
    turnover_per_hour: float
    """How fast the level forgets; 0 keeps it constant."""
    rng: Rng
    floor: int = 0

    def start(self) -> int:
        """Draw the first level."""
        if self.turnover_per_hour == 0:
            return round(self.mean)
        return self.floor + self._poisson(max(0.0, self.mean - self.floor))

    def step(self, level: int) -> tuple[float, int] | None:
        """Draw the seconds until the next change, and the change (+1 or -1); None: never."""
        births = self.turnover_per_hour * max(0.0, self.mean - self.floor)
        deaths = self.turnover_per_hour * max(0, level - self.floor)
        if births + deaths <= 0:
            return None
        wait = exponential(self.rng, births + deaths)
        born = self.rng.random() * (births + deaths) < births
        return wait, 1 if born else -1

    def _poisson(self, mean: float) -> int:
        count, passed = -1, 0.0
        while passed <= mean:
            count += 1
            passed -= math.log(1.0 - self.rng.random())
        return count


@dataclass(frozen=True, slots=True)
class PriceProcess:
    """A spot price: its logarithm walks around the typical price and reverts to it within days."""

    typical_usd_per_hour: float
    ceiling_usd_per_hour: float
    """The on-demand price, which spot never exceeds."""
    volatility: float
    """Standard deviation of the price relative to the typical one; 0 keeps it constant."""
    rng: Rng

    def start(self) -> float:
        """Draw the first price."""
        return self._price(self.volatility * normal(self.rng))

    def step(self, usd_per_hour: float) -> tuple[float, float] | None:
        """Draw the seconds until the next price and that price; None: never."""
        if self.volatility == 0:
            return None
        hours = PRICE_STEP_SECONDS * (0.5 + self.rng.random()) / HOUR
        keep = math.exp(-hours / PRICE_MEMORY_HOURS)
        spread = self.volatility * math.sqrt(1.0 - keep * keep)
        before = math.log(usd_per_hour / self.typical_usd_per_hour)
        return hours * HOUR, self._price(before * keep + spread * normal(self.rng))

    def _price(self, logarithm: float) -> float:
        price = self.typical_usd_per_hour * math.exp(logarithm)
        return min(self.ceiling_usd_per_hour, max(price, self.ceiling_usd_per_hour * 0.05))
