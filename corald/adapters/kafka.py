"""All that touches Kafka's client: one life of a consumer, and a publisher that holds nobody up.

What to do with records, positions and health is `kafka_source`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from corald.adapters.codec import Headers
from corald.adapters.intake import SLICE_RECORDS
from corald.adapters.kafka_settings import KafkaSettings

_log = structlog.get_logger("corald.kafka")

T = TypeVar("T")

Partition = tuple[str, int]
Positions = dict[Partition, int]

POLL_MS: Final = 500
SILENT_SECONDS: Final = 3.0
RECONNECT_SECONDS: Final = 30.0
COMMIT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 5.0
MUTED_SECONDS: Final = 60.0
FETCH_BYTES: Final = 8 * 1024 * 1024


class BrokerError(Exception):
    """Kafka does not answer, or refuses; another connection may help."""


class OffsetGapError(Exception):
    """Records at the position of these partitions are not there (deleted, or the topic is new)."""

    def __init__(self, partitions: Mapping[Partition, int]) -> None:
        super().__init__(str(partitions))
        self.partitions = partitions


class Record(Protocol):
    """What we read of the client's records."""

    value: bytes | None
    headers: Headers
    offset: int


class Connection:
    """One life of a consumer, with the admin client that looks for partitions."""

    def __init__(
        self, settings: KafkaSettings, consumer: AIOKafkaConsumer, admin: AIOKafkaAdminClient
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._admin = admin
        self._loop = asyncio.get_running_loop()
        self._silent: dict[Partition, float] = {}
        self._answered_at: dict[Partition, int | None] = {}
        self._behind: Positions = {}
        self._was_silent = False
        self._committing: asyncio.Task[None] | None = None
        self._committed: Positions = {}
        self._commit_at = 0.0

    @classmethod
    @asynccontextmanager
    async def to(cls, settings: KafkaSettings) -> AsyncIterator[Connection]:
        """Connect, and close whatever happens."""
        options = settings.client_options()
        consumer = AIOKafkaConsumer(
            **options,
            group_id=settings.group or None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=POLL_MS,
            fetch_max_bytes=FETCH_BYTES,
        )
        admin = AIOKafkaAdminClient(**options)
        connection = cls(settings, consumer, admin)
        try:
            patience = ANSWER_SECONDS * len(settings.addresses)  # they are tried in turn
            await _answer(consumer.start(), within=patience)
            await _answer(admin.start(), within=patience)
            yield connection
        finally:
            await connection._close()

    async def discover(self, positions: Positions) -> list[str]:
        """Assign all partitions there are, adding new ones to `positions`; the topics missing."""
        described = await _answer(self._admin.describe_topics(list(self._settings.topics)))
        found = {
            TopicPartition(topic["topic"], partition["partition"])
            for topic in described
            for partition in topic["partitions"]
        }
        if found - self._consumer.assignment():
            await self._assign(found, positions)
        present = {topic for topic, _ in found}
        return [topic for topic in self._settings.topics if topic not in present]

    async def poll(self) -> dict[Partition, list[Record]]:
        """The next records, at most a slice of them; none after half a second."""
        started = self._loop.time()
        try:
            records: dict[Partition, list[Record]] = await self._consumer.getmany(
                timeout_ms=POLL_MS, max_records=SLICE_RECORDS
            )
        except OffsetOutOfRangeError as error:
            raise OffsetGapError(error.args[0]) from None
        except (KafkaError, OSError) as error:
            raise _translated(error) from error
        waited = self._loop.time() - started
        for partition in self._silent:
            answered_at = self._consumer.last_poll_timestamp(partition)
            if partition in records or answered_at != self._answered_at.get(partition):
                self._answered_at[partition] = answered_at
                self._silent[partition] = 0.0
            else:
                self._silent[partition] += waited
        return records

    async def trouble(self) -> str:
        """Why the records read so far are not all there are; empty when they are."""
        silent = max(self._silent.values(), default=0.0)
        if silent > RECONNECT_SECONDS:
            raise BrokerError(f"no answer for {silent:.0f} s")
        if silent > SILENT_SECONDS:
            self._was_silent = True
            return "Kafka does not answer"
        if self._was_silent:
            await self._look_how_far_behind(self._silent)
            self._was_silent = False
        for partition, end in list(self._behind.items()):
            if await _answer(self._consumer.position(TopicPartition(*partition))) >= end:
                del self._behind[partition]
        return "reading what came before" if self._behind else ""

    async def skip_gap(self, partition: Partition) -> int:
        """Go on at the earliest record there is, and answer with its offset."""
        tp = TopicPartition(*partition)
        earliest = int((await _answer(self._consumer.beginning_offsets([tp])))[tp])
        self._consumer.seek(tp, earliest)
        await self._look_how_far_behind([tp])
        return earliest

    def commit(self, positions: Positions) -> None:
        """Tell the group where we are, now and then; nothing depends on it."""
        now = self._loop.time()
        if not self._settings.group or self._committing is not None or now < self._commit_at:
            return
        offsets = {tp: positions[tp] for tp in self._consumer.assignment() if tp in positions}
        if offsets != self._committed:
            self._commit_at = now + COMMIT_SECONDS
            self._committing = asyncio.create_task(self._commit(offsets), name="kafka-group-commit")

    async def _commit(self, offsets: Positions) -> None:
        try:
            await _answer(self._consumer.commit(offsets))
            self._committed = offsets
        except BrokerError as error:
            _log.warning("group_commit_failed", group=self._settings.group, error=str(error))
        finally:
            self._committing = None

    async def _assign(self, partitions: set[TopicPartition], positions: Positions) -> None:
        fresh = [tp for tp in partitions if tp not in positions]
        self._consumer.assign(list(partitions))
        # No await from here to the last seek: the client would look for positions by itself.
        for tp in partitions:
            self._consumer.seek(tp, positions.get(tp, 0))
        if fresh:
            self._consumer.pause(*fresh)
            earliest_of = await _answer(self._consumer.beginning_offsets(fresh))
            for tp, earliest in earliest_of.items():
                positions[tp] = earliest
                self._consumer.seek(tp, earliest)
            self._consumer.resume(*fresh)
        self._silent = dict.fromkeys(partitions, 0.0)
        await self._look_how_far_behind(partitions)

    async def _look_how_far_behind(self, partitions: Iterable[Partition]) -> None:
        tps = [TopicPartition(*partition) for partition in partitions]
        self._behind |= await _answer(self._consumer.end_offsets(tps))

    async def _close(self) -> None:
        if self._committing is not None:
            self._committing.cancel()
        # A consumer that is backing off gives up in the middle of `stop`, leaving its connections.
        for close in (self._consumer.stop, self._consumer._client.close, self._admin.close):  # noqa: SLF001 - else they leak
            with contextlib.suppress(BrokerError):
                await _answer(close(), within=CLOSE_SECONDS)


class KafkaPublisher:
    """Sends to output topics in the background; what cannot be sent soon is dropped and counted."""

    def __init__(self, settings: KafkaSettings, *, capacity: int = 1000) -> None:
        self._settings = settings
        self._queue: deque[tuple[str, bytes | None, bytes, list[tuple[str, bytes]]]] = deque()
        self._capacity = capacity
        self._filled = asyncio.Event()
        self._muted: dict[str, float] = {}
        self.sent = 0
        self.dropped = 0

    def publish(
        self, topic: str, value: bytes, *, key: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Queue a record; when the queue is full, its oldest gives way. Never blocks or raises."""
        if len(self._queue) >= self._capacity:
            self._queue.popleft()
            self.dropped += 1
        pairs = [(name, text.encode()) for name, text in (headers or {}).items()]
        self._queue.append((topic, key.encode() or None, value, pairs))
        self._filled.set()

    async def run(self) -> None:
        """Send what is queued until cancelled."""
        while True:
            producer = AIOKafkaProducer(**self._settings.client_options(), linger_ms=20)
            try:
                await _answer(producer.start())
                await self._send_all(producer)
            except BrokerError as error:
                _log.warning("publisher_unconnected", error=str(error))
            finally:
                with contextlib.suppress(BrokerError):
                    await _answer(producer.stop(), within=CLOSE_SECONDS)
            await asyncio.sleep(CLOSE_SECONDS)

    async def _send_all(self, producer: AIOKafkaProducer) -> None:
        """Topics that do not take a record are left alone for a minute, not to delay the others."""
        loop = asyncio.get_running_loop()
        while True:
            await self._filled.wait()
            while self._queue:
                topic, key, value, headers = self._queue.popleft()
                if self._muted.get(topic, 0.0) > loop.time():
                    self.dropped += 1
                    continue
                try:
                    sending = await producer.send(topic, value, key=key, headers=headers)
                except (KafkaError, OSError) as error:
                    self.dropped += 1
                    self._muted[topic] = loop.time() + MUTED_SECONDS
                    _log.warning("publish_failed", topic=topic, error=repr(error))
                else:
                    sending.add_done_callback(self._answered)
            self._filled.clear()

    def _answered(self, sending: asyncio.Future[object]) -> None:
        if sending.cancelled() or sending.exception() is not None:
            self.dropped += 1
        else:
            self.sent += 1


async def _answer(call: Coroutine[Any, Any, T], *, within: float = ANSWER_SECONDS) -> T:
    """Await a call of the client, but not for ever, and not cancelled when it cancels itself."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait({task}, timeout=within)
    finally:
        task.cancel()
    if not task.done() or task.cancelled():
        raise BrokerError("no answer")
    try:
        return task.result()
    except (KafkaError, OSError, TimeoutError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> BrokerError:
    return BrokerError(f"{type(error).__name__}: {error}")
