"""The consuming side of the events benchmark: a daemon's controller with a cloud of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from aiokafka import AIOKafkaProducer

from corald.adapters.kafka_settings import KafkaSettings
from corald.adapters.kafka_source import KafkaSource
from corald.adapters.store import SqliteStore
from corald.config.catalog import load_catalog
from corald.core.engine import Engine
from corald.market.ledger import Ledger
from corald.market.machines import MarketRules
from corald.market.marketplace import Marketplace
from corald.market.provider import MarketProvider
from corald.market.stock import Stock
from corald.model.events import Batch, ConsumerHealth, DemandObserved, Event, Solved
from corald.model.fleet import Instance, LaunchRequest, ReplicaState
from corald.model.hardware import Catalog
from corald.model.market import Market, OfferingKey
from corald.model.plan import Solve
from corald.model.policy import ModelPolicy, PolicySet
from corald.model.problem import Allocation, Choice, SolveReport, SolveStatus
from corald.model.templates import Engine as EngineProfile
from corald.model.templates import Phase, ServingTemplate, Slo, Stage, Workload
from corald.plugin import Clock, ProviderContext
from corald.runtime.clock import SystemClock
from corald.runtime.controller import Controller, Parts
from corald.runtime.observer import Intervals
from corald.runtime.ports import Deliver
from corald.runtime.readiness import ModelledReadiness

CLUSTER = "bench"
REPLICAS = 8
KEY = OfferingKey("sim", "us-east-1", "use1-az4", "g6.xlarge", Market.SPOT)
WARM_UP_SECONDS = 60.0
INTERRUPT_EVERY_SECONDS = 1.5
LAG_PROBE_SECONDS = 0.01


@dataclass
class Measured:
    """What was seen while events came."""

    events: int = 0
    healthy: bool = False
    loop_lags: list[float] = field(default_factory=list)
    reactions: list[float] = field(default_factory=list)


class CountedSource:
    """A Kafka source whose events are counted once they are durable."""

    name = "kafka"

    def __init__(self, source: KafkaSource, measured: Measured) -> None:
        self._source = source
        self._measured = measured

    async def run(self, deliver: Deliver) -> None:
        """Read for ever."""

        async def counted(batch: Batch) -> None:
            await deliver(batch)
            for event in batch.events:
                if isinstance(event, DemandObserved):
                    self._measured.events += 1
                elif isinstance(event, ConsumerHealth):
                    self._measured.healthy = event.healthy

        await self._source.run(counted)


class WatchedProvider(MarketProvider):
    """A simulated cloud that tells when a launch is asked for."""

    def __init__(self, market: Marketplace, context: ProviderContext) -> None:
        super().__init__(market, context)
        self.launch_asked = asyncio.Event()

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent a machine."""
        self.launch_asked.set()
        return await super().launch(request)


class FixedPlan:
    """Wants the same replicas of the first model for ever: solving has its own benchmark."""

    def __init__(self, template: ServingTemplate) -> None:
        self._template = template

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        """Answer at once."""
        del deadline_seconds
        wanted = self._template
        choice = Choice(
            wanted.id,
            wanted.model,
            wanted.phase,
            KEY.zone_key,
            wanted.nodes,
            ((KEY, 1),),
            wanted.throughput,
            REPLICAS,
        )
        report = SolveReport(SolveStatus.PROVEN, 1.0, 1.0, 1.0, 0.0, 1, "fixed", "fixed", ())
        return Solved(request.generation, Allocation((choice,)), report, time.time())

    async def close(self) -> None:
        """Nothing to end."""


class OneTemplate:
    """The library of the fixed plan."""

    fingerprint = "fixed"

    def __init__(self, template: ServingTemplate) -> None:
        self._template = template

    def template(self, template_id: str) -> ServingTemplate | None:
        """Find it by id."""
        return self._template if template_id == self._template.id else None

    def template_ids(self, model: str, phase: Phase, engine: EngineProfile) -> tuple[str, ...]:
        """List it under its model."""
        wanted = self._template
        found = (model, phase, engine) == (wanted.model, wanted.phase, wanted.engine)
        return (wanted.id,) if found else ()


@dataclass(frozen=True)
class World:
    """A running controller and what is measured of it."""

    model: str
    """The one that is served."""
    engine: Engine
    provider: WatchedProvider
    controller: Controller
    measured: Measured

    def ready_instances(self) -> list[str]:
        """Machines of replicas that serve."""
        fleet = self.engine.state.fleet
        return [
            intent.instance
            for intent in fleet.live_intents()
            if intent.instance is not None
            and not intent.departing
            and (replica := fleet.replicas.get(intent.replica)) is not None
            and replica.state is ReplicaState.READY
        ]


