"""Where and how machines are sold: markets, zones, offerings and their prices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Market(StrEnum):
    """The terms a machine is rented on."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, order=True)
class ZoneKey:
    """One failure domain of one configured provider; `zone` is a zone *id*."""

    provider: str
    region: str
    zone: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.zone}"


@dataclass(frozen=True, slots=True, order=True)
class OfferingKey:
    """One thing that can be rented: an instance type in a zone on a market."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market

    @property
    def zone_key(self) -> ZoneKey:
        return ZoneKey(self.provider, self.region, self.zone)

    def __str__(self) -> str:
        return f"{self.provider}/{self.zone}/{self.instance_type}/{self.market}"


@dataclass(frozen=True, slots=True)
class Offering:
    """An offering as its provider reports it now."""

    key: OfferingKey
    usd_per_hour: float
    on_demand_usd_per_hour: float
    """What the same machine costs on demand: budgets count spot at this price."""
    available: int | None = None
    """Machines obtainable *beyond* those held; None when the cloud does not say."""
    priced_at: float | None = None
    """When the price was read; None means with this report."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of the account, in machines' own unit (`vcpus` on AWS, GPUs on GCP)."""

    provider: str
    region: str
    bucket: str
    market: Market
    limit: float
