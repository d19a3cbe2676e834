"""The asynchronous face of a marketplace: the Provider protocol, waiting only through the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from corald.errors import InvalidRequestError
from corald.market.faults import Call, Fault, FaultKind, injected_error, unknown_outcome
from corald.market.marketplace import Marketplace
from corald.market.stock import Notice, request_hash
from corald.model.events import InterruptionNoticed
from corald.model.fleet import TAG_CLUSTER, Instance, LaunchRequest, Listing, Tags, TerminateOutcome
from corald.model.market import Offering, OfferingKey, Quota
from corald.plugin import ProviderContext

POLL_SECONDS = 1.0
"""How late a notice may be seen."""

T = TypeVar("T")


class MarketProvider:
    """A provider whose cloud is a marketplace in the same process."""

    def __init__(self, market: Marketplace, context: ProviderContext) -> None:
        self.name = context.name
        self.market = market
        self._cluster = context.cluster
        self._clock = context.clock

    async def offerings(self) -> Sequence[Offering]:
        return await self._call(Call.OFFERINGS, lambda _: self.market.offers(self._clock.now()))

    async def quotas(self) -> Sequence[Quota]:
        return await self._call(Call.QUOTAS, lambda _: self.market.quotas())

    async def launch(self, request: LaunchRequest) -> Instance:
        if (TAG_CLUSTER, self._cluster) not in request.tags:
            raise InvalidRequestError(f"the request must carry {TAG_CLUSTER}={self._cluster}")
        return await self._call(
            Call.LAUNCH,
            lambda fault: self._launch(request, fault),
            offering=request.offering,
            token=request.token,
            request=request_hash(request),
        )

    async def terminate(self, instance_ids: Sequence[str]) -> Mapping[str, TerminateOutcome]:
        if not instance_ids:
            return {}
        return await self._call(Call.TERMINATE, lambda _: self._terminate(instance_ids))

    async def list_instances(self) -> Listing:
        return await self._call(Call.LIST, self._list)

    async def interruptions(self) -> AsyncIterator[InterruptionNoticed]:
        """Yield every notice about a machine that still exists, each once for this iterator."""
        seen = 0
        while True:
            for notice in self.market.notices(seen, self._clock.now()):
                seen = notice.number
                yield self._noticed(notice)
            await self._clock.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Nothing to release: the marketplace outlives its providers."""

    async def _call(
        self,
        call: Call,
        effect: Callable[[Fault | None], T],
        *,
        offering: OfferingKey | None = None,
        token: str = "",
        request: str = "",
    ) -> T:
        """Make one call over an imagined wire, on which the standing faults apply."""
        region = offering.region if offering else ""
        now = self._clock.now()
        fault = self.market.begin(call, now, region=region, token=token, request=request)
        return await self._answer(call, fault, effect, token=token)

    async def _answer(
        self, call: Call, fault: Fault | None, effect: Callable[[Fault | None], T], *, token: str
    ) -> T:
        if fault is None:
            return effect(None)
        if fault.delay_seconds:
            await self._clock.sleep(fault.delay_seconds)
        if fault.kind is FaultKind.ERROR:
            raise self.market.refuse(call, injected_error(call, fault.code), token=token)
        if fault.kind is FaultKind.LOST_BEFORE:
            raise unknown_outcome(call, f"{call}: the connection broke")
        result = effect(fault)
        if fault.kind in (FaultKind.LOST_AFTER, FaultKind.TRUNCATED):
            raise unknown_outcome(call, f"{call}: the answer was lost")
        return result

    def _launch(self, request: LaunchRequest, fault: Fault | None) -> Instance:
        doomed = fault is not None and fault.kind is FaultKind.DIES_AT_BOOT
        doom = fault.code if fault is not None and doomed else ""
        machine = self.market.launch(request, self._clock.now(), doom=doom)
        return machine.instance(machine.tags)

    def _terminate(self, ids: Sequence[str]) -> Mapping[str, TerminateOutcome]:
        """Terminate what is visibly ours; refuse what is another's; wait for what is not seen."""
        now = self._clock.now()
        tags: dict[str, Tags] = {m.id: visible for m, visible in self.market.listing(now)}
        ours = [i for i in ids if (TAG_CLUSTER, self._cluster) in tags.get(i, ())]
        outcomes = self.market.terminate(ours, now)
        for other in ids:
            if other not in outcomes:
                foreign = TAG_CLUSTER in dict(tags.get(other, ()))
                outcomes[other] = TerminateOutcome.PROTECTED if foreign else TerminateOutcome.FAILED
        return outcomes

    def _list(self, fault: Fault | None) -> Listing:
        ours = [
            machine.instance(tags)
            for machine, tags in self.market.listing(self._clock.now())
            if (TAG_CLUSTER, self._cluster) in tags
        ]
        if fault is not None and fault.kind is FaultKind.PARTIAL:
            return Listing(tuple(ours[: len(ours) // 2]), complete=False, note="a page is missing")
        return Listing(tuple(ours), complete=True)

    def _noticed(self, notice: Notice) -> InterruptionNoticed:
        return InterruptionNoticed(
            event_id=f"{self.name}/{notice.machine}/{notice.number}",
            provider=self.name,
            instance=notice.machine,
            kind=notice.kind,
            deadline=notice.deadline,
            at=notice.at,
        )
