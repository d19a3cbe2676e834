"""The loop around the engine: events in, one durable transaction, then instructions out.

Nothing leaves before it is on disk. Every answer from outside comes back as an event. The same
controller runs in the daemon and in a simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import assert_never

from corald.core.engine import Engine
from corald.core.explain import explain
from corald.core.status import endpoints_of, plan_rows, status_of
from corald.errors import StoreError
from corald.model.events import Batch, Event
from corald.model.fleet import ReplicaState
from corald.model.plan import Instruction, Launch, PlanRow, Solve, Terminate
from corald.model.state import Changes, Note
from corald.model.status import Endpoint, Routes, Status
from corald.plugin import Clock, Provider
from corald.runtime.actuator import Actuator
from corald.runtime.foreign import ForeignProvider
from corald.runtime.gate import Gate
from corald.runtime.observer import Intervals, Observer
from corald.runtime.ports import EventSource, NoteSink, Readiness, ReplicaView, Solving, Store

Taken = list[tuple[Batch, asyncio.Future[None] | None]]
"""Batches, each with whoever waits until it is durable."""

APPLY_SLICE = 500
"""Events applied between two turns of the event loop."""

STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a composition root chooses."""

    engine: Engine
    store: Store
    solving: Solving
    providers: Mapping[str, Provider]
    readiness: Readiness
    clock: Clock
    sources: Sequence[EventSource] = ()
    sinks: Sequence[NoteSink] = ()
    intervals: Intervals = field(default_factory=Intervals)


