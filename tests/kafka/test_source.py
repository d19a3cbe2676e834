"""The Kafka source against the real broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete

from corald.adapters import kafka, kafka_settings, kafka_source
from corald.adapters.kafka import KafkaPublisher
from corald.adapters.kafka_settings import KafkaSettings
from corald.adapters.kafka_source import KafkaSource
from corald.model.events import (
    Batch,
    CapacityObserved,
    ConsumerHealth,
    DemandObserved,
    Offset,
    Reject,
)
from tests.kafka.broker import PASSWORD, USER, KafkaBroker

OFFERING = {
    "provider": "aws-main",
    "region": "us-east-1",
    "zone": "use1-az4",
    "instance_type": "g6.12xlarge",
    "market": "spot",
}


def _event(kind: str, number: int, data: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "specversion": "1.0",
            "id": f"{kind}-{number}",
            "source": "/test",
            "type": f"io.corald.{kind}.v1",
            "sequence": str(number),
            "data": data,
        }
    ).encode()


def _demand(number: int) -> bytes:
    data = {"model": "m", "request_rate": number, "input_tokens": 9, "output_tokens": 9}
    return _event("demand", number, data | {"window_seconds": 1})


def _capacity(number: int) -> bytes:
    return _event("capacity", number, OFFERING | {"available": number})


class Controller:
    """Takes batches as the real one does: what it was given counts once `deliver` returns."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    async def deliver(self, batch: Batch) -> None:
        self.batches.append(batch)

    @property
    def demand(self) -> list[float]:
        events = [event for batch in self.batches for event in batch.events]
        return [event.request_rate for event in events if isinstance(event, DemandObserved)]

    @property
    def capacity(self) -> list[int]:
        events = [event for batch in self.batches for event in batch.events]
        return [event.available for event in events if isinstance(event, CapacityObserved)]

    @property
    def health(self) -> list[ConsumerHealth]:
        events = [event for batch in self.batches for event in batch.events]
        return [event for event in events if isinstance(event, ConsumerHealth)]

    @property
    def rejects(self) -> list[Reject]:
        return [reject for batch in self.batches for reject in batch.rejects]

    @property
    def offsets(self) -> dict[tuple[str, int], int]:
        every = [offset for batch in self.batches for offset in batch.offsets]
        return {(o.topic, o.partition): o.next_offset for o in every}

    def is_healthy(self) -> bool:
        return bool(self.health) and self.health[-1].healthy

    def is_unhealthy_for(self, detail: str) -> bool:
        return bool(self.health) and detail in self.health[-1].detail


async def _until(condition: Callable[[], object], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - conditions are of several objects
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _produce(broker: KafkaBroker, topic: str, *values: bytes | None) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=5) as producer:
        await asyncio.gather(*[await producer.send(topic, value, key=b"k") for value in values])


@asynccontextmanager
async def _admin(broker: KafkaBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@pytest.fixture
def demand_topic(kafka_topic: str) -> str:
    return kafka_topic


@pytest.fixture
def availability_topic(kafka_broker: KafkaBroker, kafka_topic: str) -> str:
    kafka_broker.create_topic(f"{kafka_topic}.availability")
    return f"{kafka_topic}.availability"


@pytest.fixture
def settings(
    kafka_broker: KafkaBroker, demand_topic: str, availability_topic: str
) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=kafka_broker.bootstrap,
        demand_topic=demand_topic,
        availability_topic=availability_topic,
        group=demand_topic,
    )


