"""Everything that can happen to the engine, as values: from outside, from clouds, from the solver.

External events carry absolute levels with (source, sequence); merging keeps the newest, so that
duplicates and reordering change nothing. `at` is when it happened, in epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from corald.model.fleet import Instance, InterruptionKind, Listing, TerminateOutcome
from corald.model.market import Offering, OfferingKey, Quota
from corald.model.policy import PolicySet
from corald.model.problem import Allocation, SolveReport


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """Orders samples of one key: the greater stamp is the newer sample.

    Samples of one source are ordered by (epoch, sequence); `at` orders the rest.
    """

    epoch: int
    sequence: int
    at: float


@dataclass(frozen=True, slots=True)
class DemandObserved:
    """The level of demand for one model, as one source sees it."""

    event_id: str
    source: str
    model: str
    request_rate: float
    input_tokens: float | None
    output_tokens: float | None
    window_seconds: float
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class DemandRetired:
    """An operator says that a source will not report again."""

    source: str
    at: float


@dataclass(frozen=True, slots=True)
class InterruptionNoticed:
    """A cloud will take a machine away (or advises to leave it)."""

    event_id: str
    provider: str
    instance: str
    kind: InterruptionKind
    deadline: float | None
    at: float


@dataclass(frozen=True, slots=True)
class CapacityObserved:
    """Machines of one offering obtainable beyond those held."""

    event_id: str
    source: str
    offering: OfferingKey
    available: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class PriceObserved:
    """The price of one offering."""

    event_id: str
    source: str
    offering: OfferingKey
    usd_per_hour: float
    stamp: Stamp


ExternalEvent = DemandObserved | InterruptionNoticed | CapacityObserved | PriceObserved


@dataclass(frozen=True, slots=True)
class OfferingsObserved:
    """A provider's whole list of what can be rented, with its quotas where known."""

    provider: str
    offerings: tuple[Offering, ...]
    quotas: tuple[Quota, ...]
    at: float


@dataclass(frozen=True, slots=True)
class FleetObserved:
    """A listing; `asked_at` was taken before the call was made."""

    provider: str
    listing: Listing
    asked_at: float


@dataclass(frozen=True, slots=True)
class ProviderFailed:
    """A read of a provider failed; `credentials` freezes it."""

    provider: str
    what: str
    message: str
    credentials: bool
    at: float


@dataclass(frozen=True, slots=True)
class Launched:
    """A create call answered with a machine."""

    intent: str
    instance: Instance
    at: float


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    """A create call proved that nothing was rented for this intent."""

    intent: str
    error: FailureClass
    at: float


@dataclass(frozen=True, slots=True)
class LaunchUnknown:
    """A create call may have taken effect."""

    intent: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class FailureClass:
    """A provider's error, as a value: `kind` is the lower-case stem of the error's class name.

    Kinds: `insufficient-capacity`, `quota-exceeded`, `throttled`, `invalid-request`,
    `credentials-rejected`, `instance-gone`, `blocked` (the gate refused), `outcome-unknown`.
    """

    kind: str
    message: str
    code: str = ""
    bucket: str = ""
    hours: float | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class TerminateAnswered:
    """A provider's answer to a terminate call, by instance id."""

    provider: str
    outcomes: tuple[tuple[str, TerminateOutcome], ...]
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaReady:
    """Every node runs and the model answers."""

    replica: str
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaUnready:
    """The model stopped answering."""

    replica: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class RequestsInFlight:
    """Requests that a draining replica (or a departing machine) still works on."""

    owner: str
    """A replica id, or an intent id for a departing machine."""
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class Solved:
    """A solve ended with an allocation that the checker accepted."""

    generation: int
    allocation: Allocation
    report: SolveReport
    at: float


@dataclass(frozen=True, slots=True)
class SolveFailed:
    """A solve ended without a usable answer."""

    generation: int
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class PoliciesChanged:
    """A validated configuration replaces the one in force."""

    policies: PolicySet
    at: float


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """An operator stops (or resumes) voluntary actions; `model` empty means all of them."""

    model: str
    paused: bool
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """Whether an event source can be trusted to be current; an unhealthy one forbids shrinking."""

    healthy: bool
    detail: str
    at: float
    source: str = "events"


Event = (
    ExternalEvent
    | DemandRetired
    | OfferingsObserved
    | FleetObserved
    | ProviderFailed
    | Launched
    | LaunchFailed
    | LaunchUnknown
    | TerminateAnswered
    | ReplicaReady
    | ReplicaUnready
    | RequestsInFlight
    | Solved
    | SolveFailed
    | PoliciesChanged
    | PauseRequested
    | ConsumerHealth
)


@dataclass(frozen=True, slots=True)
class Offset:
    """The next record to read of one partition."""

    topic: str
    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that was not understood, kept for the operator."""

    reason: str
    detail: str
    raw: bytes
    topic: str
    partition: int
    offset: int
    at: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Records read together: their offsets are stored in one transaction with their effect."""

    events: tuple[Event, ...] = ()
    offsets: tuple[Offset, ...] = ()
    rejects: tuple[Reject, ...] = ()
