"""On-demand prices: from the Price List API, else the catalogue's with their date."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from corald.errors import ProviderError
from corald.model.hardware import Catalog, InstanceType
from corald_aws import replies, requests
from corald_aws.clients import Clients

REFRESH_SECONDS = 12 * 3600.0
RETRY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Priced:
    """A price, and when it was true."""

    usd_per_hour: float
    at: float


class ListPrices:
    """On-demand prices of each region, read twice a day: a list is long and changes seldom."""

    def __init__(self, clients: Clients, catalog: Catalog) -> None:
        self._clients = clients
        self._catalog = catalog
        self._read: dict[str, dict[str, Priced]] = {}
        self._due: dict[str, float] = {}
        self.last_error: ProviderError | None = None
        """Why the last read failed, if it did; prices are then older."""

    async def of_region(self, region: str, now: float) -> dict[str, Priced]:
        """Give prices by instance type; those that AWS did not tell are the catalogue's."""
        if now >= self._due.get(region, 0.0):
            try:
                found = await self._clients.pricing(lambda client: _all_items(client, region))
            except ProviderError as error:
                self.last_error = error
                self._due[region] = now + RETRY_SECONDS
            else:
                self._read[region] = {kind: Priced(usd, now) for kind, usd in found.items()}
                self._due[region] = now + REFRESH_SECONDS
        return self._from_catalog(region) | self._read.get(region, {})

    def _from_catalog(self, region: str) -> dict[str, Priced]:
        return {
            kind.name: Priced(price.on_demand_usd_per_hour, _date(price.as_of))
            for kind in aws_types(self._catalog)
            for price in kind.prices
            if price.region == region
        }


def aws_types(catalog: Catalog) -> list[InstanceType]:
    """List the catalogue's machines of this cloud."""
    return [kind for kind in catalog.instance_types.values() if kind.cloud == "aws"]


def _all_items(client: Any, region: str) -> dict[str, float]:  # noqa: ANN401 - boto3 has no types
    call = requests.price_list(region)
    found: dict[str, float] = {}
    while True:
        page = client.get_products(**call)
        found |= replies.list_prices(page["PriceList"])
        if not page.get("NextToken"):
            return found
        call["NextToken"] = page["NextToken"]


def _date(as_of: str) -> float:
    """Read `2026-07` or `2026-07-31`; a month counts from its first day."""
    text = as_of if as_of.count("-") == 2 else f"{as_of}-01"
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
