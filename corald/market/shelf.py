"""Offerings on sale: their supply and price as they move, and the account's quotas on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

from corald.market.agenda import Agenda
from corald.market.stock import Stock, offering_path
from corald.model.market import Market, OfferingKey, Quota


class Shelf:
    """All stock by offering; tells its owner when a price or a supply has moved by itself."""

    def __init__(
        self,
        stock: Iterable[Stock],
        agenda: Agenda,
        *,
        on_price: Callable[[Stock], None],
        on_supply: Callable[[Stock], None],
    ) -> None:
        self._agenda = agenda
        self._on_price = on_price
        self._on_supply = on_supply
        self._stock = {item.key: item for item in stock}
        self._quotas: dict[tuple[str, str, Market], Quota] = {}
        for item in self:
            item.price_history.append((agenda.now, item.usd_per_hour))
            self._plan_supply(item)
            self._plan_price(item)

    def __iter__(self) -> Iterator[Stock]:
        return iter(self._stock.values())

    def __getitem__(self, key: OfferingKey) -> Stock:
        return self._stock[key]

    def get(self, key: OfferingKey) -> Stock | None:
        return self._stock.get(key)

    def matching(self, pattern: str) -> list[Stock]:
        """Find stock by a shell-style pattern over `region/zone/type/market`.

        Raises:
            KeyError: Nothing matches.
        """
        found = [item for item in self if fnmatchcase(offering_path(item.key), pattern)]
        if not found:
            raise KeyError(f"no offering matches {pattern!r}")
        return found

    def set_supply(self, item: Stock, supply: int) -> None:
        """Fix the supply; what is held already stays."""
        item.supply = supply
        item.supply_process = None

    def set_price(self, item: Stock, usd_per_hour: float) -> None:
        """Fix the price; an on-demand price is also what the same machine's spot refers to."""
        item.price_process = None
        self._reprice(item, usd_per_hour)
        if item.key.market is Market.ON_DEMAND:
            for other in self:
                if _machine_and_zone(other.key) == _machine_and_zone(item.key):
                    other.on_demand_usd_per_hour = usd_per_hour

    def set_quota(self, quota: Quota) -> None:
        self._quotas[quota.region, quota.bucket, quota.market] = quota

    def quotas(self) -> tuple[Quota, ...]:
        return tuple(self._quotas.values())

    def over_quota(self, item: Stock) -> bool:
        """Tell whether one more machine would exceed the quota."""
        bucket = _bucket(item)
        quota = self._quotas.get(bucket)
        if quota is None:
            return False
        used = sum(other.held * other.quota_units for other in self if _bucket(other) == bucket)
        return used + item.quota_units > quota.limit

    def _plan_supply(self, item: Stock) -> None:
        step = item.supply_process and item.supply_process.step(item.supply)
        if step:
            self._agenda.plan(step[0], lambda: self._walk_supply(item, step[1]))

    def _walk_supply(self, item: Stock, change: int) -> None:
        if item.supply_process is not None:
            item.supply = max(0, item.supply + change)
            self._plan_supply(item)
            self._on_supply(item)

    def _plan_price(self, item: Stock) -> None:
        step = item.price_process and item.price_process.step(item.usd_per_hour)
        if step:
            self._agenda.plan(step[0], lambda: self._walk_price(item, step[1]))

    def _walk_price(self, item: Stock, usd_per_hour: float) -> None:
        if item.price_process is not None:
            self._reprice(item, usd_per_hour)
            self._plan_price(item)

    def _reprice(self, item: Stock, usd_per_hour: float) -> None:
        item.usd_per_hour = usd_per_hour
        item.price_history.append((self._agenda.now, usd_per_hour))
        self._on_price(item)


def _bucket(item: Stock) -> tuple[str, str, Market]:
    return item.key.region, item.quota_bucket, item.key.market


def _machine_and_zone(key: OfferingKey) -> tuple[str, str]:
    return key.zone, key.instance_type
