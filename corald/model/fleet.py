"""Machines and replicas: what was asked for, what the clouds show, what serves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corald.model.market import OfferingKey, ZoneKey
from corald.model.templates import ServingTemplate

Tags = tuple[tuple[str, str], ...]
"""Sorted (key, value) pairs."""

TAG_CLUSTER = "corald:cluster"
TAG_MANAGED_BY = "corald:managed-by"
TAG_INTENT = "corald:intent"
TAG_MODEL = "corald:model"
TAG_REPLICA = "corald:replica"
TAG_TEMPLATE = "corald:template"
TAG_EPOCH = "corald:owner-epoch"


class InstanceState(StrEnum):
    """What a cloud says about a machine."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    """Being terminated, still billed by us until it is gone."""
    STOPPED = "stopped"
    """Halted, but its disks cost money: must be terminated."""
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine, frozen: the same token always goes with the same request."""

    token: str
    """At most 64 ASCII characters; a pure function of the intent id."""
    name: str
    """A valid resource name derived from the intent id (lower case, digits, hyphens, ≤ 63)."""
    offering: OfferingKey
    image: str
    user_data: str
    tags: Tags


@dataclass(frozen=True, slots=True)
class Instance:
    """One machine as a provider lists it."""

    id: str
    provider: str
    state: InstanceState
    offering: OfferingKey
    tags: Tags = ()
    launched_at: float | None = None
    address: str = ""
    state_reason: str = ""
    token: str = ""

    def tag(self, key: str) -> str | None:
        return dict(self.tags).get(key)


@dataclass(frozen=True, slots=True)
class Listing:
    """All machines of the cluster that a provider saw; only a complete one proves absence."""

    instances: tuple[Instance, ...]
    complete: bool
    note: str = ""


class TerminateOutcome(StrEnum):
    """The answer for one machine id."""

    REQUESTED = "requested"
    GONE = "gone"
    PROTECTED = "protected"
    """The cloud refuses (termination protection)."""
    FAILED = "failed"
    """Not now: ask again."""


class InterruptionKind(StrEnum):
    """What a cloud announces about a machine."""

    TERMINATE = "terminate"
    REBALANCE = "rebalance"
    MAINTENANCE = "maintenance"


class IntentState(StrEnum):
    """The life of one rented (or to be rented) machine, as the store knows it."""

    COMMITTED = "committed"
    """Durable; the create call may or may not have been made."""
    UNKNOWN = "unknown"
    """The call's outcome is not known: the slot is kept and counts as spend."""
    LAUNCHED = "launched"
    TERMINATING = "terminating"
    FAILED = "failed"
    """Proven not to exist."""
    GONE = "gone"

    @property
    def ended(self) -> bool:
        return self in (IntentState.FAILED, IntentState.GONE)


@dataclass(frozen=True, slots=True)
class Intent:
    """A durable wish for one machine, with everything learnt about it since."""

    id: str
    """`cluster.model.replica.ordinal.attempt`: tokens and names derive from it."""
    replica: str
    """Empty for a machine adopted without a replica."""
    ordinal: int
    attempt: int
    request: LaunchRequest
    usd_per_hour: float
    """What it costs while it runs."""
    committed_usd_per_hour: float
    """What caps count it at."""
    created_at: float
    called_at: float | None = None
    """When its create call was (last) handed out; None: never, so no machine can exist."""
    state: IntentState = IntentState.COMMITTED
    instance: str | None = None
    instance_state: InstanceState | None = None
    address: str = ""
    launched_at: float | None = None
    running_at: float | None = None
    seen_at: float | None = None
    """When a listing last showed it."""
    missing_since: float | None = None
    """Asked-at of the first complete listing without it, after it was last seen."""
    lost: bool = False
    departing: str = ""
    """Why it no longer belongs to its replica (interrupted, replaced); empty while it does."""
    leave_by: float | None = None
    """Terminate at this time at the latest."""
    advised: bool = False
    """The cloud advises to leave it: replace it when that is convenient."""
    terminate_asked_at: float | None = None
    terminating_since: float | None = None
    unknown_since: float | None = None
    reason: str = ""
    """Why it failed or went."""

    @property
    def usable(self) -> bool:
        """Whether it exists, or may, and can go on working for a replica."""
        return not (self.departing or self.state.ended or self.state is IntentState.TERMINATING)


class ReplicaState(StrEnum):
    """The life of a replica."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    RELEASING = "releasing"
    """Its machines are being terminated."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Replica:
    """A serving template instantiated in a zone; its nodes are intents with its id."""

    id: str
    template: ServingTemplate
    zone: ZoneKey
    offerings: tuple[OfferingKey, ...]
    """Where each node comes from, by ordinal."""
    attempts: tuple[int, ...]
    """The last attempt made for each slot: an identity is never used twice."""
    created_at: float
    state: ReplicaState = ReplicaState.STARTING
    reason: str = ""
    cause: str = ""
    """Id of the decision that made it."""
    ready_at: float | None = None
    ever_ready: bool = False
    drain_since: float | None = None
    drain_deadline: float | None = None
    starting_since: float | None = None
    """When its present attempt to become ready began."""
