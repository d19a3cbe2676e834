"""What the marketplace holds: offerings with their present supply and price, and machines."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from corald.market.supply import PriceProcess, SupplyProcess
from corald.model.fleet import Instance, InstanceState, InterruptionKind, LaunchRequest, Tags
from corald.model.market import OfferingKey


@dataclass(slots=True)
class Stock:
    """One offering on the shelf."""

    key: OfferingKey
    usd_per_hour: float
    on_demand_usd_per_hour: float
    supply: int
    """Machines we could have in all, those held included."""
    quota_bucket: str = ""
    quota_units: float = 0.0
    """What one machine counts in its bucket."""
    supply_process: SupplyProcess | None = None
    price_process: PriceProcess | None = None
    held: int = 0
    price_history: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=16))
    """(since when, price), oldest first."""

    @property
    def obtainable(self) -> int:
        return max(0, self.supply - self.held)


@dataclass(slots=True)
class Machine:
    """One rented machine, from launch until nobody can see it any more."""

    id: str
    token: str
    request: str
    """Hash of the request it was launched by."""
    offering: OfferingKey
    tags: Tags
    launched_at: float
    address: str
    details: Mapping[str, str] = field(default_factory=dict)
    """What an API repeats of the request; nothing to the marketplace."""
    state: InstanceState = InstanceState.PENDING
    state_reason: str = ""
    doom: str = ""
    """It will not boot, for this reason."""
    protected: bool = False
    stuck: bool = False
    """Its shutdown does not end."""
    reclaim_at: float | None = None

    @property
    def alive(self) -> bool:
        return self.state is not InstanceState.TERMINATED

    def instance(self, tags: Tags) -> Instance:
        """Show it as a provider does, with the tags that are visible by now."""
        return Instance(
            id=self.id,
            provider=self.offering.provider,
            state=self.state,
            offering=self.offering,
            tags=tags,
            launched_at=self.launched_at,
            address=self.address,
            state_reason=self.state_reason,
            token=self.token,
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """The cloud's announcement about one machine."""

    number: int
    """Rises by one with each notice."""
    at: float
    machine: str
    kind: InterruptionKind
    deadline: float | None


def offering_path(key: OfferingKey) -> str:
    """What shell-style patterns over offerings match: `region/zone/type/market`."""
    return f"{key.region}/{key.zone}/{key.instance_type}/{key.market}"


def request_hash(request: LaunchRequest) -> str:
    """Hash everything but the token: two requests with one token must agree in it."""
    parts = [
        request.name,
        str(request.offering),
        request.image,
        request.user_data,
        sorted(request.tags),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
