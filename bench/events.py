"""Events per second through a real broker into the real controller, on one core.

A producer process sends demand at a steady pace, for every pair of a source and a model. The
consumer process, pinned to one core, runs what the daemon runs from Kafka to the store on disk; its
cloud is simulated and its plan is fixed. Meanwhile machines are interrupted, by events through the
broker: the reaction is the time from sending the event to the call that rents a replacement. `lost`
counts the pairs whose last level the store does not hold in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import common
import event_world
from aiokafka import AIOKafkaProducer

from corald.adapters.kafka_settings import KafkaSettings
from corald.adapters.store import FILE

sys.path.append(str(common.ROOT))
from tests.kafka.broker import KafkaBroker

SOURCES = 40
MODELS = [f"model-{number}" for number in range(25)]
PAIRS = [(source, model) for source in range(SOURCES) for model in MODELS]
PARTITIONS = 4
TICK_SECONDS = 0.02
CATCH_UP_SECONDS = 60.0
LEAST_PACE = 0.95
EVENT = (
    '{"specversion":"1.0","id":"%d","source":"/gateway/%d","type":"io.corald.demand.v1",'
    '"time":"%s","sequence":"%d","data":{"model":"%s","request_rate":%s,'
    '"input_tokens":1000,"output_tokens":200,"window_seconds":0.1}}'
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=10_000, help="events per second")
    options = parser.parse_args()
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as scratch:
        settings = KafkaSettings(broker.bootstrap)
        broker.create_topic(settings.demand_topic, PARTITIONS)
        broker.create_topic(settings.availability_topic)
        sent, figures = _measure(settings, Path(scratch), options.seconds, options.rate)
        figures["lost"] = float(_lost(Path(scratch) / "state" / FILE, sent))
    common.show(("figure", "value"), list(figures.items()))
    common.finish("events", 0, figures)


def _measure(
    settings: KafkaSettings, scratch: Path, seconds: float, rate: int
) -> tuple[int, dict[str, float | None]]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    consumer = spawn.Process(
        target=_consume, args=(settings, scratch / "state", theirs), daemon=True
    )
    consumer.start()
    theirs.close()
    _receive(ours, "consumer")  # it is ready
    producing, producers_end = spawn.Pipe()
    producer = spawn.Process(
        target=_produce, args=(settings, seconds, rate, producers_end), daemon=True
    )
    producer.start()
    producers_end.close()
    sent, took = _receive(producing, "producer")
    if sent / took < LEAST_PACE * rate:
        raise SystemExit(f"could not measure: only {sent / took:.0f} events/s could be produced")
    ours.send(sent)
    figures = _receive(ours, "consumer")
    consumer.join()
    producer.join()
    return sent, figures


def _receive(pipe: Connection, whose: str) -> Any:  # noqa: ANN401 - what was sent
    try:
        return pipe.recv()
    except EOFError:
        raise SystemExit(f"could not measure: the {whose} failed, as said above") from None


def _produce(settings: KafkaSettings, seconds: float, rate: int, pipe: Connection) -> None:
    pipe.send(asyncio.run(_send_demand(settings, seconds, rate)))


async def _send_demand(settings: KafkaSettings, seconds: float, rate: int) -> tuple[int, float]:
    """Send events at a pace, all pairs in turn; answers with how many there were, in what time."""
    total, sent = int(seconds * rate), 0
    async with AIOKafkaProducer(**settings.client_options(), linger_ms=5) as producer:
        started = time.monotonic()
        while sent < total:
            due = min(total, int((time.monotonic() - started) * rate))
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            while sent < due:
                source, model = PAIRS[sent % len(PAIRS)]
                sequence = sent // len(PAIRS)
                event = EVENT % (sent, source, now, sequence, model, _level(sequence))
                await producer.send(settings.demand_topic, event.encode(), key=model.encode())
                sent += 1
            await asyncio.sleep(TICK_SECONDS)
        await producer.flush()
        return sent, time.monotonic() - started


def _level(sequence: int) -> float:
    return sequence % 97 + 0.5


def _consume(settings: KafkaSettings, directory: Path, pipe: Connection) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pipe.send(asyncio.run(_run_world(settings, directory, pipe)))


async def _run_world(
    settings: KafkaSettings, directory: Path, pipe: Connection
) -> dict[str, float | None]:
    async with event_world.running(settings, directory, MODELS) as world:
        measured = world.measured
        await event_world.warm_up(world, settings)
        pipe.send("ready")
        tasks = [
            asyncio.create_task(event_world.interrupt_machines(world, settings)),
            asyncio.create_task(event_world.probe_loop_lag(measured)),
        ]
        while not measured.events:  # noqa: ASYNC110 - polled, not to touch what is measured
            await asyncio.sleep(0.01)
        began, cpu_before = time.monotonic(), _cpu_seconds()
        expected = await asyncio.to_thread(pipe.recv)
        async with asyncio.timeout(CATCH_UP_SECONDS):
            while measured.events < expected:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        took, cpu = time.monotonic() - began, _cpu_seconds() - cpu_before
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        return {
            "events_per_second": measured.events / took,
            "lost": None,
            "cpu_seconds_per_100k": cpu / measured.events * 1e5,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "interruptions": float(len(measured.reactions)),
            "interruption_reaction_p99_seconds": _p99(measured.reactions),
            "loop_lag_p99_seconds": _p99(measured.loop_lags),
            "loop_lag_max_seconds": max(measured.loop_lags, default=None),
        }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _p99(values: list[float]) -> float | None:
    return sorted(values)[int(0.99 * len(values))] if values else None


def _lost(store: Path, sent: int) -> int:
    """How many pairs' last levels the store does not hold."""
    with closing(sqlite3.connect(store)) as database:
        rows = database.execute("SELECT source, model, value FROM demand").fetchall()
    held = {(source, model): json.loads(value)["request_rate"] for source, model, value in rows}
    last = {
        (f"/gateway/{source}", model): _level((sent - 1 - index) // len(PAIRS))
        for index, (source, model) in enumerate(PAIRS[:sent])
    }
    return sum(held.get(pair) != level for pair, level in last.items())


if __name__ == "__main__":
    main()
