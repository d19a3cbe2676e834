"""A believable market out of the catalogue: what is sold where, how scarce, at what price."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fnmatch import fnmatchcase

from corald.errors import ConfigError
from corald.market.ledger import Ledger
from corald.market.machines import MarketRules
from corald.market.marketplace import Marketplace
from corald.market.stock import Stock, offering_path
from corald.market.supply import PriceProcess, SupplyProcess
from corald.model.hardware import InstanceType, ListPrice
from corald.model.market import Market, OfferingKey
from corald.plugin import ProviderContext
from corald_simulated.settings import Settings

KEPT_ENTRIES = 10_000
STEADY_SHARE = 0.5
"""The part of on-demand supply that never goes away."""
ON_DEMAND_CALM = 0.5
"""How fast on-demand supply changes, against spot."""


def build_market(settings: Settings, context: ProviderContext) -> Marketplace:
    """Stock a marketplace; equal settings, catalogue and start make equal worlds.

    Raises:
        ConfigError: A region sells nothing of this cloud, or an override matches nothing.
    """
    start = context.clock.now()
    stock = [
        item
        for kind, price in _sold(settings, context)
        for item in _shelve(kind, price, settings, context)
    ]
    _check_overrides(settings, stock, context.name)
    return Marketplace(
        stock,
        rng=random.Random(f"{settings.seed}/machines"),  # noqa: S311 - a simulation
        start=start,
        ledger=Ledger(keep=KEPT_ENTRIES),
        rules=MarketRules(
            boot_seconds=settings.boot_seconds,
            notice_seconds=_notice_seconds(settings),
            interruptions_per_hour=settings.interruptions_per_hour,
            reports_availability=settings.reports_availability,
            # A world that starts later must not hand out the ids of an earlier one.
            id_prefix=f"{context.name}-{int(start):x}-",
            id_digits=1,
        ),
    )


def _sold(settings: Settings, context: ProviderContext) -> list[tuple[InstanceType, ListPrice]]:
    kinds = [k for k in context.catalog.instance_types.values() if k.cloud == settings.cloud]
    known = {price.region for kind in kinds for price in kind.prices}
    for region in settings.regions:
        if region not in known:
            raise ConfigError(
                f"providers.{context.name}.regions: the catalogue has no {settings.cloud} machines"
                f" in {region!r}; choose from {', '.join(sorted(known)) or 'none'}"
            )
    wanted = set(settings.regions)
    return [(kind, price) for kind in kinds for price in kind.prices if price.region in wanted]


def _shelve(
    kind: InstanceType, price: ListPrice, settings: Settings, context: ProviderContext
) -> Iterator[Stock]:
    configuration = context.catalog.configurations[kind.configuration]
    memory_gib = configuration.gpus * context.catalog.gpus[configuration.gpu].memory_gib
    units = float(kind.vcpus if kind.cloud == "aws" else configuration.gpus)
    for zone in price.zones:
        for market in (Market.ON_DEMAND, Market.SPOT):
            if market is Market.SPOT and price.spot_usd_per_hour is None:
                continue
            key = OfferingKey(context.name, price.region, zone, kind.name, market)
            supply = _supply_process(key, memory_gib, settings)
            walk = _price_process(key, price, settings)
            yield Stock(
                key=key,
                usd_per_hour=walk.start() if walk else price.on_demand_usd_per_hour,
                on_demand_usd_per_hour=price.on_demand_usd_per_hour,
                supply=supply.start(),
                quota_bucket=kind.quota_family,
                quota_units=units,
                supply_process=supply if supply.turnover_per_hour else None,
                price_process=walk,
            )


def _supply_process(key: OfferingKey, memory_gib: float, settings: Settings) -> SupplyProcess:
    rng = _rng(settings, key, "supply")
    capacity = settings.capacity
    luck = 0.5 + rng.random()  # zones differ
    scarcity = 1.0 + memory_gib / 100.0
    on_demand = key.market is Market.ON_DEMAND
    mean = capacity.default * luck / (scarcity if on_demand else scarcity**2)
    for pattern, count in capacity.overrides.items():
        if _matches(key, pattern):
            mean = count
    return SupplyProcess(
        mean=mean,
        turnover_per_hour=capacity.turnover_per_hour * (ON_DEMAND_CALM if on_demand else 1.0),
        rng=rng,
        floor=int(mean * STEADY_SHARE) if on_demand else 0,
    )


def _price_process(key: OfferingKey, price: ListPrice, settings: Settings) -> PriceProcess | None:
    if key.market is not Market.SPOT or price.spot_usd_per_hour is None:
        return None
    volatility = settings.spot_volatility
    if volatility is None:
        volatility = 0.15 if settings.cloud == "aws" else 0.0
    return PriceProcess(
        typical_usd_per_hour=price.spot_usd_per_hour,
        ceiling_usd_per_hour=price.on_demand_usd_per_hour,
        volatility=volatility,
        rng=_rng(settings, key, "price"),
    )


def _notice_seconds(settings: Settings) -> float:
    if settings.notice_seconds is not None:
        return settings.notice_seconds
    return 120.0 if settings.cloud == "aws" else 30.0


def _rng(settings: Settings, key: OfferingKey, what: str) -> random.Random:
    """Give each offering randomness of its own, so that one does not depend on another."""
    return random.Random(f"{settings.seed}/{key}/{what}")  # noqa: S311 - a simulation


def _matches(key: OfferingKey, pattern: str) -> bool:
    return fnmatchcase(offering_path(key), pattern)


def _check_overrides(settings: Settings, stock: list[Stock], name: str) -> None:
    for pattern in settings.capacity.overrides:
        if not any(_matches(item.key, pattern) for item in stock):
            raise ConfigError(
                f"providers.{name}.capacity.overrides: {pattern!r} matches no offering; patterns go"
                " over region/zone/type/market, such as 'us-east-1/*/p5.*/spot'"
            )
