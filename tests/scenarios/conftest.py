"""`play(story)` runs a story in the small town, and checks what must hold after any."""

from __future__ import annotations

import asyncio
import random

import pytest

from corald.config.catalog import load_catalog
from corald.market.machines import MarketRules
from corald.market.marketplace import Marketplace
from corald.plugin import ProviderContext
from corald.runtime.solving import InlineSolving
from corald.simulation.checks import violations
from corald.simulation.clock import VirtualClock
from corald.simulation.harness import Scene, World
from corald.simulation.loop import run_virtual
from corald.simulation.meter import Meter
from corald.testing.scripted import ScriptedProvider
from tests.scenarios.town import CLUSTER, Town, library_of, policy_set, shelf


@pytest.fixture(scope="session")
def catalog():
    return load_catalog()


@pytest.fixture(scope="session")
def library():
    return library_of()


@pytest.fixture
def play(tmp_path, catalog, library):
    def run(story, *, policies=None, stock=None, cap=None, seed=None, **market_rules):
        async def main():
            clock = VirtualClock(asyncio.get_running_loop())
            market = Marketplace(
                stock or shelf(),
                rng=random.Random(1),
                start=clock.now(),
                rules=MarketRules(boot_seconds=30.0, **market_rules),
            )
            cloud = ScriptedProvider(market, ProviderContext("aws", CLUSTER, catalog, clock))
            world = World(
                Scene(
                    directory=tmp_path / "state",
                    policies=policies or policy_set(),
                    catalog=catalog,
                    library=library,
                    clouds={"aws": cloud},
                    clock=clock,
                    solving=lambda: InlineSolving(
                        library, clock, latency_seconds=0.2, work_limit=50
                    ),
                )
            )
            meter = Meter(world.log, clock)
            repeating = asyncio.create_task(meter.run(), name="meter")
            await world.start()
            await story(Town(world, cloud, meter))
            if not world.alive:
                await world.start()
            await world.advance(300)
            await world.stop()
            repeating.cancel()
            wrong = violations(
                [market.ledger], await world.stored(), cluster=CLUSTER, most_usd_per_hour=cap
            )
            assert wrong == []

        run_virtual(main(), seed=seed)

    return run
