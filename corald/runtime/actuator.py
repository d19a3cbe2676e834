"""Carries instructions out at the clouds and turns every outcome into an event.

No retry here: the engine asks again, with the same token. Providers come wrapped
(`runtime.foreign`), so a call always ends, and only with an error of the contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from corald.errors import (
    CredentialsRejectedError,
    InstanceGoneError,
    InsufficientCapacityError,
    InvalidRequestError,
    ProviderError,
    QuotaExceededError,
    ThrottledError,
    TransientError,
)
from corald.model.events import (
    Event,
    FailureClass,
    Launched,
    LaunchFailed,
    LaunchUnknown,
    TerminateAnswered,
)
from corald.model.fleet import TerminateOutcome
from corald.model.plan import Launch, Terminate
from corald.plugin import Clock, Provider
from corald.runtime.buckets import TokenBucket
from corald.runtime.calls import CountCall, ignore_count
from corald.runtime.gate import Gate

LAUNCHES_PER_SECOND, LAUNCH_BURST = 1.0, 3
"""Of growth and of replacements each: together what EC2 lets an account do."""
TERMINATES_PER_SECOND, TERMINATE_BURST = 1.0, 3
TERMINATE_BATCH = 50


class Actuator:
    """The only code that calls `launch` and `terminate`."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        clock: Clock,
        gate: Gate,
        count: CountCall = ignore_count,
    ) -> None:
        self._providers = providers
        self._clock = clock
        self._gate = gate
        self._count = count
        self._urgent_launches = self._buckets(LAUNCHES_PER_SECOND, LAUNCH_BURST)
        self._launches = self._buckets(LAUNCHES_PER_SECOND, LAUNCH_BURST)
        self._terminates = self._buckets(TERMINATES_PER_SECOND, TERMINATE_BURST)
        self._stopped = False

    def _buckets(self, rate: float, burst: int) -> dict[str, TokenBucket]:
        """One bucket for each provider."""
        return {name: TokenBucket(self._clock, rate=rate, burst=burst) for name in self._providers}

    def stop(self) -> None:
        """Start no further call; those under way are answered."""
        self._stopped = True

    async def launch(self, launch: Launch) -> Event | None:
        """Rent one machine; None when the daemon stops before the call is made."""
        provider = self._providers[launch.request.offering.provider]
        buckets = self._urgent_launches if launch.urgent else self._launches
        await buckets[provider.name].take()
        if self._stopped:
            return None
        if refusal := self._gate.refuses_launch(launch):
            return self._failed(launch, refusal)
        try:
            instance = await provider.launch(launch.request)
        except ProviderError as error:
            failure = failure_class(error)
            self._count(provider.name, "launch", failure.kind)
            if failure.kind in UNPROVEN:
                return LaunchUnknown(launch.intent, failure.message, self._clock.now())
            return self._failed(launch, failure)
        self._count(provider.name, "launch", "ok")
        self._gate.saw([instance], self._clock.now())
        return Launched(launch.intent, instance, self._clock.now())

    async def terminate(self, terminate: Terminate) -> Event | None:
        """Give machines back; those the gate does not know as ours are answered as failed."""
        provider = self._providers[terminate.provider]
        outcomes: dict[str, TerminateOutcome] = {}
        message = ""
        ids = [instance for _, instance in terminate.targets]
        for first in range(0, len(ids), TERMINATE_BATCH):
            batch = ids[first : first + TERMINATE_BATCH]
            await self._terminates[provider.name].take()
            if self._stopped:
                return None
            allowed = self._gate.may_terminate(provider.name, batch, self._clock.now())
            outcomes.update(dict.fromkeys(batch, TerminateOutcome.FAILED))
            if not allowed:
                message = "tags were not seen within the last minute"
                continue
            try:
                outcomes.update(await provider.terminate(allowed))
                self._count(provider.name, "terminate", "ok")
            except ProviderError as error:
                self._count(provider.name, "terminate", failure_class(error).kind)
                message = str(error)
        return TerminateAnswered(
            provider.name, tuple(sorted(outcomes.items())), message, self._clock.now()
        )

    def _failed(self, launch: Launch, failure: FailureClass) -> LaunchFailed:
        return LaunchFailed(launch.intent, failure, self._clock.now())


_KINDS: Mapping[type[ProviderError], str] = {
    InsufficientCapacityError: "insufficient-capacity",
    QuotaExceededError: "quota-exceeded",
    ThrottledError: "throttled",
    InvalidRequestError: "invalid-request",
    CredentialsRejectedError: "credentials-rejected",
    InstanceGoneError: "instance-gone",
    TransientError: "transient",
}
UNPROVEN = frozenset({"outcome-unknown", "transient"})
"""Failures of a create call that do not prove that nothing was rented."""


def failure_class(error: ProviderError) -> FailureClass:
    """A provider's error as a value; whatever is not proven to have failed is unknown."""
    return FailureClass(
        kind=_KINDS.get(type(error), "outcome-unknown"),
        message=str(error),
        code=error.code,
        bucket=getattr(error, "bucket", ""),
        hours=getattr(error, "hours", None),
        retry_after=getattr(error, "retry_after", None),
    )