def test_events_of_both_topics_arrive_in_order_with_their_offsets(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    async def scenario() -> None:
        await _produce(kafka_broker, settings.demand_topic, *map(_demand, range(1200)))
        await _produce(kafka_broker, settings.availability_topic, _capacity(3))
        controller = Controller()
        async with _running(KafkaSource(settings).run(controller.deliver)):
            await _until(controller.is_healthy)
            assert controller.demand == list(range(1200))
            assert controller.capacity == [3]
            assert controller.offsets == {
                (settings.demand_topic, 0): 1200,
                (settings.availability_topic, 0): 1,
            }
            assert [health.healthy for health in controller.health[:-1]] == [False, False]
            assert max(len(batch.events) for batch in controller.batches) <= 500
            await _produce(kafka_broker, settings.demand_topic, _demand(1200))
            await _until(lambda: controller.demand[-1] == 1200)

    asyncio.run(scenario())


def test_a_source_on_empty_topics_is_healthy(settings: KafkaSettings) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with _running(KafkaSource(settings).run(controller.deliver)):
            await _until(controller.is_healthy)
            assert (controller.demand, controller.offsets) == ([], {})

    asyncio.run(scenario())


def test_poison_is_put_aside_and_never_stops_what_follows(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    poison = [b"\xff\xfe", None, b"[" * 10_000, b"x" * 100_000, _capacity(1), b"{}"]

    async def scenario() -> None:
        mixed = [value for n, bad in enumerate(poison) for value in (bad, _demand(n))]
        await _produce(kafka_broker, settings.demand_topic, *mixed)
        await _produce(kafka_broker, settings.availability_topic, _demand(99))
        controller, dead = Controller(), list[Reject]()
        source = KafkaSource(settings, dead_letter=dead.append)
        async with _running(source.run(controller.deliver)):
            await _until(controller.is_healthy)
        assert controller.demand == [0, 1, 2, 3, 4, 5]
        assert controller.capacity == []
        refused = [r for r in controller.rejects if r.topic == settings.demand_topic]
        assert [(r.offset, r.reason) for r in refused] == [
            (0, "malformed-json"),
            (2, "tombstone"),
            (4, "malformed-json"),
            (6, "oversized"),
            (8, "wrong-topic"),
            (10, "not-cloudevent"),
        ]
        assert len(refused[3].raw) == 4096
        assert sorted(dead, key=id) == sorted(controller.rejects, key=id)
        assert len(dead) == 7

    asyncio.run(scenario())


def test_a_new_source_resumes_at_the_stored_offsets_whatever_the_group_says(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    async def scenario() -> None:
        await _produce(kafka_broker, settings.demand_topic, *map(_demand, range(10)))
        first, second = Controller(), Controller()
        async with (
            _running(KafkaSource(settings).run(first.deliver)),
            _admin(kafka_broker) as admin,
        ):
            await _until(first.is_healthy)
            committed: dict[TopicPartition, Any] = {}
            async with asyncio.timeout(10):
                while not committed:
                    committed = await admin.list_consumer_group_offsets(settings.group)
        assert committed[TopicPartition(settings.demand_topic, 0)].offset == 10
        stored = [Offset(settings.demand_topic, 0, 7), Offset("another.topic", 5, 1)]
        source = KafkaSource(settings, stored=lambda: stored)
        async with _running(source.run(second.deliver)):
            await _until(second.is_healthy)
        assert second.demand == [7, 8, 9]

    asyncio.run(scenario())


def test_a_stopped_broker_makes_it_unhealthy_and_nothing_is_lost_or_read_twice(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with _running(KafkaSource(settings).run(controller.deliver)):
            await _produce(kafka_broker, settings.demand_topic, _demand(0))
            await _until(lambda: controller.is_healthy() and controller.demand == [0])
            await asyncio.to_thread(kafka_broker.stop)
            try:
                await _until(lambda: not controller.is_healthy(), 6)
            finally:
                await asyncio.to_thread(kafka_broker.start)
            started = time.monotonic()
            await _produce(kafka_broker, settings.demand_topic, _demand(1))
            await _until(lambda: controller.is_healthy() and controller.demand == [0, 1], 10)
            assert time.monotonic() - started < 10

    asyncio.run(scenario())


def test_a_long_outage_is_survived_on_new_connections_without_leaving_any_behind(
    kafka_broker: KafkaBroker, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "SILENT_SECONDS", 0.7)
    monkeypatch.setattr(kafka, "RECONNECT_SECONDS", 1.5)
    monkeypatch.setattr(kafka_source, "BACKOFF_SECONDS", (0.2, 0.5))

    async def scenario() -> None:
        controller = Controller()
        async with _running(KafkaSource(settings).run(controller.deliver)):
            await _until(controller.is_healthy)
            before = _tasks()
            await asyncio.to_thread(kafka_broker.stop)
            try:
                await _until(lambda: controller.is_unhealthy_for("Unable to bootstrap"))
            finally:
                await asyncio.to_thread(kafka_broker.start)
            await _produce(kafka_broker, settings.demand_topic, _demand(1))
            await _until(lambda: controller.is_healthy() and controller.demand == [1])
            await _until(lambda: _tasks() <= before)
        await _until(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(scenario())


def _tasks() -> Counter[str]:
    """How many of each kind of task are alive; connections come and go with what is asked."""
    names = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return Counter(name for name in names if not name.startswith("AIOKafkaConnection"))


def test_a_frozen_broker_makes_it_unhealthy_until_it_answers(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with _running(KafkaSource(settings).run(controller.deliver)):
            await _until(controller.is_healthy)
            kafka_broker.pause()
            try:
                await _until(lambda: controller.is_unhealthy_for("does not answer"), 6)
            finally:
                kafka_broker.resume()
            await _until(controller.is_healthy, 15)

    asyncio.run(scenario())


def test_a_source_that_cannot_connect_says_so_and_goes_on_trying(
    settings: KafkaSettings, kafka_broker: KafkaBroker
) -> None:
    async def scenario() -> None:
        controller = Controller()
        await asyncio.to_thread(kafka_broker.stop)
        try:
            task = asyncio.create_task(KafkaSource(settings).run(controller.deliver))
            await _until(lambda: controller.is_unhealthy_for("KafkaConnectionError"))
        finally:
            await asyncio.to_thread(kafka_broker.start)
        await _until(controller.is_healthy)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_an_offset_gap_is_told_of_and_reading_resumes_at_the_earliest_record(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    async def scenario() -> None:
        partition = TopicPartition(settings.demand_topic, 0)
        await _produce(kafka_broker, settings.demand_topic, *map(_demand, range(10)))
        async with _admin(kafka_broker) as admin:
            await admin.delete_records({partition: RecordsToDelete(before_offset=6)})
        controller = Controller()
        stored = [Offset(settings.demand_topic, 0, 3)]
        source = KafkaSource(settings, stored=lambda: stored)
        async with _running(source.run(controller.deliver)):
            await _until(controller.is_healthy)
        assert controller.demand == [6, 7, 8, 9]
        gap = f"offset gap in {settings.demand_topic}/0: from 3 to 6"
        where = [h.detail for h in controller.health].index(gap)
        assert [h.healthy for h in controller.health[where:]] == [False, True]
        assert Offset(settings.demand_topic, 0, 6) in [
            offset for batch in controller.batches for offset in batch.offsets
        ]

    asyncio.run(scenario())


def test_an_offset_beyond_the_end_of_a_new_topic_is_a_gap_too(
    kafka_broker: KafkaBroker, settings: KafkaSettings
) -> None:
    async def scenario() -> None:
        await _produce(kafka_broker, settings.demand_topic, _demand(0))
        controller = Controller()
        source = KafkaSource(settings, stored=lambda: [Offset(settings.demand_topic, 0, 99)])
        async with _running(source.run(controller.deliver)):
            await _until(controller.is_healthy)
        assert controller.demand == [0]

    asyncio.run(scenario())


def test_topics_and_partitions_that_come_later_are_found(
    kafka_broker: KafkaBroker, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "DISCOVER_SECONDS", 0.5)
    monkeypatch.setattr(kafka_source, "MISSING_TOPIC_SECONDS", 0.5)
    late = f"{settings.demand_topic}.late"
    other = replace(settings, demand_topic=late)

    async def scenario() -> None:
        controller = Controller()
        async with _running(KafkaSource(other).run(controller.deliver)):
            await _until(lambda: controller.is_unhealthy_for(f"no topic {late}"))
            kafka_broker.create_topic(late)
            await _produce(kafka_broker, late, _demand(1))
            await _until(lambda: controller.is_healthy() and controller.demand == [1])
            async with _admin(kafka_broker) as admin:
                await admin.create_partitions({late: NewPartitions(total_count=3)})
            await asyncio.sleep(1)
            async with AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap) as producer:
                for partition in range(3):
                    await producer.send_and_wait(late, _demand(2), partition=partition)
            await _until(lambda: controller.demand == [1, 2, 2, 2])
            assert controller.offsets == {(late, 0): 2, (late, 1): 1, (late, 2): 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("listener", ["SSL", "MTLS", "SASL_SSL", "SASL_PLAINTEXT"])
def test_it_reads_over_every_secure_listener(
    kafka_broker: KafkaBroker, settings: KafkaSettings, listener: str
) -> None:
    options: dict[str, Any] = {}
    if listener != "SASL_PLAINTEXT":
        options["ssl_cafile"] = kafka_broker.ca_file
    if listener == "MTLS":
        options["ssl_certfile"] = kafka_broker.client_cert
        options["ssl_keyfile"] = kafka_broker.client_key
    if "SASL" in listener:
        options["sasl_mechanism"] = "SCRAM-SHA-512"
        options["sasl_username"] = USER
        options["sasl_password"] = PASSWORD
    secure = replace(
        settings,
        bootstrap=kafka_broker.address(listener),
        security_protocol=listener.replace("MTLS", "SSL"),
        **options,
    )

    async def scenario() -> None:
        await _produce(kafka_broker, settings.demand_topic, _demand(4))
        controller = Controller()
        async with _running(KafkaSource(secure).run(controller.deliver)):
            await _until(controller.is_healthy)
        assert controller.demand == [4]

    asyncio.run(scenario())


def test_a_wrong_password_is_told_of_without_telling_it(
    kafka_broker: KafkaBroker, settings: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = replace(
        settings,
        bootstrap=kafka_broker.address("SASL_SSL"),
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=USER,
        sasl_password="canary-secret",
        ssl_cafile=kafka_broker.ca_file,
    )

    async def scenario() -> None:
        controller = Controller()
        async with _running(KafkaSource(wrong).run(controller.deliver)):
            await _until(lambda: len(controller.health) > 1)
        assert not controller.is_healthy()
        assert "canary-secret" not in f"{controller.health} {wrong} {caplog.text}"

    asyncio.run(scenario())


def test_a_publisher_sends_in_order_and_drops_what_a_missing_topic_cannot_take(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_settings, "REQUEST_TIMEOUT_MS", 2000)

    async def scenario() -> None:
        publisher = KafkaPublisher(settings, capacity=3)
        for number in range(5):
            publisher.publish(settings.demand_topic, _demand(number), key="m", headers={"a": "b"})
        assert publisher.dropped == 2
        controller = Controller()
        async with (
            _running(publisher.run()),
            _running(KafkaSource(settings).run(controller.deliver)),
        ):
            await _until(lambda: controller.demand == [2, 3, 4])
            publisher.publish("corald.never-made", b"lost")
            publisher.publish(settings.demand_topic, _demand(5))
            await _until(lambda: controller.demand[-1] == 5)
            await _until(lambda: (publisher.sent, publisher.dropped) == (4, 3))

    asyncio.run(scenario())
