"""What the runtime needs from the outside: protocols that adapters and the simulation implement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from corald.model.events import Batch, Event
from corald.model.fleet import Intent, Replica
from corald.model.plan import PlanRow, Solve
from corald.model.state import Changes, Note, StoredState
from corald.model.status import Routes, Status

Deliver = Callable[[Batch], Awaitable[None]]
"""Hand a batch to the controller; returns once it is durable, which is the back-pressure."""


class Store(Protocol):
    """The durable state; every `commit` is one fsynced transaction.

    After a failed commit (no space, I/O error) the store refuses further commits with StoreError.
    """

    async def load(self) -> StoredState:
        """Read everything a restart begins with."""

    async def commit(self, changes: Changes) -> None:
        """Write all of `changes`, or nothing, and return when it is on disk."""

    async def audit(self, limit: int) -> Sequence[Note]:
        """The newest audit notes, newest first."""

    async def close(self) -> None:
        """Close the database."""


class EventSource(Protocol):
    """Something that delivers external events until it is cancelled."""

    name: str

    async def run(self, deliver: Deliver) -> None:
        """Read and deliver for ever; reconnects by itself, reports its health as ConsumerHealth."""


class Solving(Protocol):
    """Where a solve runs: a killable child process, or inline in a simulation."""

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        """Answer with Solved or SolveFailed, never later than about the deadline."""

    async def close(self) -> None:
        """End the worker."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica with its present machines, as readiness looks at it."""

    replica: Replica
    intents: tuple[Intent, ...]


class Readiness(Protocol):
    """Tells when a replica serves, and how busy a leaving one still is."""

    async def observe(
        self, replicas: Sequence[ReplicaView], departing: Sequence[Intent], now: float
    ) -> Sequence[Event]:
        """Answer with ReplicaReady, ReplicaUnready and RequestsInFlight events."""


class NoteSink(Protocol):
    """Receives every note after it is durable: logs, metrics, topics."""

    def publish(self, note: Note) -> None:
        """Take a note; must not block or raise."""


class ControlPlane(Protocol):
    """What the admin interface shows and passes on; the controller implements it.

    Pausing and everything else that an operator asks for is delivered as an event.
    """

    def status(self) -> Status:
        """The whole picture now."""

    def plan_rows(self) -> Sequence[PlanRow]:
        """The plan in force, against what exists."""

    def routes(self) -> Routes:
        """Where each model is served."""

    def explain(self, kind: str, name: str) -> Mapping[str, object] | None:
        """Why a model, instance, offering or template is as it is; None when it is unknown."""

    async def audit(self, limit: int) -> Sequence[Note]:
        """The newest audit notes, newest first."""

    async def deliver(self, batch: Batch) -> None:
        """Take events, and return once they are durable."""
