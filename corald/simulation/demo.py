"""`corald demo`: the daemon's own parts on simulated clouds, a day in two minutes, again and again.

A paced virtual clock drives everything and serves the dashboard too. Demand is generated, prices
are the catalogue's, machines are finite and spot ones are taken away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import Progress

from corald.adapters.http import AdminServer
from corald.config.catalog import load_catalog
from corald.config.values import HttpSettings
from corald.errors import ConfigError
from corald.library import Library
from corald.market.provider import MarketProvider
from corald.model.hardware import Catalog
from corald.model.state import Note
from corald.plugin import Clock, ProviderContext, load_factory
from corald.runtime.solving import InlineSolving
from corald.simulation.clock import VirtualClock
from corald.simulation.comparison import ComparingSolving, Comparison
from corald.simulation.demand import SECONDS_PER_DAY, demand_events, generate_day
from corald.simulation.harness import Scene, World
from corald.simulation.loop import VirtualTimeLoop
from corald.simulation.report import (
    PLANNED,
    RENTED,
    CostBook,
    Frame,
    screen,
    summary,
)
from corald.simulation.stage import CLOUDS, CLUSTER, INTERVALS, ROLES, load_templates, policies

SECONDS_VARIABLE = "CORALD_DEMO_SECONDS"
FRAMES_PER_SECOND = 2.0
SOLVE_LATENCY_SECONDS = 1.0
"""Modelled; what a solve takes of wall time is kept short by the work limit."""
WORK_LIMIT = 4
MIN_DAY_SECONDS = 10.0
COMPARE_EVERY_SECONDS = 1800.0
KEPT_EVENTS = 10_000
"""Of the event log; the daemon reads on within a minute."""

_COUNTED = {
    "launched": "launches",
    "launch_failed": "failed_launches",
    "interruption": "interruptions",
    "drain_ended": "drains",
    "solve_ended": "solves",
}
"""Notes that the table counts, and the name it gives them."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How the demo runs."""

    directory: Path = Path("var/demo")
    """Templates are kept here; the state of a run is removed with its end."""
    seconds: float | None = None
    """Of wall time, once the templates are there; None: until interrupted."""
    day_seconds: float = 120.0
    """Wall time that one virtual day takes."""
    seed: int = 1
    port: int = 0
    """Of the dashboard; 0 takes a free one."""

    def __post_init__(self) -> None:
        if not MIN_DAY_SECONDS <= self.day_seconds < float("inf"):
            raise ConfigError(
                f"a demo day cannot take {self.day_seconds:g} s; {MIN_DAY_SECONDS:g} is the least"
            )


def seconds_from_environment(environment: Mapping[str, str] = os.environ) -> float | None:
    """Read `CORALD_DEMO_SECONDS`; None where it is not set.

    Raises:
        ConfigError: It is not a positive number.
    """
    text = environment.get(SECONDS_VARIABLE, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{SECONDS_VARIABLE} is {text!r}; set it to a number of seconds above 0")
    return seconds


def run_demo(options: DemoOptions, console: Console | None = None) -> int:
    """Run until the time is over or the user interrupts; prints a summary and answers 0."""
    console = console or Console()
    catalog = load_catalog()
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("building serving templates (kept for the next time)", visible=False)
        library = load_templates(
            options.directory,
            catalog,
            lambda p: bar.update(task, total=p.steps, completed=p.steps_done, visible=True),
        )
    pace = SECONDS_PER_DAY / options.day_seconds
    end_at = None if options.seconds is None else time.monotonic() + options.seconds
    options.directory.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(dir=options.directory, prefix="run-") as state,
        asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(pace=pace)) as runner,
    ):
        demo = _Demo(options, console, catalog, library, end_at=end_at, pace=pace)
        runner.run(demo.run(Path(state)))
    return 0


@dataclass(slots=True)
class _Demo:
    """One run."""

    options: DemoOptions
    console: Console
    catalog: Catalog
    library: Library
    end_at: float | None
    pace: float
    counts: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(_COUNTED.values(), 0))
    )
    costs: CostBook = field(default_factory=CostBook)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, note: Note) -> None:
        """Count what happened: a NoteSink."""
        if note.event in _COUNTED:
            self.counts[_COUNTED[note.event]] += 1

    async def run(self, state: Path) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stopping.set)
        clock = VirtualClock(loop)
        solving = ComparingSolving(
            _solver(self.library, clock),
            Comparison(self.library, work_limit=WORK_LIMIT),
            clock,
            every_seconds=COMPARE_EVERY_SECONDS,
        )
        world = World(
            Scene(
                directory=state,
                policies=policies(),
                catalog=self.catalog,
                library=self.library,
                clouds=_clouds(self.catalog, clock),
                clock=clock,
                solving=lambda: solving,
                intervals=INTERVALS,
                sinks=(self,),
            )
        )
        await world.start()
        http = HttpSettings("127.0.0.1", self.options.port, None, None, ())
        server = AdminServer(world.controller, world.metrics, http, clock=clock)
        demand = asyncio.create_task(self._demand(world), name="demand")
        try:
            self.console.print(f"dashboard: [bold]{await server.start()}/[/]")
            await self._show(world, solving)
        finally:
            demand.cancel()
            await server.stop()
            await world.stop()

    async def _demand(self, world: World) -> None:
        """Produce each minute's levels when it begins, day after day."""
        day = generate_day([role.demand for role in ROLES], seed=self.options.seed)
        start = world.clock.now()
        while True:
            events = demand_events(
                day, source="demo", start_at=start, first_sequence=len(world.log)
            )
            for event in events:
                await world.clock.sleep(max(0.0, event.stamp.at - world.clock.now()))
                world.log.append([event])
            world.log.drop_before(len(world.log) - KEPT_EVENTS)
            start += SECONDS_PER_DAY

    async def _show(self, world: World, solving: ComparingSolving) -> None:
        started = world.clock.now()
        frame = self._frame(world, solving)
        with screen(self.console) as show:
            while not self._over():
                await world.advance(self.pace / FRAMES_PER_SECOND)
                frame = self._frame(world, solving)
                show(frame)
        self.console.print(summary(frame, virtual_seconds=world.clock.now() - started))

    def _over(self) -> bool:
        late = self.end_at is not None and time.monotonic() >= self.end_at
        return late or self.stopping.is_set()

    def _frame(self, world: World, solving: ComparingSolving) -> Frame:
        status = world.status()
        if solving.costs:
            costs = {RENTED: status.usd_per_hour, PLANNED: solving.plan_usd_per_hour}
            costs |= {name: cost.usd_per_hour for name, cost in solving.costs.items()}
            self.costs.record(costs, at=status.at)
        short = frozenset(name for name, cost in solving.costs.items() if not cost.serves_all)
        return Frame(status, self.costs, self.counts, short)


def _solver(library: Library, clock: Clock) -> InlineSolving:
    return InlineSolving(
        library, clock, latency_seconds=SOLVE_LATENCY_SECONDS, work_limit=WORK_LIMIT
    )


def _clouds(catalog: Catalog, clock: Clock) -> dict[str, MarketProvider]:
    factory = load_factory("simulated")
    clouds = {}
    for name, config in CLOUDS.items():
        provider = factory.from_config(config, ProviderContext(name, CLUSTER, catalog, clock))
        if not isinstance(provider, MarketProvider):
            raise ConfigError(f"the provider plugin `simulated` makes {type(provider).__name__}")
        clouds[name] = provider
    return clouds
