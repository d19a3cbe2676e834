"""From raw records to the batch a controller takes: what is understood, and what is put aside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from corald.adapters.codec import Headers, decode
from corald.adapters.native import NO_ROUTING, NativeRouting
from corald.adapters.records import MAX_KEPT_BYTES, Reason
from corald.errors import MalformedEventError
from corald.model.events import Batch, DemandObserved, ExternalEvent, Offset, Reject

SLICE_RECORDS = 500
"""How many records are decoded before the event loop gets its turn: about 5 ms of work."""


@dataclass(slots=True)
class Intake:
    """Collects records that were read together, at `received_at`."""

    received_at: float
    routing: NativeRouting = NO_ROUTING
    events: list[ExternalEvent] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def add(
        self,
        value: bytes | None,
        *,
        headers: Headers = (),
        topic: str,
        partition: int = 0,
        offset: int = 0,
        demand: bool | None = None,
    ) -> None:
        """Decode one record; `demand` tells whether its topic carries demand, None carries all."""
        try:
            decoded = decode(
                value, headers=headers, received_at=self.received_at, routing=self.routing
            )
            if demand is not None:
                _refuse_wrong_topic(decoded, demand=demand)
        except MalformedEventError as error:
            raw = (value or b"")[:MAX_KEPT_BYTES]
            self.rejects.append(
                Reject(error.reason, error.detail, raw, topic, partition, offset, self.received_at)
            )
        else:
            self.events.extend(decoded)

    def batch(self, offsets: Iterable[Offset] = ()) -> Batch:
        """Everything added, with the positions that follow it."""
        return Batch(tuple(self.events), tuple(offsets), tuple(self.rejects))


def _refuse_wrong_topic(events: Iterable[ExternalEvent], *, demand: bool) -> None:
    """Who may write to a topic is the broker's to say; so a topic may carry its own types only."""
    for event in events:
        if isinstance(event, DemandObserved) is not demand:
            raise MalformedEventError(Reason.WRONG_TOPIC, type(event).__name__)
