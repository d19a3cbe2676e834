"""Kafka as the source of external events.

Positions are those stored with the events' effect; the group's commit only informs lag tools. Every
partition is read, since one daemon is active at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import uniform
from typing import Final

from corald.adapters.intake import Intake
from corald.adapters.kafka import BrokerError, Connection, OffsetGapError, Partition, Record
from corald.adapters.kafka_settings import KafkaSettings
from corald.adapters.native import NO_ROUTING, NativeRouting
from corald.model.events import Batch, ConsumerHealth, Offset, Reject
from corald.runtime.ports import Deliver

DISCOVER_SECONDS: Final = 30.0
MISSING_TOPIC_SECONDS: Final = 5.0
BACKOFF_SECONDS: Final = (0.5, 10.0)


class KafkaSource:
    """Implements `corald.runtime.ports.EventSource`.

    `stored` answers with the offsets to begin with; what was delivered since goes before them. A
    partition without either is read from its beginning. It is healthy while it answers and has been
    read to the end once: so it begins unhealthy. `dead_letter` is told of every refused record.
    """

    name = "kafka"

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        stored: Callable[[], Iterable[Offset]] = tuple,
        routing: NativeRouting = NO_ROUTING,
        now: Callable[[], float] = time.time,
        dead_letter: Callable[[Reject], None] | None = None,
    ) -> None:
        self._settings = settings
        self._stored = stored
        self._routing = routing
        self._now = now
        self._dead_letter = dead_letter
        self._next: dict[Partition, int] = {}
        self._trouble: str | None = None
        self._gap = ""

    async def run(self, deliver: Deliver) -> None:
        """Read and deliver until cancelled; whatever Kafka does wrong only makes it unhealthy."""
        shortest, longest = BACKOFF_SECONDS
        backoff = shortest
        await self._report(deliver, "connecting")
        while True:
            try:
                async with Connection.to(self._settings) as connection:
                    backoff = shortest
                    await self._read(connection, deliver)
            except BrokerError as error:
                await self._report(deliver, str(error))
            await asyncio.sleep(uniform(0.5, 1.0) * backoff)  # noqa: S311 - spreads load, no secret
            backoff = min(2 * backoff, longest)

    async def _read(self, connection: Connection, deliver: Deliver) -> None:
        stored = {(o.topic, o.partition): o.next_offset for o in self._stored()}
        self._next = stored | self._next
        discover_at = 0.0
        missing: list[str] = []
        while True:
            if time.monotonic() >= discover_at:
                missing = await connection.discover(self._next)
                wait = MISSING_TOPIC_SECONDS if missing else DISCOVER_SECONDS
                discover_at = time.monotonic() + wait
            try:
                records = await connection.poll()
            except OffsetGapError as error:
                await self._skip_gap(connection, error, deliver)
                continue
            if records:
                await self._hand_over(records, deliver)
            connection.commit(self._next)
            trouble = await connection.trouble()
            if missing:
                trouble = f"no topic {', '.join(missing)}"
            self._gap = self._gap if trouble else ""
            await self._report(deliver, self._gap or trouble)

    async def _hand_over(
        self, records: Mapping[Partition, Sequence[Record]], deliver: Deliver
    ) -> None:
        intake = Intake(self._now(), self._routing)
        for (topic, partition), rows in records.items():
            demand = self._settings.carries_demand(topic)
            for row in rows:
                intake.add(
                    row.value,
                    headers=row.headers,
                    topic=topic,
                    partition=partition,
                    offset=row.offset,
                    demand=demand,
                )
        positions = {where: rows[-1].offset + 1 for where, rows in records.items()}
        await deliver(intake.batch(Offset(*where, at) for where, at in positions.items()))
        self._next |= positions
        if self._dead_letter is not None:
            for reject in intake.rejects:
                self._dead_letter(reject)

    async def _skip_gap(
        self, connection: Connection, gap: OffsetGapError, deliver: Deliver
    ) -> None:
        """Lost events cannot be had back: say so, and shrink nothing until the rest is read."""
        for (topic, partition), lost in gap.partitions.items():
            earliest = await connection.skip_gap((topic, partition))
            self._next[topic, partition] = earliest
            self._gap = f"offset gap in {topic}/{partition}: from {lost} to {earliest}"
            self._trouble = self._gap
            health = ConsumerHealth(
                healthy=False, detail=self._gap, at=self._now(), source=self.name
            )
            await deliver(Batch((health,), (Offset(topic, partition, earliest),)))

    async def _report(self, deliver: Deliver, trouble: str) -> None:
        """Deliver the source's health when it changed; no trouble is health."""
        if trouble != self._trouble:
            health = ConsumerHealth(
                healthy=not trouble, detail=trouble, at=self._now(), source=self.name
            )
            await deliver(Batch((health,)))
            self._trouble = trouble
