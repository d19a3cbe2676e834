"""What can be rented now: reports and events merged with what failed launches have taught.

Obtainable machines are counted *beyond* those held. The newest word wins by time; launches made
since are subtracted; a stock-out lowers it to nothing for a while, then to one probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from corald.core.caps import committed_price
from corald.model.events import CapacityObserved, OfferingsObserved, PriceObserved
from corald.model.fleet import Intent
from corald.model.hardware import Catalog, InstanceType
from corald.model.market import Market, Offering, OfferingKey
from corald.model.policy import Rules
from corald.model.problem import Supply
from corald.model.status import OfferingMark

FAILURE_SECONDS = 60.0
FAILURES_TO_BRAKE = 3

QuotaKey = tuple[str, str, str, Market]
"""(provider, region, bucket, market)."""


@dataclass(frozen=True, slots=True)
class _StockOut:
    until: float
    streak: int


@dataclass(frozen=True, slots=True)
class Quote:
    """One offering with its newest price."""

    offering: Offering
    priced_at: float


class Offers:
    """Offerings, prices, capacity levels and the marks of recent failures."""

    def __init__(
        self,
        catalog: Catalog,
        capacity: Iterable[CapacityObserved] = (),
        prices: Iterable[PriceObserved] = (),
    ) -> None:
        self._types: Mapping[str, InstanceType] = catalog.instance_types
        self._reports: dict[str, OfferingsObserved] = {}
        self._offered: dict[OfferingKey, Offering] = {}
        """In order of their keys."""
        self._capacity = {c.offering: c for c in capacity}
        self._prices = {p.offering: p for p in prices}
        self._stock_outs: dict[OfferingKey, _StockOut] = {}
        self._failures: dict[OfferingKey, tuple[float, int]] = {}
        self._quotas: dict[QuotaKey, float] = {}

    # What is told

    def report(self, report: OfferingsObserved) -> bool:
        """Replace a provider's list; True when anything a plan depends on changed."""
        before = {k: o for k, o in self._offered.items() if k.provider == report.provider}
        after = {o.key: o for o in report.offerings if o.usd_per_hour > 0}
        self._reports[report.provider] = report
        others = {k: o for k, o in self._offered.items() if k.provider != report.provider}
        self._offered = dict(sorted((others | after).items()))
        return before != after

    def merge_capacity(self, event: CapacityObserved) -> bool:
        held = self._capacity.get(event.offering)
        if held is not None and _newness(event) <= _newness(held):
            return False
        self._capacity[event.offering] = event
        return True

    def merge_price(self, event: PriceObserved) -> bool:
        held = self._prices.get(event.offering)
        if held is not None and _newness(event) <= _newness(held):
            return False
        self._prices[event.offering] = event
        return True

    # What failures teach

    def sold_out(self, key: OfferingKey, now: float, rules: Rules, hours: float | None) -> None:
        """Mark an offering: 3 minutes at first, doubling to 30 while it stays sold out."""
        held = self._stock_outs.get(key)
        if held is not None and held.until > now:
            return
        streak = held.streak + 1 if held else 0
        seconds = min(rules.stockout_seconds * 2**streak, rules.stockout_max_seconds)
        self._stock_outs[key] = _StockOut(now + (hours * 3600 if hours else seconds), streak)

    def suspect(self, key: OfferingKey, now: float, rules: Rules) -> None:
        """Count a failure that says nothing about stock; many at once brake the offering too."""
        since, count = self._failures.get(key, (now, 0))
        since, count = (since, count + 1) if now - since <= FAILURE_SECONDS else (now, 1)
        self._failures[key] = (since, count)
        if count >= FAILURES_TO_BRAKE:
            del self._failures[key]
            self.sold_out(key, now, rules, None)

    def obtained(self, key: OfferingKey) -> None:
        """A launch succeeded: the offering is no longer suspect."""
        self._stock_outs.pop(key, None)

    def quota_reached(self, key: OfferingKey, bucket: str, now: float, rules: Rules) -> bool:
        """Block a bucket; True when it was not blocked already."""
        family = (key.provider, key.region, self._family(key), key.market)
        fresh = self._quotas.get(family, 0.0) <= now
        self._quotas[family] = now + rules.quota_seconds
        if bucket:
            self._quotas[key.provider, key.region, bucket, key.market] = now + rules.quota_seconds
        return fresh

    # What follows

    def quote(self, key: OfferingKey) -> Quote | None:
        """The offering at its newest price, None when nobody offers it at a valid one."""
        offering = self._offered.get(key)
        if offering is None:
            return None
        priced_at = offering.priced_at or self._reports[key.provider].at
        event = self._prices.get(key)
        if event is not None and event.stamp.at > priced_at:
            return Quote(replace(offering, usd_per_hour=event.usd_per_hour), event.stamp.at)
        return Quote(offering, priced_at)

    def price_or_list(self, key: OfferingKey) -> tuple[float, float]:
        """USD/h and committed USD/h of a machine that exists: offered, or the catalogue's price."""
        quote = self.quote(key)
        if quote is not None:
            return quote.offering.usd_per_hour, committed_price(quote.offering)
        kind = self._types.get(key.instance_type)
        listed = [p for p in kind.prices if p.region == key.region] if kind else []
        on_demand = listed[0].on_demand_usd_per_hour if listed else 0.0
        spot = listed[0].spot_usd_per_hour if listed else None
        return (spot or on_demand) if key.market is Market.SPOT else on_demand, on_demand

    def obtainable(
        self, key: OfferingKey, intents: Iterable[Intent], now: float, rules: Rules
    ) -> int:
        """Machines that can be had beyond those held, after marks."""
        if self.blocked(key, now):
            return 0
        level = self._capacity.get(key)
        offering = self._offered.get(key)
        reported_at = self._reports[key.provider].at if offering is not None else 0.0
        if level is not None and level.stamp.at >= reported_at:
            told, told_at = level.available, level.stamp.at
        elif offering is not None and offering.available is not None:
            told, told_at = offering.available, reported_at
        elif level is not None:
            told, told_at = level.available, level.stamp.at
        else:
            told, told_at = rules.default_availability, float("inf")
        since = sum(1 for i in intents if i.request.offering == key and i.created_at > told_at)
        mark = self._stock_outs.get(key)
        if mark is not None and now - mark.until < rules.stockout_max_seconds:
            # Its time is over: one probe, unless somebody has counted the stock since.
            counted = mark.until <= told_at < float("inf")
            told = told if counted else min(told, 1)
        return max(0, told - since)

    def blocked(self, key: OfferingKey, now: float) -> str:
        """Why an offering is out of bounds now; empty when it is not."""
        mark = self._stock_outs.get(key)
        if mark is not None and mark.until > now:
            return "sold out"
        quota = (key.provider, key.region, self._family(key), key.market)
        if self._quotas.get(quota, 0.0) > now:
            return f"quota {quota[2]} reached"
        return ""

    def supplies(
        self,
        intents: Iterable[Intent],
        now: float,
        rules: Rules,
        *,
        usable: AbstractSet[str],
        closed: AbstractSet[str],
        wanted: Callable[[OfferingKey], bool],
    ) -> tuple[Supply, ...]:
        """Every wanted or held offering; the held machines in `usable` count as available.

        Nothing new is obtainable from a provider in `closed`, nor at a price beyond the hard age.
        """
        by_offering: dict[OfferingKey, list[Intent]] = {}
        held_by = set(usable)
        for intent in intents:
            by_offering.setdefault(intent.request.offering, []).append(intent)
        supplies = []
        delisted = sorted(key for key in by_offering if key not in self._offered)
        for key in [*self._offered, *delisted]:
            if key not in by_offering and not wanted(key):
                continue
            kind = self._types.get(key.instance_type)
            held = by_offering.get(key, [])
            quote = self.quote(key)
            if kind is None or (quote is None and not held):
                continue
            obtainable = 0
            if quote is not None and key.provider not in closed:
                fresh = now - quote.priced_at <= rules.price_hard_age_seconds
                obtainable = self.obtainable(key, held, now, rules) if fresh else 0
            supplies.append(
                Supply(
                    offering=key,
                    configuration=kind.configuration,
                    usd_per_hour=quote.offering.usd_per_hour if quote else held[0].usd_per_hour,
                    budget_usd_per_hour=committed_price(quote.offering)
                    if quote
                    else held[0].committed_usd_per_hour,
                    available=obtainable + sum(1 for i in held if i.id in held_by),
                    obtainable=obtainable,
                )
            )
        return tuple(supplies)

    def marks(self, now: float) -> tuple[OfferingMark, ...]:
        """Offerings out of bounds now, for people."""
        return tuple(
            OfferingMark(key, "sold out", mark.until)
            for key, mark in sorted(self._stock_outs.items())
            if mark.until > now
        )

    def blocked_quotas(self, now: float) -> tuple[QuotaKey, ...]:
        return tuple(sorted(key for key, until in self._quotas.items() if until > now))

    def next_change(self, now: float) -> float | None:
        marks = self._stock_outs.values()
        ends = [m.until for m in marks] + list(self._quotas.values())
        return min((end for end in ends if end > now), default=None)

    def price_age(self, provider: str, now: float) -> float | None:
        """Age of the provider's oldest price in use, in seconds."""
        ages = [
            now - quote.priced_at
            for key in self._offered
            if key.provider == provider and (quote := self.quote(key)) is not None
        ]
        return max(ages, default=None)

    @property
    def offered(self) -> tuple[OfferingKey, ...]:
        return tuple(self._offered)

    def sells(self, key: OfferingKey) -> bool:
        """Whether a provider lists the offering, or the catalogue knows that it is sold there."""
        if key in self._offered:
            return True
        kind = self._types.get(key.instance_type)
        return kind is not None and any(
            p.region == key.region and key.zone in p.zones for p in kind.prices
        )

    def like(self, configuration: str, near: OfferingKey) -> OfferingKey | None:
        """Some offering of a configuration in the zone and on the market of another one."""
        kinds = (k for k in self._types.values() if k.configuration == configuration)
        keys = (replace(near, instance_type=k.name) for k in kinds)
        return min((key for key in keys if self.sells(key)), default=None)

    def count(self, provider: str) -> int:
        return sum(1 for key in self._offered if key.provider == provider)

    def _family(self, key: OfferingKey) -> str:
        kind = self._types.get(key.instance_type)
        return kind.quota_family if kind else key.instance_type


def _newness(event: CapacityObserved | PriceObserved) -> tuple[float, str, int, int, float]:
    """Newest by time, then source, then sequence; content makes the order total."""
    value = event.available if isinstance(event, CapacityObserved) else event.usd_per_hour
    stamp = event.stamp
    return stamp.at, event.source, stamp.epoch, stamp.sequence, float(value)
