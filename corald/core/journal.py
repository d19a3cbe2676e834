"""What must be durable before any instruction leaves: rows and counts not yet stored."""

from __future__ import annotations

from collections import Counter

from corald.core.notes import Notes
from corald.model.events import CapacityObserved, DemandObserved, PriceObserved
from corald.model.market import OfferingKey


class Journal:
    """Collects changes that are not the fleet's own."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._demand: dict[tuple[str, str], DemandObserved] = {}
        self._capacity: dict[OfferingKey, CapacityObserved] = {}
        self._prices: dict[OfferingKey, PriceObserved] = {}
        self._retired: list[str] = []
        self._settings: dict[str, str] = {}
        self._applied: Counter[str] = Counter()
        self._ignored: Counter[tuple[str, str]] = Counter()
        self._lags: dict[str, float] = {}

    def demand(self, sample: DemandObserved) -> None:
        self._demand[sample.source, sample.model] = sample

    def capacity(self, event: CapacityObserved) -> None:
        self._capacity[event.offering] = event

    def price(self, event: PriceObserved) -> None:
        self._prices[event.offering] = event

    def retire(self, source: str) -> None:
        """Forget a demand source, with what it said since the last transaction."""
        self._retired.append(source)
        self._demand = {key: s for key, s in self._demand.items() if key[0] != source}

    def setting(self, name: str, value: str) -> None:
        self._settings[name] = value

    def applied(self, kind: str, at: float, now: float) -> None:
        """Count an event that changed something; its age is how late it came."""
        self._applied[kind] += 1
        self._lags[kind] = max(now - at, self._lags.get(kind, now - at))

    def ignored(self, kind: str, reason: str) -> None:
        """Count an event that changed nothing."""
        self._ignored[kind, reason] += 1

    def note_counts(self, now: float) -> None:
        """Turn the counts into notes, one for each kind and reason."""
        for kind, count in sorted(self._applied.items()):
            lag = self._lags[kind]
            self._notes.add(
                "event_applied",
                now,
                type=kind,
                count=count,
                lag_seconds=max(0.0, lag),
                skew_seconds=max(0.0, -lag),
            )
        for (kind, reason), count in sorted(self._ignored.items()):
            self._notes.add("event_ignored", now, type=kind, reason=reason, count=count)
        self._applied.clear()
        self._ignored.clear()
        self._lags.clear()

    def take_demand(self) -> tuple[DemandObserved, ...]:
        taken, self._demand = tuple(self._demand.values()), {}
        return taken

    def take_capacity(self) -> tuple[CapacityObserved, ...]:
        taken, self._capacity = tuple(self._capacity.values()), {}
        return taken

    def take_prices(self) -> tuple[PriceObserved, ...]:
        taken, self._prices = tuple(self._prices.values()), {}
        return taken

    def take_retired(self) -> tuple[str, ...]:
        taken, self._retired = tuple(self._retired), []
        return taken

    def take_settings(self) -> tuple[tuple[str, str], ...]:
        taken, self._settings = tuple(sorted(self._settings.items())), {}
        return taken
