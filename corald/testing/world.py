"""What the conformance suite needs to do to a cloud; and that for any marketplace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from corald.market.faults import Call, Fault, FaultKind
from corald.market.ledger import Ledger
from corald.market.marketplace import Marketplace
from corald.model.fleet import Tags
from corald.model.market import OfferingKey, Quota
from corald.plugin import Provider
from corald.testing.clock import ManualClock


class CloudWorld(Protocol):
    """A cloud under a test's control; offerings are named as the provider names them."""

    cluster: str
    boot_seconds: float
    announces_interruptions: bool
    """Whether the provider itself yields notices."""

    def provider(self) -> Provider:
        """Build the provider as after a restart: with no memory of an earlier one."""

    def ledger(self) -> Ledger:
        """Read the cloud's own record of calls and effects."""

    async def advance(self, seconds: float) -> None:
        """Let time pass for the cloud."""

    def sell(self, offering: OfferingKey, count: int) -> None:
        """Let `count` machines be had, those held included."""

    def allow(self, offering: OfferingKey, machines: int) -> None:
        """Set the account's quota so that it holds that many machines of this type."""

    def fail(self, call: Call, kind: str, *, times: int | None = 1) -> None:
        """Answer coming calls with an error of a kind of `FailureClass`, or an unheard-of one."""

    def lose(self, call: Call, *, after_effect: bool) -> None:
        """Break the connection of the next call, before or after its effect."""

    def cut_listing(self) -> None:
        """Withhold a part of the next listing."""

    def throttle(self, call: Call) -> None:
        """Allow one such call every 10 seconds from now on, the first at once."""

    def lag(self, *, instance_seconds: float, tag_seconds: float) -> None:
        """Show new machines and their tags late."""

    def doom(self) -> None:
        """Let the next machine end instead of booting."""

    def place(self, offering: OfferingKey, tags: Tags) -> str:
        """Put a machine into the account that the provider did not launch; gives its id."""

    def protect(self, instance: str) -> None:
        """Protect a machine against termination."""

    def stick(self, instance: str) -> None:
        """Let the shutdown of a machine never end."""

    def interrupt(self, instance: str, notice_seconds: float) -> None:
        """Announce that a machine is taken away, and take it."""

    def close(self) -> None:
        """End the world."""


class MarketWorld:
    """A world whose cloud is a marketplace; `build` makes the provider that speaks to it."""

    announces_interruptions = True

    def __init__(
        self, market: Marketplace, clock: ManualClock, cluster: str, build: Callable[[], Provider]
    ) -> None:
        self.market = market
        self.cluster = cluster
        self._clock = clock
        self._build = build

    @property
    def boot_seconds(self) -> float:
        return self.market.rules.boot_seconds

    def provider(self) -> Provider:
        return self._build()

    def ledger(self) -> Ledger:
        return Ledger.read(self.market.ledger.dump().splitlines(keepends=True))

    async def advance(self, seconds: float) -> None:
        await self._clock.advance(seconds)

    def sell(self, offering: OfferingKey, count: int) -> None:
        self.market.set_supply(self.key(offering), count, self.now())

    def allow(self, offering: OfferingKey, machines: int) -> None:
        key = self.key(offering)
        item = self.market.stock(key)
        limit = item.quota_units * machines
        self.market.set_quota(Quota(key.provider, key.region, item.quota_bucket, key.market, limit))

    def fail(self, call: Call, kind: str, *, times: int | None = 1) -> None:
        self.market.faults.add(Fault(call, FaultKind.ERROR, code=kind, times=times))

    def lose(self, call: Call, *, after_effect: bool) -> None:
        kind = FaultKind.LOST_AFTER if after_effect else FaultKind.LOST_BEFORE
        self.market.faults.add(Fault(call, kind))

    def cut_listing(self) -> None:
        self.market.faults.add(Fault(Call.LIST, FaultKind.PARTIAL))

    def throttle(self, call: Call) -> None:
        self.market.rules = replace(self.market.rules, limits={call: (1.0, 0.1)})

    def lag(self, *, instance_seconds: float, tag_seconds: float) -> None:
        self.market.rules = replace(
            self.market.rules,
            instance_lag_seconds=instance_seconds,
            tag_lag_seconds=tag_seconds,
        )

    def doom(self) -> None:
        self.market.faults.add(
            Fault(Call.LAUNCH, FaultKind.DIES_AT_BOOT, code="Server.InsufficientInstanceCapacity")
        )

    def place(self, offering: OfferingKey, tags: Tags) -> str:
        return self.market.place(self.key(offering), tags, self.now()).id

    def protect(self, instance: str) -> None:
        self.market.protect(instance, protected=True)

    def stick(self, instance: str) -> None:
        self.market.stick(instance, stuck=True)

    def interrupt(self, instance: str, notice_seconds: float) -> None:
        self.market.interrupt(instance, self.now(), notice_seconds=notice_seconds)

    def close(self) -> None:
        """Nothing to end."""

    def now(self) -> float:
        """The cloud's time."""
        return self._clock.now()

    def key(self, offering: OfferingKey) -> OfferingKey:
        """What the marketplace calls an offering that the provider named."""
        return offering
