"""What goes wrong on order: which calls fail, how, and how often; and rate limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from corald.errors import (
    CredentialsRejectedError,
    InstanceGoneError,
    InsufficientCapacityError,
    InvalidRequestError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    ThrottledError,
    TransientError,
)
from corald.market.supply import Rng


class Call(StrEnum):
    """The kinds of call a provider makes."""

    OFFERINGS = "offerings"
    QUOTAS = "quotas"
    LAUNCH = "launch"
    TERMINATE = "terminate"
    LIST = "list"

    @property
    def mutates(self) -> bool:
        return self in (Call.LAUNCH, Call.TERMINATE)


class FaultKind(StrEnum):
    """How a call goes wrong."""

    ERROR = "error"
    """Answered with `code`, without effect."""
    LOST_BEFORE = "lost-before"
    """The connection breaks before the call had its effect."""
    LOST_AFTER = "lost-after"
    """The connection breaks after it."""
    TRUNCATED = "truncated"
    """The answer is cut short, after the effect."""
    PARTIAL = "partial"
    """A listing misses machines, and says that it is incomplete."""
    DELAY = "delay"
    """Nothing but slowness."""
    DIES_AT_BOOT = "dies-at-boot"
    """The launch succeeds, but the machine is terminated with `code` instead of running."""


@dataclass(slots=True)
class Fault:
    """One order for trouble; `times` counts down, None is for ever."""

    call: Call
    kind: FaultKind
    code: str = ""
    """In the words of the API that answers; a kind of `corald.model.events.FailureClass` else."""
    status: int = 500
    """Of HTTP, where that is spoken."""
    times: int | None = 1
    skip: int = 0
    """Calls that pass unharmed first."""
    share: float = 1.0
    """The part of the calls that is hit."""
    region: str = ""
    """Only calls to this region, where a call is to one; empty is any."""
    delay_seconds: float = 0.0


class Faults:
    """The orders that stand, first come first served."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._standing: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self._standing.append(fault)

    def clear(self) -> None:
        self._standing.clear()

    def take(self, call: Call, region: str = "") -> Fault | None:
        """Return the order that this call falls under, if any, and use it up once."""
        for fault in self._standing:
            if fault.call is not call or fault.times == 0 or fault.region not in ("", region):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.share < 1.0 and self._rng.random() >= fault.share:
                continue
            if fault.times is not None:
                fault.times -= 1
            return fault
        return None


class TokenBucket:
    """A rate limit: `burst` calls at once, then `per_second`."""

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = burst
        self._at: float | None = None

    def take(self, now: float) -> float:
        """Take one token; answers 0, or else the seconds until there will be one."""
        if self._at is not None:
            passed = max(0.0, now - self._at)
            self._tokens = min(self._burst, self._tokens + passed * self._per_second)
        self._at = now
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self._per_second


_NAMED: Mapping[str, Callable[[str], ProviderError]] = {
    "insufficient-capacity": InsufficientCapacityError,
    "quota-exceeded": lambda message: QuotaExceededError(message, bucket="injected"),
    "throttled": ThrottledError,
    "invalid-request": InvalidRequestError,
    "credentials-rejected": CredentialsRejectedError,
    "instance-gone": InstanceGoneError,
    "outcome-unknown": OutcomeUnknownError,
    "transient": TransientError,
}


def unknown_outcome(call: Call, message: str) -> ProviderError:
    """Name a failure after which nobody knows: ambiguous when the call may have had an effect."""
    return OutcomeUnknownError(message) if call.mutates else TransientError(message)


def injected_error(call: Call, code: str) -> ProviderError:
    """Make the error called `code`; an unknown code is ambiguous, as real ones are."""
    message = f"{call} failed on order: {code}"
    if code in _NAMED:
        return _NAMED[code](message)
    return unknown_outcome(call, message)
