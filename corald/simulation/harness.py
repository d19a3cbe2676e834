"""A whole cluster on virtual time: send events, let time pass, kill the daemon and start it again.

Everything between the event log and the clouds is what the daemon runs. Clouds and log outlive the
daemon; the store is a file, so that a new life starts from what the last one made durable. What a
test reads is mostly not the daemon's word: the ledgers are the clouds' own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corald import __version__
from corald.adapters.metrics import Metrics
from corald.adapters.store import SqliteStore
from corald.core.engine import Engine
from corald.library import Library
from corald.market.ledger import Ledger
from corald.market.provider import MarketProvider
from corald.model.events import Batch, Event, ExternalEvent, PoliciesChanged
from corald.model.fleet import Replica
from corald.model.hardware import Catalog
from corald.model.policy import PolicySet
from corald.model.state import Note, StoredState
from corald.model.status import Status
from corald.plugin import Clock
from corald.runtime.controller import Controller, Parts
from corald.runtime.observer import Intervals
from corald.runtime.ports import NoteSink, Readiness, Solving
from corald.runtime.readiness import ModelledReadiness
from corald.simulation.broker import Log, LogSource
from corald.simulation.failpoints import (
    FailPoints,
    Killed,
    Life,
    MortalProvider,
    MortalSource,
    MortalStore,
)

SETTLE_SECONDS = 0.001
"""Time moves on only when nothing is left to do, so any wait lets all present work end."""
STEP_SECONDS = 1.0
KEPT_NOTES = 100_000


@dataclass(frozen=True, slots=True)
class Scene:
    """What a world is made of."""

    directory: Path
    """Where the store lives."""
    policies: PolicySet
    catalog: Catalog
    library: Library
    clouds: Mapping[str, MarketProvider]
    """By provider name; usually of `corald.testing.scripted` or the simulated plugin."""
    clock: Clock
    solving: Callable[[], Solving]
    """Makes the solver of each life."""
    readiness: Readiness | None = None
    """None: by the modelled time to load."""
    intervals: Intervals = field(default_factory=Intervals)
    sinks: tuple[NoteSink, ...] = ()


class World:
    """Implements `runtime.ports.ControlPlane` by whichever daemon is alive."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.clock = scene.clock
        self.clouds = scene.clouds
        self.policies = scene.policies
        """What the next life is configured with."""
        self.log = Log()
        self.points = FailPoints()
        self.notes: deque[Note] = deque(maxlen=KEPT_NOTES)
        """Of all lives; the newest."""
        self.metrics = Metrics(__version__)
        """Of the present life, as a scrape would see it."""
        self._controller: Controller | None = None
        self._daemon: asyncio.Task[None] | None = None
        self._life: Life | None = None

    # Life and death

    @property
    def alive(self) -> bool:
        """Whether a daemon runs."""
        return self._daemon is not None and not self._daemon.done()

    async def start(self) -> None:
        """Start a daemon on the store as it is; returns when it runs, or has died already."""
        if self.alive:
            raise RuntimeError("a daemon runs already; kill or stop it first")
        self._controller = None
        self._daemon = asyncio.create_task(self._live(), name="daemon")
        await self.settle()

    async def stop(self) -> None:
        """End the daemon as SIGTERM does."""
        if self._controller is not None and self._daemon is not None:
            self._controller.stop()
            await self._daemon

    async def kill(self) -> None:
        """End the daemon as `kill -9` does: nothing more reaches the store or a cloud."""
        if self._life is not None and self._daemon is not None:
            self._life.end()
            await asyncio.wait([self._daemon])

    async def restart(self) -> None:
        """Kill the daemon if it is alive, and start it anew."""
        await self.kill()
        await self.start()

    # Time and events

    async def advance(self, seconds: float) -> None:
        """Let time pass; an error that ended the daemon is raised here."""
        await self.clock.sleep(seconds)
        if self._daemon is not None and self._daemon.done():
            self._daemon.result()

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        await self.advance(SETTLE_SECONDS)

    async def until(self, condition: Callable[[], bool], *, within: float, what: str = "") -> float:
        """Let time pass until `condition` holds; answers with how long that took.

        Raises:
            TimeoutError: it did not hold within `within` seconds.
        """
        started = self.clock.monotonic()
        while not condition():
            passed = self.clock.monotonic() - started
            if passed >= within:
                raise TimeoutError(f"after {passed:.0f} s still not: {what or condition}")
            await self.advance(min(STEP_SECONDS, within - passed))
        return self.clock.monotonic() - started

    async def send(self, *events: ExternalEvent) -> None:
        """Produce events to the log, and let a living daemon take them."""
        self.log.append(events)
        await self.settle()

    async def tell(self, *events: Event) -> None:
        """Deliver events past the log, as the admin interface does."""
        await self.deliver(Batch(events=events))

    async def reload(self, policies: PolicySet) -> None:
        """Put a validated configuration in force, in this life and later ones."""
        self.policies = policies
        await self.tell(PoliciesChanged(policies, self.clock.now()))

    # What can be seen

    @property
    def controller(self) -> Controller:
        """The control plane of the daemon that is alive."""
        if self._controller is None:
            raise RuntimeError("no daemon runs")
        return self._controller

    async def deliver(self, batch: Batch) -> None:
        """Hand a batch to the daemon that is alive."""
        await self.controller.deliver(batch)

    def status(self) -> Status:
        """What the daemon says."""
        return self.controller.status()

    def ledger(self, cloud: str) -> Ledger:
        """What a cloud saw and did."""
        return self.clouds[cloud].market.ledger

    def noted(self, event: str) -> list[Note]:
        """All notes of one kind, oldest first."""
        return [note for note in self.notes if note.event == event]

    async def stored(self) -> StoredState:
        """What a restart would begin with; only while no daemon runs."""
        store = SqliteStore.open(self.scene.directory, inline=True, fsync=False)
        try:
            return await store.load()
        finally:
            await store.close()

    # One life

    async def _live(self) -> None:
        life = Life(self.points, self._abort)
        self._life = life
        store = SqliteStore.open(self.scene.directory, inline=True, fsync=False)
        solving = self.scene.solving()
        try:
            stored = await MortalStore(store, life).load()
            self._controller = self._assemble(stored, MortalStore(store, life), solving, life)
            await self._controller.run()
        except BaseException as error:
            if not life.dead or not _is_death(error):
                raise
        finally:
            await solving.close()
            await store.close()

    def _abort(self) -> None:
        """End the tasks of a life; the one that dies of itself needs no help."""
        if self._daemon is not None and self._daemon is not asyncio.current_task():
            self._daemon.cancel()

    def _assemble(
        self, stored: StoredState, store: MortalStore, solving: Solving, life: Life
    ) -> Controller:
        scene = self.scene
        engine = Engine(
            policies=self.policies,
            catalog=scene.catalog,
            templates=scene.library,
            providers=frozenset(self.clouds),
            stored=stored,
            now=self.clock.now(),
        )
        source = LogSource(self.log, self.clock, offsets=stored.offsets)
        self.metrics = Metrics(__version__)
        parts = Parts(
            engine=engine,
            store=store,
            solving=solving,
            providers={name: MortalProvider(p, life) for name, p in self.clouds.items()},
            readiness=scene.readiness or ModelledReadiness(self._load_seconds),
            clock=self.clock,
            sources=(MortalSource(source, life),),
            sinks=(_Notebook(self.notes), self.metrics, *scene.sinks),
            intervals=scene.intervals,
        )
        version = int(dict(stored.settings).get("routes_version", "0"))
        controller = Controller(parts, routes_version=version)
        self.metrics.watch(controller.status)
        return controller

    def _load_seconds(self, replica: Replica) -> float:
        """Every node loads its share of the weights."""
        weights = self.scene.catalog.models[replica.template.model].weight_gib
        return weights / len(replica.offerings) / self.policies.rules.load_gib_per_second


class _Notebook:
    """A NoteSink that keeps what it gets."""

    def __init__(self, notes: deque[Note]) -> None:
        self._notes = notes

    def publish(self, note: Note) -> None:
        self._notes.append(note)


def _is_death(error: BaseException) -> bool:
    """Whether nothing but a kill (and the cancellations it caused) is in `error`."""
    return all(isinstance(leaf, Killed | asyncio.CancelledError) for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
