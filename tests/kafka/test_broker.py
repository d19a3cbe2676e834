"""The testbed's broker is a real one: it keeps data, freezes and recovers, and guards its doors."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.kafka.broker import PASSWORD, SCRAM, USER, KafkaBroker, KafkaTestbedError


async def _produce(topic: str, values: list[bytes], **connection: Any) -> None:
    producer = AIOKafkaProducer(enable_idempotence=True, **connection)
    try:
        await producer.start()
        for value in values:
            await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def _consume(topic: str, count: int, bootstrap: str) -> list[bytes | None]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=50) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]


def _crash(broker: KafkaBroker) -> None:
    broker.kill()
    broker.start()


@pytest.mark.parametrize("interrupt", [KafkaBroker.restart, _crash])
def test_records_outlive_a_restart_on_the_same_address(
    kafka_broker: KafkaBroker, kafka_topic: str, interrupt: Callable[[KafkaBroker], None]
) -> None:
    address, first_pid = kafka_broker.bootstrap, kafka_broker.pid
    sent = [f"before {n}".encode() for n in range(100)]
    asyncio.run(_produce(kafka_topic, sent, bootstrap_servers=address))
    interrupt(kafka_broker)
    assert kafka_broker.bootstrap == address
    assert kafka_broker.pid != first_pid
    asyncio.run(_produce(kafka_topic, [b"after"], bootstrap_servers=address))
    assert asyncio.run(_consume(kafka_topic, 101, address)) == [*sent, b"after"]


def test_a_paused_broker_answers_only_when_resumed(
    kafka_broker: KafkaBroker, kafka_topic: str
) -> None:
    async def produce_through_a_pause() -> float:
        connection = {"bootstrap_servers": kafka_broker.bootstrap}
        async with AIOKafkaProducer(**connection) as producer:
            await producer.send_and_wait(kafka_topic, b"warm")
            kafka_broker.pause()
            try:
                sending = asyncio.create_task(producer.send_and_wait(kafka_topic, b"held"))
                await asyncio.sleep(0.5)
                assert not sending.done()
            finally:
                kafka_broker.resume()
            resumed = time.monotonic()
            await sending
            return time.monotonic() - resumed

    assert asyncio.run(produce_through_a_pause()) < 5.0


def test_a_paused_broker_can_be_stopped() -> None:
    broker = KafkaBroker()
    with broker:
        broker.pause()
        broker.stop(timeout=15.0)
        with pytest.raises(KafkaTestbedError, match="not running"):
            broker.pid  # noqa: B018 - reading it is the check
        assert (broker.folder / "data").is_dir()
    assert not broker.folder.exists()


KILLED_WITH_A_BROKER = """
import os, signal
from tests.kafka.broker import KafkaBroker

broker = KafkaBroker()
broker.start()
print(broker.pid, broker.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_ends_with_the_process_that_started_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WITH_A_BROKER], stdout=subprocess.PIPE, text=True, check=False
    )
    pid, folder = done.stdout.split()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    ended = not Path(f"/proc/{pid}").exists()
    shutil.rmtree(folder)
    assert ended


def test_a_topic_is_never_made_twice_or_by_chance(
    kafka_broker: KafkaBroker, kafka_topic: str
) -> None:
    with pytest.raises(KafkaTestbedError, match="already exists"):
        kafka_broker.create_topic(kafka_topic)
    never_made = {"bootstrap_servers": kafka_broker.bootstrap, "request_timeout_ms": 500}
    with pytest.raises(KafkaError):
        asyncio.run(_produce("corald.never-made", [b"lost"], **never_made))


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_sasl_listener_lets_in_only_the_right_password(
    kafka_broker: KafkaBroker, kafka_topic: str, listener: str, mechanism: str
) -> None:
    connection = {
        "bootstrap_servers": kafka_broker.address(listener),
        "security_protocol": listener,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        "ssl_context": ssl.create_default_context(cafile=kafka_broker.ca_file)
        if listener == "SASL_SSL"
        else None,
    }
    asyncio.run(_produce(kafka_topic, [b"in"], **connection))
    with pytest.raises(KafkaError):
        asyncio.run(_produce(kafka_topic, [b"out"], **connection | {"sasl_plain_password": "no"}))
    assert asyncio.run(_consume(kafka_topic, 1, kafka_broker.bootstrap)) == [b"in"]


def test_tls_is_trusted_only_through_the_authority_and_mtls_wants_a_certificate(
    kafka_broker: KafkaBroker, kafka_topic: str
) -> None:
    known = ssl.create_default_context(cafile=kafka_broker.ca_file)
    with_certificate = ssl.create_default_context(cafile=kafka_broker.ca_file)
    with_certificate.load_cert_chain(kafka_broker.client_cert, kafka_broker.client_key)

    def reach(listener: str, context: ssl.SSLContext) -> None:
        address = kafka_broker.address(listener)
        connection = {"bootstrap_servers": address, "security_protocol": "SSL"}
        asyncio.run(_produce(kafka_topic, [b"in"], ssl_context=context, **connection))

    reach("SSL", known)
    reach("MTLS", with_certificate)
    with pytest.raises(KafkaError):
        reach("SSL", ssl.create_default_context())
    with pytest.raises(KafkaError):
        reach("MTLS", known)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, settings={"log.retention.hours": "many"})
    with pytest.raises(KafkaTestbedError, match=r"log\.retention\.hours"):
        broker.start()


def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaTestbedError, match="apt-get install openjdk-17"):
        KafkaBroker(tmp_path).start()