@asynccontextmanager
async def running(
    settings: KafkaSettings, directory: Path, models: list[str]
) -> AsyncIterator[World]:
    """Run a controller on Kafka and a store in `directory`, and stop it in the end."""
    clock, catalog = SystemClock(), load_catalog()
    configuration = catalog.instance_types[KEY.instance_type].configuration
    template = ServingTemplate(
        models[0],
        Phase.MIXED,
        EngineProfile.VLLM,
        ((configuration, 1),),
        (Stage(10, 1, (0,)),),
        1.0,
    )
    workload = Workload(1000.0, 2000.0, 200.0, 400.0)
    policies = PolicySet(
        CLUSTER, {name: ModelPolicy(name, Slo(1000.0, 100.0), workload) for name in models}
    )
    store = SqliteStore.open(directory)
    stored = await store.load()
    engine = Engine(
        policies=policies,
        catalog=catalog,
        templates=OneTemplate(template),
        providers=frozenset((KEY.provider,)),
        stored=stored,
        now=clock.now(),
    )
    provider, measured = _provider(clock, catalog), Measured()
    source = KafkaSource(settings, stored=lambda: stored.offsets, now=clock.now)
    parts = Parts(
        engine=engine,
        store=store,
        solving=FixedPlan(template),
        providers={KEY.provider: provider},
        readiness=ModelledReadiness(lambda _: 0.5),
        clock=clock,
        sources=(CountedSource(source, measured),),
        intervals=Intervals(listing=1.0, offerings=60.0, readiness=0.5),
    )
    controller = Controller(parts)
    task = asyncio.create_task(controller.run(), name="controller")
    try:
        yield World(models[0], engine, provider, controller, measured)
    finally:
        controller.stop()
        await task
        await store.close()


def _provider(clock: Clock, catalog: Catalog) -> WatchedProvider:
    market = Marketplace(
        [Stock(KEY, 0.3, 0.8, 10_000)],
        rng=Random(0),
        start=clock.now(),
        ledger=Ledger(keep=10_000),
        rules=MarketRules(boot_seconds=0.1, shutdown_seconds=0.1),
    )
    return WatchedProvider(market, ProviderContext(KEY.provider, CLUSTER, catalog, clock))


async def warm_up(world: World, settings: KafkaSettings) -> None:
    """Bring up the fleet that is to be interrupted; a first level of demand asks for it."""
    data = {"model": world.model, "request_rate": 1, "input_tokens": 1000, "output_tokens": 200}
    async with AIOKafkaProducer(**settings.client_options()) as producer:
        event = _event("demand", 0, data | {"window_seconds": 1})
        await producer.send_and_wait(settings.demand_topic, event)
    async with asyncio.timeout(WARM_UP_SECONDS):
        while len(world.ready_instances()) < REPLICAS or not world.measured.healthy:  # noqa: ASYNC110 - polled, not to touch what is measured
            await asyncio.sleep(0.1)
    world.measured.events = 0


async def interrupt_machines(world: World, settings: KafkaSettings) -> None:
    """Interrupt a serving machine now and then, by an event, and time the replacement's launch."""
    async with AIOKafkaProducer(**settings.client_options()) as producer:
        for number in range(1_000_000):
            await asyncio.sleep(INTERRUPT_EVERY_SECONDS)
            ready = world.ready_instances()
            if not ready:
                continue
            world.provider.launch_asked.clear()
            started = time.monotonic()
            data = {"provider": KEY.provider, "instance_id": ready[0], "kind": "terminate"}
            event = _event("interruption", number, data)
            await producer.send_and_wait(settings.availability_topic, event)
            await asyncio.wait_for(world.provider.launch_asked.wait(), 10.0)
            world.measured.reactions.append(time.monotonic() - started)


def _event(kind: str, number: int, data: Mapping[str, object]) -> bytes:
    event = {"specversion": "1.0", "id": f"{kind}-{number}", "source": "/bench"}
    return json.dumps(event | {"type": f"io.corald.{kind}.v1", "data": data}).encode()


async def probe_loop_lag(measured: Measured) -> None:
    """Note how late a short sleep ends, again and again."""
    while True:
        started = time.monotonic()
        await asyncio.sleep(LAG_PROBE_SECONDS)
        measured.loop_lags.append(time.monotonic() - started - LAG_PROBE_SECONDS)
