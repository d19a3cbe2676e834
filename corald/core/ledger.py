"""Money spent, by UTC day: accrued from what exists, kept over restarts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from corald.model.fleet import Intent
from corald.model.state import Spend

SECONDS_PER_DAY = 86400.0
STORE_EVERY_SECONDS = 60.0


class SpendLedger:
    """Integrates USD/h over time; an interval over midnight is split."""

    def __init__(self, stored: Iterable[Spend], since: float) -> None:
        """Begin where the last process stopped accruing: machines cost while nobody looks."""
        self._usd = {s.day: s.usd for s in stored}
        self._at = since
        self._stored_at = since
        self._dirty = False

    @property
    def accrued_until(self) -> float:
        return self._at

    def accrue(self, intents: Iterable[Intent], now: float) -> None:
        """Add what the machines have cost since the last call."""
        if now <= self._at:
            return
        usd_per_hour = sum(i.usd_per_hour for i in intents)
        while self._at < now:
            until = min(now, (self._at // SECONDS_PER_DAY + 1) * SECONDS_PER_DAY)
            day = day_of(self._at)
            self._usd[day] = self._usd.get(day, 0.0) + usd_per_hour * (until - self._at) / 3600.0
            self._at = until
        self._dirty = self._dirty or usd_per_hour > 0

    def today(self, now: float) -> float:
        return self._usd.get(day_of(now), 0.0)

    @property
    def total(self) -> float:
        return sum(self._usd.values())

    def hours_left_today(self, now: float) -> float:
        return (SECONDS_PER_DAY - now % SECONDS_PER_DAY) / 3600.0

    def take_changes(self) -> tuple[Spend, ...]:
        """Rows to store: at most once a minute."""
        if not self._dirty or self._at - self._stored_at < STORE_EVERY_SECONDS:
            return ()
        first = day_of(self._stored_at)
        self._stored_at, self._dirty = self._at, False
        return tuple(Spend(day, usd) for day, usd in sorted(self._usd.items()) if day >= first)


def day_of(at: float) -> str:
    """UTC day of a moment: `2026-01-31`."""
    return datetime.fromtimestamp(at, tz=UTC).date().isoformat()
