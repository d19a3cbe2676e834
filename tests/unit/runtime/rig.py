"""A controller on virtual time, between a scripted cloud and a store that keeps everything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from corald.core.engine import Engine
from corald.errors import StoreError
from corald.market.ledger import Effect, Record
from corald.market.machines import MarketRules
from corald.market.marketplace import Marketplace
from corald.market.stock import Stock
from corald.model.events import Batch, Event, Solved
from corald.model.fleet import Instance, Intent, LaunchRequest, Replica
from corald.model.plan import Solve
from corald.model.problem import Allocation, Choice
from corald.model.state import Changes, Note, StoredState
from corald.plugin import ProviderContext
from corald.runtime.controller import Controller, Parts
from corald.runtime.observer import Intervals
from corald.runtime.readiness import ModelledReadiness
from corald.simulation.clock import VirtualClock
from corald.simulation.loop import run_virtual
from corald.testing.scripted import ScriptedProvider
from tests.unit.core.worlds import (
    BIG,
    ON_DEMAND,
    SPOT,
    T0,
    Templates,
    catalog,
    demand,
    policies,
    report,
)

LOAD_SECONDS = 30.0


class Store:
    """Implements `ports.Store` in memory; a test can slow it down or break it."""

    def __init__(self, order: list[tuple[str, str]]) -> None:
        self.commits: list[Changes] = []
        self.seconds = 0.0
        self.broken = False
        self._order = order
        self._intents: dict[str, Intent] = {}
        self._replicas: dict[str, Replica] = {}
        self._settings: dict[str, str] = {}

    async def load(self) -> StoredState:
        return StoredState(
            intents=tuple(i for i in self._intents.values() if not i.state.ended),
            replicas=tuple(r for r in self._replicas.values() if r.state != "gone"),
            settings=tuple(self._settings.items()),
        )

    async def commit(self, changes: Changes) -> None:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if self.broken:
            raise StoreError("no space")
        self.commits.append(changes)
        self._intents |= {i.id: i for i in changes.intents}
        self._replicas |= {r.id: r for r in changes.replicas}
        self._settings |= dict(changes.settings)
        self._order.extend(("durable", i.request.token) for i in changes.intents)

    async def audit(self, limit: int) -> Sequence[Note]:
        notes = [n for changes in self.commits for n in changes.notes if n.audit]
        return notes[::-1][:limit]

    async def close(self) -> None:
        """Nothing to release."""

    def intent(self) -> Intent:
        (intent,) = self._intents.values()
        return intent


class Cloud(ScriptedProvider):
    """A scripted provider that remembers the order of its calls, and can have a bug."""

    order: list[tuple[str, str]]
    bug: Exception | None = None

    async def launch(self, request: LaunchRequest) -> Instance:
        self.order.append(("launch", request.token))
        if self.bug is not None:
            raise self.bug
        return await super().launch(request)


class Aim:
    """Implements `ports.Solving` by answering with what the test aims at."""

    def __init__(self, clock: VirtualClock) -> None:
        self.target: tuple[Choice, ...] = ()
        self.seconds = 0.0
        self.asked: list[Solve] = []
        self.bug: Exception | None = None
        self.cancelled: list[int] = []
        self._clock = clock

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        self.asked.append(request)
        if self.bug is not None and len(self.asked) > 1:
            await asyncio.sleep(3.0)
            raise self.bug
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled.append(request.generation)
            raise
        return Solved(request.generation, Allocation(self.target), report(), self._clock.now())

    async def close(self) -> None:
        """No worker to end."""


class Rig:
    """The parts, and the controller of the present life."""

    def __init__(self, *, supply: int = 20, **rules: object) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop(), epoch_seconds=T0)
        self.order: list[tuple[str, str]] = []
        stock = [
            Stock(SPOT, 0.4, 1.0, supply, "G", 4.0),
            Stock(ON_DEMAND, 1.0, 1.0, supply, "G", 4.0),
            Stock(BIG, 1.5, 4.0, supply, "G", 16.0),
        ]
        self.market = Marketplace(
            stock, rng=random.Random(1), start=T0, rules=MarketRules(boot_seconds=20.0)
        )
        self.cloud = Cloud(self.market, ProviderContext("sim", "test", catalog(), self.clock))
        self.cloud.order = self.order
        self.store = Store(self.order)
        self.aim = Aim(self.clock)
        self.policies = policies(**rules)
        self.source: Callable[[Callable[[Batch], Awaitable[None]]], Awaitable[None]] | None = None
        self.sequence = 0

    async def start(self, **changes: object) -> asyncio.Task[None]:
        """Begin a life on what the store holds."""
        self.engine = Engine(
            policies=self.policies,
            catalog=catalog(),
            templates=Templates(),
            providers=frozenset({"sim"}),
            stored=await self.store.load(),
            now=self.clock.now(),
        )
        parts = Parts(
            engine=self.engine,
            store=self.store,
            solving=self.aim,
            providers={"sim": self.cloud},
            readiness=ModelledReadiness(lambda _: LOAD_SECONDS),
            clock=self.clock,
            intervals=Intervals(),
        )
        self.controller = Controller(replace(parts, **changes))
        self.task = asyncio.create_task(self.controller.run(), name="controller-under-test")
        await asyncio.sleep(0.001)
        return self.task

    async def say(self, rate: float) -> None:
        """Deliver a sample of demand."""
        self.sequence += 1
        sample = demand(rate, sequence=self.sequence, at=self.clock.now())
        await self.controller.deliver(Batch(events=(sample,)))

    async def serve(self, *target: Choice, rate: float = 10.0) -> None:
        """Aim at these replicas and wait until they serve."""
        self.aim.target = target
        await self.say(rate)
        await asyncio.sleep(120.0)
        assert len(self.controller.routes().endpoints) == sum(c.count for c in target)

    async def stop(self) -> float:
        """End the life, and tell how long that took."""
        began = self.clock.now()
        self.controller.stop()
        await self.task
        return self.clock.now() - began

    def calls(self, what: str) -> int:
        return sum(e.what == what for e in self.market.ledger.entries if e.record is Record.CALL)

    def machines(self) -> int:
        """How many machines the cloud bills for."""
        effects = [e.what for e in self.market.ledger.entries if e.record is Record.EFFECT]
        return effects.count(Effect.LAUNCHED) - effects.count(Effect.TERMINATED)


def play(act: Callable[[], Awaitable[None]], *, seed: int | None = None) -> None:
    """Run a test's coroutine on virtual time."""

    async def main() -> None:
        await act()

    run_virtual(main(), seed=seed)
