"""The event source of a simulation: a log with one partition that outlives the daemon.

Like the real one it is read from the offset that the store keeps, so that a killed daemon reads
again what it had not made durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from corald.model.events import Batch, ConsumerHealth, ExternalEvent, Offset
from corald.plugin import Clock
from corald.runtime.ports import Deliver

TOPIC = "simulation"
BATCH_LIMIT = 500


class Log:
    """Records in the order they were produced; old ones are dropped only when asked."""

    def __init__(self) -> None:
        self._records: list[ExternalEvent] = []
        self._first = 0
        self._grown = asyncio.Event()

    def append(self, events: Iterable[ExternalEvent]) -> None:
        """Produce records; consumers wake at once."""
        self._records.extend(events)
        self._grown.set()

    def __len__(self) -> int:
        """The offset of the next record."""
        return self._first + len(self._records)

    def drop_before(self, offset: int) -> None:
        """Forget records that every reader has passed."""
        dropped = max(0, min(offset, len(self)) - self._first)
        del self._records[:dropped]
        self._first += dropped

    async def read(self, offset: int) -> tuple[ExternalEvent, ...]:
        """Wait for records at `offset` and return some of them."""
        while offset >= len(self):
            self._grown.clear()
            await self._grown.wait()
        if offset < self._first:
            raise IndexError(f"offset {offset} was dropped; the log begins at {self._first}")
        start = offset - self._first
        return tuple(self._records[start : start + BATCH_LIMIT])


class LogSource:
    """Reads a log from an offset and delivers it; implements `runtime.ports.EventSource`."""

    name = "log"

    def __init__(self, log: Log, clock: Clock, *, offsets: Iterable[Offset]) -> None:
        self._log = log
        self._clock = clock
        self._next = max((o.next_offset for o in offsets if o.topic == TOPIC), default=0)

    async def run(self, deliver: Deliver) -> None:
        """Deliver for ever."""
        healthy = ConsumerHealth(healthy=True, detail="", at=self._clock.now())
        await deliver(Batch(events=(healthy,)))
        while True:
            events = await self._log.read(self._next)
            self._next += len(events)
            await deliver(Batch(events=events, offsets=(Offset(TOPIC, 0, self._next),)))
