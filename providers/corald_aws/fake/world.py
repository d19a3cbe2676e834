"""The account behind the fake: a marketplace stocked from the catalogue, subnets, images, zones."""

from __future__ import annotations

import random
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from corald.market.faults import Call
from corald.market.ledger import Ledger
from corald.market.machines import MarketRules
from corald.market.marketplace import Marketplace
from corald.market.stock import Stock
from corald.model.market import Market, OfferingKey

PROVIDER = "aws"
"""The name that offerings carry in the fake's ledger, whatever the client calls its provider."""

AWS_LIMITS = {Call.LAUNCH: (5.0, 2.0), Call.TERMINATE: (100.0, 5.0), Call.LIST: (100.0, 20.0)}


@dataclass(frozen=True, slots=True)
class Product:
    """An instance type in one region, as the catalogue tells it."""

    instance_type: str
    vcpus: int
    memory_gib: float
    gpu: str
    gpus: int
    quota_family: str
    region: str
    zones: tuple[str, ...]
    on_demand_usd_per_hour: float
    spot_usd_per_hour: float | None


def load_products(
    regions: Iterable[str], directory: Traversable | Path | None = None
) -> list[Product]:
    """Read the AWS machines of a catalogue directory (the shipped one by default)."""
    root = files("corald_catalog") if directory is None else directory
    machines = tomllib.loads((root / "instances_aws.toml").read_text("utf-8"))
    classes = tomllib.loads((root / "configurations.toml").read_text("utf-8"))
    wanted = set(regions)
    return [
        _product(name, row, classes[row["configuration"]], price)
        for name, row in machines["instances"].items()
        for price in row["prices"]
        if price["region"] in wanted
    ]


def _product(
    name: str, row: dict[str, Any], configuration: dict[str, Any], price: dict[str, Any]
) -> Product:
    return Product(
        instance_type=name,
        vcpus=row["vcpus"],
        memory_gib=row["memory_gib"],
        gpu=configuration["gpu"],
        gpus=configuration["gpus"],
        quota_family=row["quota_family"],
        region=price["region"],
        zones=tuple(price["zones"]),
        on_demand_usd_per_hour=price["on_demand"],
        spot_usd_per_hour=price.get("spot"),
    )


@dataclass(slots=True)
class WallClock:
    """The machine's time, moved forward by tests."""

    ahead_seconds: float = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_seconds


@dataclass
class Account:
    """Everything the fake knows. Zone ids and subnets follow from the products."""

    products: list[Product]
    clock: WallClock = field(default_factory=WallClock)
    rules: MarketRules = field(
        default_factory=lambda: MarketRules(
            boot_seconds=2.0, shutdown_seconds=2.0, limits=dict(AWS_LIMITS)
        )
    )
    supply: int = 8
    """Machines per offering at first."""
    seed: int = 1
    sink: Callable[[str], object] | None = None
    missing_images: set[str] = field(default_factory=set)
    page_size: int = 1000
    """The largest page of a listing, whatever was asked for."""
    market: Marketplace = field(init=False)
    zones: dict[str, list[str]] = field(init=False)
    """Zone ids by region."""

    def __post_init__(self) -> None:
        found: dict[str, set[str]] = {}
        for product in self.products:
            found.setdefault(product.region, set()).update(product.zones)
        self.zones = {region: sorted(zones) for region, zones in sorted(found.items())}
        self.market = Marketplace(
            [item for product in self.products for item in self._shelve(product)],
            rng=random.Random(self.seed),  # noqa: S311 - a fake
            start=self.clock.now(),
            rules=self.rules,
            ledger=Ledger(sink=self.sink),
        )

    def _shelve(self, product: Product) -> list[Stock]:
        prices = {
            Market.ON_DEMAND: product.on_demand_usd_per_hour,
            Market.SPOT: product.spot_usd_per_hour,
        }
        return [
            Stock(
                key=OfferingKey(PROVIDER, product.region, zone, product.instance_type, market),
                usd_per_hour=usd_per_hour,
                on_demand_usd_per_hour=product.on_demand_usd_per_hour,
                supply=self.supply,
                quota_bucket=product.quota_family,
                quota_units=float(product.vcpus),
            )
            for zone in product.zones
            for market, usd_per_hour in prices.items()
            if usd_per_hour is not None
        ]

    def subnets(self, region: str) -> dict[str, str]:
        """Subnet id by zone id: one each."""
        return {zone: f"subnet-{zone}" for zone in self.zones.get(region, ())}

    def zone_of(self, region: str, subnet: str) -> str | None:
        """Find the zone id of a subnet."""
        return {v: k for k, v in self.subnets(region).items()}.get(subnet)


def zone_name(region: str, zone_id: str) -> str:
    """Name a zone as this account sees it: letters and numbers do not agree, as in real ones."""
    number = int(zone_id.rpartition("az")[2])
    return region + "bcdefa"[(number - 1) % 6]
