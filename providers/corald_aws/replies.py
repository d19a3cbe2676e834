"""Answers of AWS turned into corald's values: pure, and forgiving about what may be missing.

What may not be missing raises KeyError or alike; `errors.translate` makes that an answer that
nobody can read, so these functions run where it sees them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from corald.model.fleet import Instance, InstanceState
from corald.model.market import Market, OfferingKey

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}


def instances(
    reply: Mapping[str, Any], provider: str, region: str, zones: Mapping[str, str]
) -> list[Instance]:
    """Read a DescribeInstances page; `zones` gives zone ids by subnet, for older API versions."""
    return [
        instance(row, provider, region, zones)
        for reservation in reply.get("Reservations", ())
        for row in reservation.get("Instances", ())
    ]


def instance(
    row: Mapping[str, Any], provider: str, region: str, zones: Mapping[str, str]
) -> Instance:
    """Read one machine, of RunInstances or DescribeInstances."""
    placement = row.get("Placement", {})
    zone = placement.get("AvailabilityZoneId") or zones.get(
        row.get("SubnetId", ""), placement.get("AvailabilityZone", "")
    )
    spot = row.get("InstanceLifecycle") == "spot"
    reason = row.get("StateReason", {})
    launched = row.get("LaunchTime")
    return Instance(
        id=row["InstanceId"],
        provider=provider,
        state=_STATES[row["State"]["Name"]],
        offering=OfferingKey(
            provider,
            region,
            zone,
            row["InstanceType"],
            Market.SPOT if spot else Market.ON_DEMAND,
        ),
        tags=tuple(sorted((tag["Key"], tag["Value"]) for tag in row.get("Tags", ()))),
        launched_at=launched.timestamp() if launched else None,
        address=row.get("PrivateIpAddress", ""),
        state_reason=reason.get("Code", ""),
        token=row.get("ClientToken", ""),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subnet is: the zone's name, which differs between accounts, and its id."""

    zone: str
    zone_id: str


def subnets(reply: Mapping[str, Any]) -> dict[str, Place]:
    """Read a DescribeSubnets answer by subnet."""
    return {
        row["SubnetId"]: Place(row["AvailabilityZone"], row["AvailabilityZoneId"])
        for row in reply["Subnets"]
    }


def newest_spot_prices(
    rows: Iterable[Mapping[str, Any]], zone_ids: Mapping[str, str]
) -> dict[tuple[str, str], float]:
    """Find the newest price by (instance type, zone id); `zone_ids` is by zone name."""
    newest: dict[tuple[str, str], tuple[Any, float]] = {}
    for row in rows:
        zone = row.get("AvailabilityZoneId") or zone_ids.get(row["AvailabilityZone"])
        price = usable_price(row["SpotPrice"])
        if zone is None or price is None:
            continue
        key = (row["InstanceType"], zone)
        if key not in newest or row["Timestamp"] > newest[key][0]:
            newest[key] = (row["Timestamp"], price)
    return {key: price for key, (_, price) in newest.items()}


def list_prices(items: Iterable[str]) -> dict[str, float]:
    """Read on-demand prices by instance type out of a GetProducts price list."""
    found = {}
    for text in items:
        item = json.loads(text)
        kind = item["product"]["attributes"].get("instanceType")
        for term in item.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = usable_price(dimension["pricePerUnit"].get("USD", ""))
                if kind and dimension.get("unit") == "Hrs" and price is not None:
                    found[kind] = price
    return found


def usable_price(text: str) -> float | None:
    """Read a price; None unless it is positive and finite."""
    try:
        price = float(text)
    except ValueError:
        return None
    return price if math.isfinite(price) and price > 0 else None
