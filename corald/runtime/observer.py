"""Looks at one provider again and again: what it offers, what of ours exists, what it announces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from corald.errors import CredentialsRejectedError, ProviderError
from corald.model.events import Event, FleetObserved, OfferingsObserved, ProviderFailed
from corald.plugin import Clock, Provider
from corald.runtime.actuator import failure_class
from corald.runtime.calls import CountCall, ignore_count
from corald.runtime.gate import Gate

RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often things are looked at, in seconds."""

    listing: float = 15.0
    offerings: float = 60.0
    readiness: float = 5.0


class Observer:
    """One provider's three watches."""

    def __init__(
        self,
        provider: Provider,
        *,
        clock: Clock,
        gate: Gate,
        emit: Callable[[Event], None],
        intervals: Intervals,
        count: CountCall = ignore_count,
    ) -> None:
        self._provider = provider
        self._clock = clock
        self._gate = gate
        self._emit = emit
        self._count = count
        self._intervals = intervals

    async def run(self) -> None:
        """Watch until cancelled."""
        name = self._provider.name
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._every(self._intervals.offerings, "offerings", self._observe_offerings),
                name=f"offerings-{name}",
            )
            group.create_task(
                self._every(self._intervals.listing, "listing", self._observe_fleet),
                name=f"listing-{name}",
            )
            group.create_task(self._watch_interruptions(), name=f"interruptions-{name}")

    async def _every(
        self, seconds: float, what: str, observe: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            pause = seconds
            try:
                await observe()
                self._count(self._provider.name, what, "ok")
            except ProviderError as error:
                self._count(self._provider.name, what, failure_class(error).kind)
                self._emit_failure(what, error)
                pause = min(seconds, RETRY_SECONDS)
            await self._clock.sleep(pause)

    async def _observe_offerings(self) -> None:
        offerings = tuple(await self._provider.offerings())
        quotas = tuple(await self._provider.quotas())
        at = self._clock.now()
        self._emit(OfferingsObserved(self._provider.name, offerings, quotas, at))

    async def _observe_fleet(self) -> None:
        # Taken before the call: whatever is confirmed while it runs is newer than its answer.
        asked_at = self._clock.now()
        listing = await self._provider.list_instances()
        self._gate.saw(listing.instances, asked_at)
        if listing.complete:
            self._gate.forget_before(self._provider.name, asked_at)
        self._emit(FleetObserved(self._provider.name, listing, asked_at))

    async def _watch_interruptions(self) -> None:
        while True:
            try:
                async for notice in self._provider.interruptions():
                    self._emit(notice)
            except ProviderError as error:
                self._emit_failure("interruptions", error)
            await self._clock.sleep(RETRY_SECONDS)

    def _emit_failure(self, what: str, error: ProviderError) -> None:
        self._emit(
            ProviderFailed(
                provider=self._provider.name,
                what=what,
                message=str(error) or type(error).__name__,
                credentials=isinstance(error, CredentialsRejectedError),
                at=self._clock.now(),
            )
        )
