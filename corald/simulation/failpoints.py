"""Named places where a simulated daemon can be killed: in wrappers of store, provider and broker.

A killed daemon leaves no trace beyond what was durable or in the cloud: once dead, every wrapper of
that life refuses, so that clean-up code which still runs in the process of the test has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from corald.model.events import Batch, InterruptionNoticed
from corald.model.fleet import Instance, LaunchRequest, Listing, TerminateOutcome
from corald.model.market import Offering, Quota
from corald.model.state import Changes, Note, StoredState
from corald.plugin import Provider
from corald.runtime.ports import Deliver, EventSource, Store


class Killed(BaseException):
    """The daemon dies here, as by `kill -9`; no handler of `Exception` may catch it."""


class FailPoints:
    """Counts visits of named points over all lives, and kills at the one that is armed.

    Points: `store.load`, `store.commit`, `events.deliver`, and `provider.launch`, `.terminate`,
    `.list_instances`, `.offerings`; each with `:before` (nothing happened yet) and `:after` (it
    took effect, and nobody was told).
    """

    def __init__(self) -> None:
        self.visits: Counter[str] = Counter()
        self._armed: dict[str, int] = {}

    def arm(self, point: str, *, after: int = 0) -> None:
        """Kill at the next visit of `point`, or `after` so many more visits."""
        self._armed[point] = self.visits[point] + after + 1

    def disarm(self) -> None:
        """Kill nowhere any more."""
        self._armed.clear()

    def visit(self, point: str) -> bool:
        """Count a visit, and tell whether the daemon dies here."""
        self.visits[point] += 1
        if self._armed.get(point) != self.visits[point]:
            return False
        del self._armed[point]
        return True


class Life:
    """One run of the daemon from start to death; `on_death` ends its tasks."""

    def __init__(self, points: FailPoints, on_death: Callable[[], None]) -> None:
        self._points = points
        self._on_death = on_death
        self.dead = False

    def reach(self, point: str) -> None:
        """Pass a named point, or die at it; the dead never pass one."""
        if self.dead:
            raise Killed(point)
        if self._points.visit(point):
            self.end()
            raise Killed(point)

    def end(self) -> None:
        """Die, once."""
        if not self.dead:
            self.dead = True
            self._on_death()


class MortalStore:
    """A store whose caller may die before or after any of its transactions."""

    def __init__(self, store: Store, life: Life) -> None:
        self._store = store
        self._life = life

    async def load(self) -> StoredState:
        self._life.reach("store.load:before")
        state = await self._store.load()
        self._life.reach("store.load:after")
        return state

    async def commit(self, changes: Changes) -> None:
        self._life.reach("store.commit:before")
        await self._store.commit(changes)
        self._life.reach("store.commit:after")

    async def audit(self, limit: int) -> Sequence[Note]:
        return await self._store.audit(limit)

    async def close(self) -> None:
        await self._store.close()


class MortalProvider:
    """A provider whose caller may die before or after any call."""

    def __init__(self, provider: Provider, life: Life) -> None:
        self.name = provider.name
        self._provider = provider
        self._life = life

    async def offerings(self) -> Sequence[Offering]:
        self._life.reach("provider.offerings:before")
        offerings = await self._provider.offerings()
        self._life.reach("provider.offerings:after")
        return offerings

    async def quotas(self) -> Sequence[Quota]:
        self._life.reach("provider.quotas:before")
        quotas = await self._provider.quotas()
        self._life.reach("provider.quotas:after")
        return quotas

    async def launch(self, request: LaunchRequest) -> Instance:
        self._life.reach("provider.launch:before")
        instance = await self._provider.launch(request)
        self._life.reach("provider.launch:after")
        return instance

    async def terminate(self, instance_ids: Sequence[str]) -> Mapping[str, TerminateOutcome]:
        self._life.reach("provider.terminate:before")
        outcomes = await self._provider.terminate(instance_ids)
        self._life.reach("provider.terminate:after")
        return outcomes

    async def list_instances(self) -> Listing:
        self._life.reach("provider.list_instances:before")
        listing = await self._provider.list_instances()
        self._life.reach("provider.list_instances:after")
        return listing

    async def interruptions(self) -> AsyncIterator[InterruptionNoticed]:
        async for notice in self._provider.interruptions():
            self._life.reach("provider.interruptions:after")
            yield notice

    async def close(self) -> None:
        await self._provider.close()


class MortalSource:
    """An event source whose daemon may die before or after it takes a batch."""

    def __init__(self, source: EventSource, life: Life) -> None:
        self.name = source.name
        self._source = source
        self._life = life

    async def run(self, deliver: Deliver) -> None:
        async def deliver_or_die(batch: Batch) -> None:
            self._life.reach("events.deliver:before")
            await deliver(batch)
            self._life.reach("events.deliver:after")

        await self._source.run(deliver_or_die)
