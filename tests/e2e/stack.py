"""All parts of a test together."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.e2e.daemon import Daemon, Settings
from tests.e2e.programs import Cloud, Producer, Program, until
from tests.kafka.broker import KafkaBroker

_numbers = itertools.count(1)


@dataclass
class Stack:
    """All parts of one test."""

    folder: Path
    broker: KafkaBroker
    cloud: Cloud
    daemon: Daemon
    producer: Producer
    _more: list[Program] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, broker: KafkaBroker, **settings: Any) -> Self:
        """Start everything but the daemon."""
        cluster = f"e2e-{os.getpid()}-{next(_numbers)}"
        cloud = Cloud(folder)
        plan = Settings(cluster, broker.bootstrap, "", folder / "state", **settings)
        daemon = Daemon(folder, plan)
        producer = Producer(folder, plan.bootstrap, plan.demand_topic, plan.availability_topic)
        stack = cls(folder, broker, cloud, daemon, producer)
        try:
            broker.create_topic(plan.demand_topic)
            broker.create_topic(plan.availability_topic)
            cloud.start()
            daemon.write(replace(plan, endpoint=cloud.url))
            stack.producer.start()
        except BaseException:
            stack.close()
            raise
        return stack

    def second_daemon(self, name: str, **changes: Any) -> Daemon:
        """Another daemon; it has the first one's state directory if that is not changed."""
        daemon = Daemon(self.folder, replace(self.daemon.settings, **changes), name)
        self.also(daemon.program)
        return daemon

    def also(self, program: Program) -> None:
        """Close this one too at the end."""
        self._more.append(program)

    def broker_ends(self) -> dict[str, int]:
        """The end of each topic that holds anything, asked of the broker."""
        settings = self.daemon.settings
        topics = (settings.demand_topic, settings.availability_topic)
        return asyncio.run(_ends(self.broker.bootstrap, topics))

    def serving(self, rates: Mapping[str, float]) -> None:
        """Ask for these requests/s, and wait until they are served and nothing moves any more."""
        self.producer.levels(rates)
        until(lambda: self.served(rates) and not self.moving(), f"{rates} served")

    def moving(self) -> bool:
        """Whether any replica is on its way up or down."""
        return any(
            model["replicas_starting"] or model["replicas_draining"]
            for model in self.daemon.models().values()
        )

    def served(self, rates: Mapping[str, float]) -> bool:
        """Whether demand is known and what is ready covers it."""
        models = self.daemon.models()
        routed = {endpoint["model"] for endpoint in self.daemon.endpoints()}
        return all(
            models[model]["demand"] == rate
            and models[model]["unmet"] == 0
            and (rate == 0 or model in routed)
            for model, rate in rates.items()
        )

    def close(self) -> None:
        programs = [self.daemon.program, self.producer.program, self.cloud.program, *self._more]
        for program in programs:
            program.close()

    def logs(self) -> Iterator[tuple[str, str]]:
        """The end of every log, for a test that fails."""
        for path in sorted(self.folder.glob("*.log")):
            yield path.name, path.read_text()[-12_000:]


async def _ends(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, 0) for topic in topics])
    return {where.topic: end for where, end in ends.items() if end}
