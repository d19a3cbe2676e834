"""Money: what a machine counts for, and whether one more fits. Guards and gate share this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corald.model.fleet import Intent
from corald.model.market import Market, Offering


def committed_price(offering: Offering) -> float:
    """USD/h that caps count for a machine: spot is counted at the on-demand price.

    A cap then holds even when every spot machine must be replaced on demand.
    """
    if offering.key.market is Market.SPOT:
        return max(offering.usd_per_hour, offering.on_demand_usd_per_hour)
    return offering.usd_per_hour


def committed_spend(intents: Iterable[Intent]) -> float:
    """USD/h of everything that exists or may exist (unknown outcomes and leavers included)."""
    return sum(i.committed_usd_per_hour for i in intents if not i.state.ended)


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits in force and what is used of them."""

    usd_per_hour: float | None
    usd_per_day: float | None
    spent_today_usd: float
    hours_left_today: float

    def limit(self) -> float | None:
        """USD/h that may be committed all in all; None without any cap.

        The daily cap is rounded down to a hundredth of its hourly mean, so that the passing of
        time alone does not make every moment a new problem.
        """
        limits = [] if self.usd_per_hour is None else [self.usd_per_hour]
        if self.usd_per_day is not None:
            step = self.usd_per_day / 24.0 / 100.0
            left = max(0.0, self.usd_per_day - self.spent_today_usd) / self.hours_left_today
            limits.append(int(left / step + 1e-6) * step)
        return min(limits, default=None)

    def refusal(self, committed: float, extra: float) -> str:
        """Why `extra` USD/h on top of `committed` may not be rented; empty when it may."""
        total = committed + extra
        if self.usd_per_hour is not None and total > self.usd_per_hour + 1e-9:
            return f"budget {self.usd_per_hour:g} USD/h: {committed:.2f} + {extra:.2f} exceeds it"
        if self.usd_per_day is not None:
            day = self.spent_today_usd + total * self.hours_left_today
            if day > self.usd_per_day + 1e-9:
                return f"budget {self.usd_per_day:g} USD/day: today would reach {day:.2f}"
        return ""
