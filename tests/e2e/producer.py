"""An independent producer: plays demand into Kafka, and passes notices on as a cloud's bus does.

It shares no code with the project. Orders come as JSON lines on standard input; each is answered by
one line on standard output: `levels` and `play` once they are in force, what else is sent once the
broker has acknowledged it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import sys
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

Order = dict[str, Any]
PATIENCE_MS = 180_000
"""How long a record waits for a broker that is away."""


class Producer:
    """Repeats the level of every model at each beat, and obeys orders in between."""

    def __init__(self, options: argparse.Namespace, kafka: AIOKafkaProducer) -> None:
        self._options = options
        self._kafka = kafka
        self._epoch = int(time.time())
        self._sequence = 0
        self._levels: dict[str, tuple[float, float, float]] = {}
        self._play: asyncio.Task[None] | None = None

    async def beat(self) -> None:
        """Send all levels again and again."""
        while True:
            for model in list(self._levels):
                await self._send_level(model)
            await asyncio.sleep(self._options.beat)

    async def obey(self, order: Order) -> dict[str, Any]:
        return await getattr(self, f"_do_{order.pop('do')}")(**order)

    async def _do_levels(self, levels: dict[str, tuple[float, float, float]]) -> dict[str, Any]:
        """Replace the levels: (requests/s, input tokens, output tokens) by model."""
        if self._play is not None:
            self._play.cancel()
        self._levels = dict(levels)
        for model in self._levels:
            await self._send_level(model)
        return {"at": time.time()}

    async def _do_play(self, samples: list[tuple[float, str, float, float, float]]) -> Order:
        """Follow samples (seconds from now, model, level) and hold the last level of each model."""
        self._play = asyncio.create_task(self._follow(samples))
        return {"at": time.time()}

    async def _follow(self, samples: list[tuple[float, str, float, float, float]]) -> None:
        began = time.monotonic()
        for seconds, model, *level in samples:
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
            self._levels[model] = (level[0], level[1], level[2])
            await self._send_level(model)

    async def _do_silence(self) -> dict[str, Any]:
        self._levels = {}
        return {"at": time.time()}

    async def _do_notice(self, account: str, region: str, instance: str) -> dict[str, Any]:
        """Send what EventBridge sends two minutes before a spot machine is taken."""
        at = time.time()
        message = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "source": "aws.ec2",
            "account": account,
            "time": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": region,
            "resources": [f"arn:aws:ec2:{region}:{account}:instance/{instance}"],
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        }
        topic = self._options.availability_topic
        await self._kafka.send_and_wait(topic, json.dumps(message).encode())
        return {"at": at}

    async def _do_records(self, topic: str, values: list[str | None]) -> dict[str, Any]:
        """Send raw records, written as base64; null is a tombstone."""
        sent = [
            await self._kafka.send(
                topic, None if v is None else base64.b64decode(v), key=b"raw", partition=0
            )
            for v in values
        ]
        await asyncio.gather(*sent)
        return {"at": time.time(), "records": len(sent)}

    async def _send_level(self, model: str) -> None:
        rate, input_tokens, output_tokens = self._levels[model]
        self._sequence += 1
        event = {
            "specversion": "1.0",
            "id": f"{self._epoch}-{self._sequence}",
            "source": self._options.source,
            "type": "io.corald.demand.v1",
            "time": datetime.now(UTC).isoformat(),
            "sequence": str(self._sequence),
            "epoch": str(self._epoch),
            "data": {
                "model": model,
                "request_rate": rate,
                "input_tokens": input_tokens,
                "output_tokens": output_tokens,
                "window_seconds": 1.0,
            },
        }
        with contextlib.suppress(KafkaError):  # the next beat carries the level again
            topic = self._options.demand_topic
            await self._kafka.send(topic, json.dumps(event).encode(), key=model.encode())


async def main(options: argparse.Namespace) -> None:
    """Obey until the end of the input."""
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with AIOKafkaProducer(
        bootstrap_servers=options.bootstrap,
        acks="all",
        request_timeout_ms=PATIENCE_MS,
        retry_backoff_ms=100,
        max_request_size=1 << 21,
    ) as kafka:
        producer = Producer(options, kafka)
        beat = asyncio.create_task(producer.beat())
        while (line := await reader.readline()) and not beat.done():
            answer = await producer.obey(json.loads(line))
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        beat.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--demand-topic", required=True)
    parser.add_argument("--availability-topic", required=True)
    parser.add_argument("--source", default="/e2e/gateway")
    parser.add_argument("--beat", type=float, default=0.5, help="seconds")
    asyncio.run(main(parser.parse_args()))