class Controller:
    """Runs one engine; implements `ports.ControlPlane`."""

    def __init__(self, parts: Parts, *, routes_version: int = 0) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._clock = parts.clock
        self._gate = Gate(
            self._engine.state.policies.cluster,
            caps=lambda: self._engine.state.caps(self._clock.now()),
            wanted=self._engine.calls.wanted,
        )
        self._gate.committed(self._engine.state.fleet.live_intents())
        self._notes: list[Note] = []
        self._providers = {n: ForeignProvider(p) for n, p in parts.providers.items()}
        self._actuator = Actuator(
            self._providers, clock=parts.clock, gate=self._gate, count=self._count_call
        )
        self._inbox: asyncio.Queue[tuple[Batch, asyncio.Future[None] | None]] = asyncio.Queue()
        self._calls: set[asyncio.Task[None]] = set()
        self._solve: asyncio.Task[None] | None = None
        self._routes = Routes(routes_version, ())
        self._routed_revision = -1
        self._stopping = asyncio.Event()
        self._bug: BaseException | None = None
        self._ended = False

    async def run(self) -> None:
        """Work until stopped; then leave the fleet as it is. A bug ends it with its exception."""
        background = [
            (
                Observer(
                    provider,
                    clock=self._clock,
                    gate=self._gate,
                    emit=self.emit,
                    intervals=self._parts.intervals,
                    count=self._count_call,
                ).run(),
                f"observer-{name}",
            )
            for name, provider in self._providers.items()
        ]
        background += [
            (self._run_source(source), f"source-{source.name}") for source in self._parts.sources
        ]
        background.append((self._watch_readiness(), "readiness"))
        try:
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(coro, name=name) for coro, name in background]
                group.create_task(self._work(watchers), name="controller")
        finally:
            self._refuse_waiting()
            await self._end_calls()

    def stop(self) -> None:
        """Start no further call and end `run`; what runs in the clouds stays."""
        self._actuator.stop()
        self._stopping.set()
        self._inbox.put_nowait((Batch(), None))

    def emit(self, event: Event) -> None:
        """Hand over an event of the daemon's own making."""
        self._inbox.put_nowait((Batch(events=(event,)), None))

    def _count_call(self, provider: str, action: str, outcome: str) -> None:
        fields = (("action", action), ("class", outcome), ("provider", provider))
        self._notes.append(Note("provider_call", fields, at=self._clock.now()))

    # Control plane

    async def deliver(self, batch: Batch) -> None:
        """Take events and offsets, and return once they are durable."""
        if self._ended:
            raise StoreError("the daemon is ending; nothing more is taken")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((batch, done))
        await done

    def status(self) -> Status:
        return status_of(self._engine.state, self._clock.now())

    def plan_rows(self) -> Sequence[PlanRow]:
        return plan_rows(self._engine.state)

    def routes(self) -> Routes:
        return self._routes

    def explain(self, kind: str, name: str) -> Mapping[str, object] | None:
        return explain(self._engine.state, kind, name, self._clock.now())

    async def audit(self, limit: int) -> Sequence[Note]:
        return await self._parts.store.audit(limit)

    # The loop

    async def _work(self, watchers: Sequence[asyncio.Task[None]]) -> None:
        while not self._stopping.is_set():
            await self._turn(await self._next_batches())
            # Even a turn without any wait lets signals and requests through.
            await asyncio.sleep(0)
            if self._bug is not None:
                raise self._bug
        for watcher in watchers:
            watcher.cancel()
        await self._drain_inbox()

    async def _next_batches(self) -> Taken:
        """Wait for an event or for the engine's next deadline; take everything that is there."""
        pause = self._engine.next_wakeup(self._clock.now()) - self._clock.now()
        taken: Taken = []
        if pause > 0 or not self._inbox.empty():
            with suppress(TimeoutError):  # the engine's deadline has come
                async with asyncio.timeout(max(0.0, pause)):
                    taken.append(await self._inbox.get())
        while not self._inbox.empty():
            taken.append(self._inbox.get_nowait())
        return taken

    async def _turn(self, taken: Taken) -> None:
        """Apply, decide if due, make it durable, answer, act."""
        with self._answering(taken):
            instructions = await self._apply_and_commit([batch for batch, _ in taken])
        for instruction in instructions:
            self._carry_out(instruction)

    @contextmanager
    def _answering(self, taken: Taken) -> Iterator[None]:
        """Tell whoever waits for a delivery that it is durable, or that it never will be."""
        try:
            yield
        except BaseException as error:
            self._ended = True
            for _, done in taken:
                if done is not None and not done.done():
                    done.set_exception(error) if isinstance(error, Exception) else done.cancel()
            raise
        for _, done in taken:
            if done is not None and not done.done():
                done.set_result(None)

    async def _apply_and_commit(self, batches: list[Batch]) -> tuple[Instruction, ...]:
        applied = 0
        for batch in batches:
            for event in batch.events:
                self._engine.apply(event, self._clock.now())
                applied += 1
                if applied % APPLY_SLICE == 0:
                    await asyncio.sleep(0)
        now = self._clock.now()
        instructions: tuple[Instruction, ...] = ()
        if self._engine.next_wakeup(now) <= now:
            instructions = self._engine.decide(now)
        changes = self._with_inputs(self._engine.take_changes(), batches)
        if not changes.empty:
            await self._parts.store.commit(changes)
            self._gate.committed(changes.intents)
        for note in changes.notes:
            for sink in self._parts.sinks:
                sink.publish(note)
        return instructions

    def _with_inputs(self, changes: Changes, batches: list[Batch]) -> Changes:
        """Offsets and rejects become durable together with the effect of their events."""
        now = self._clock.now()
        rejects = tuple(r for batch in batches for r in batch.rejects)
        notes, self._notes = self._notes, []
        notes += [
            Note("rejected", (("reason", r.reason), ("topic", r.topic)), at=now) for r in rejects
        ]
        settings = changes.settings
        endpoints = self._routes.endpoints
        if self._engine.state.fleet.revision != self._routed_revision:
            self._routed_revision = self._engine.state.fleet.revision
            endpoints = endpoints_of(self._engine.state)
        if endpoints != self._routes.endpoints:
            notes.append(self._publish_routes(endpoints, now))
            settings = (*settings, ("routes_version", str(self._routes.version)))
        return replace(
            changes,
            settings=settings,
            notes=(*changes.notes, *notes),
            offsets=tuple(o for batch in batches for o in batch.offsets),
            rejects=rejects,
        )

    def _publish_routes(self, endpoints: tuple[Endpoint, ...], now: float) -> Note:
        self._routes = Routes(self._routes.version + 1, endpoints)
        fields = (("endpoints", len(endpoints)), ("version", self._routes.version))
        return Note("routes_changed", fields, at=now)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Solve():
                if self._solve is not None and not self._solve.done():
                    self._solve.cancel()
                self._solve = self._call(
                    self._run_solve(instruction), f"solve-{instruction.generation}"
                )
            case Launch():
                self._call(self._report(self._actuator.launch(instruction)), "launch")
            case Terminate():
                self._call(self._report(self._actuator.terminate(instruction)), "terminate")
            case _:
                assert_never(instruction)

    def _call(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._calls.add(task)
        task.add_done_callback(self._call_ended)
        return task

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        """A call that ends with an exception is a bug: it ends the daemon."""
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error
            self._inbox.put_nowait((Batch(), None))

    async def _report(self, call: Coroutine[object, object, Event | None]) -> None:
        event = await call
        if event is not None:
            self.emit(event)

    async def _run_solve(self, solve: Solve) -> None:
        deadline = self._engine.state.policies.rules.solver_deadline_seconds
        self.emit(await self._parts.solving.solve(solve, deadline_seconds=deadline))

    async def _run_source(self, source: EventSource) -> None:
        """A source never ends by itself: an end, even a cancelled one, would go unseen."""
        try:
            await source.run(self.deliver)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._ended or (task is not None and task.cancelling()):
                raise
        raise RuntimeError(f"event source {source.name} ended")

    async def _watch_readiness(self) -> None:
        while True:
            await self._clock.sleep(self._parts.intervals.readiness)
            fleet = self._engine.state.fleet
            states = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)
            views = [
                ReplicaView(r, tuple(fleet.intents_of(r.id)))
                for r in fleet.replicas.values()
                if r.state in states
            ]
            departing = [i for i in fleet.live_intents() if i.departing]
            for event in await self._parts.readiness.observe(views, departing, self._clock.now()):
                self.emit(event)

    # Stopping

    async def _drain_inbox(self) -> None:
        """Record the answers of calls under way; one without an answer stays unknown."""
        if self._solve is not None:
            self._solve.cancel()
        with suppress(TimeoutError):  # the intent is durable: the next start resolves it
            async with asyncio.timeout(STOP_SECONDS):
                while self._calls:
                    await asyncio.wait(set(self._calls), return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(0)
        batches: Taken = []
        while not self._inbox.empty():
            batches.append(self._inbox.get_nowait())
        await self._record(batches)
        if self._bug is not None:
            raise self._bug

    async def _record(self, taken: Taken) -> None:
        for batch, _ in taken:
            for event in batch.events:
                self._engine.apply(event, self._clock.now())
        changes = self._with_inputs(self._engine.take_changes(), [batch for batch, _ in taken])
        with self._answering(taken):
            if not changes.empty:
                await self._parts.store.commit(changes)

    def _refuse_waiting(self) -> None:
        """Answer whoever still waits for a delivery: it was not taken."""
        self._ended = True
        while not self._inbox.empty():
            _, done = self._inbox.get_nowait()
            if done is not None and not done.done():
                done.set_exception(StoreError("the daemon is ending; this was not stored"))

    async def _end_calls(self) -> None:
        for task in list(self._calls):
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
