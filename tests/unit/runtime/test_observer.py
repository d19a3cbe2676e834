from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from corald.core.caps import Caps
from corald.errors import CredentialsRejectedError, TransientError
from corald.market.faults import Call, Fault, FaultKind
from corald.model.events import (
    Event,
    FleetObserved,
    InterruptionNoticed,
    OfferingsObserved,
    ProviderFailed,
)
from corald.model.fleet import Instance, LaunchRequest
from corald.runtime.foreign import ForeignProvider
from corald.runtime.gate import Gate
from corald.runtime.observer import Intervals, Observer
from corald.testing.scripted import Delay, Fail
from tests.unit.core.worlds import SPOT, T0, running_world
from tests.unit.runtime.rig import Rig, play


class Scene(Rig):
    """An observer whose events are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[float, Event]] = []
        caps = Caps(None, None, 0.0, 24.0)
        self.gate = Gate("test", caps=lambda: caps, wanted=lambda _: True)

    async def watch(self, seconds: float) -> None:
        observer = Observer(
            ForeignProvider(self.cloud),
            clock=self.clock,
            gate=self.gate,
            emit=lambda event: self.events.append((self.clock.now() - T0, event)),
            intervals=Intervals(listing=15.0, offerings=60.0),
        )
        task = asyncio.create_task(observer.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def of(self, kind: type) -> list[tuple[float, Event]]:
        return [(at, e) for at, e in self.events if isinstance(e, kind)]

    async def rent(self) -> Instance:
        (intent,) = running_world(1).engine.state.fleet.live_intents()
        request: LaunchRequest = intent.request
        return await self.cloud.launch(request)


def test_offerings_and_machines_are_looked_at_again_and_again():
    async def act():
        scene = Scene()
        machine = await scene.rent()
        await scene.watch(100.0)
        assert [round(at) for at, _ in scene.of(OfferingsObserved)] == [0, 60]
        assert [round(at) for at, _ in scene.of(FleetObserved)] == [0, 15, 30, 45, 60, 75, 90]
        _, offered = scene.of(OfferingsObserved)[0]
        assert SPOT in {o.key for o in offered.offerings}
        _, listed = scene.of(FleetObserved)[0]
        assert [i.id for i in listed.listing.instances] == [machine.id]

    play(act)


def test_a_listing_carries_the_time_before_it_was_asked_for():
    async def act():
        scene = Scene()
        scene.cloud.script(Call.LIST, Delay(9.0))
        await scene.watch(12.0)
        ((at, event),) = scene.of(FleetObserved)
        assert (round(at), event.asked_at) == (9, T0)

    play(act)


def test_a_read_that_fails_is_told_and_soon_tried_again():
    async def act():
        scene = Scene()
        scene.cloud.script(Call.LIST, Fail(TransientError("not now")))
        await scene.watch(12.0)
        ((_, failed),) = scene.of(ProviderFailed)
        assert (failed.what, failed.message, failed.credentials) == ("listing", "not now", False)
        assert [round(at) for at, _ in scene.of(FleetObserved)] == [10]

    play(act)


def test_a_read_that_hangs_is_given_up_and_told():
    async def act():
        scene = Scene()
        scene.cloud.script(Call.LIST, Delay(1e6))
        await scene.watch(75.0)
        ((at, failed),) = scene.of(ProviderFailed)
        assert (round(at), failed.what) == (60, "listing")
        assert failed.message
        assert [round(at) for at, _ in scene.of(FleetObserved)] == [70]

    play(act)


def test_rejected_credentials_are_told_apart():
    async def act():
        scene = Scene()
        scene.cloud.script(Call.OFFERINGS, Fail(CredentialsRejectedError("denied")))
        await scene.watch(1.0)
        ((_, failed),) = scene.of(ProviderFailed)
        assert (failed.what, failed.credentials) == ("offerings", True)
        assert scene.of(FleetObserved)

    play(act)


def test_a_partial_listing_is_passed_on_as_partial():
    async def act():
        scene = Scene()
        scene.market.faults.add(Fault(Call.LIST, FaultKind.PARTIAL))
        await scene.watch(1.0)
        ((_, event),) = scene.of(FleetObserved)
        assert not event.listing.complete

    play(act)


def test_the_gate_learns_which_machines_are_ours():
    async def act():
        scene = Scene()
        machine = await scene.rent()
        assert scene.gate.may_terminate("sim", [machine.id], scene.clock.now()) == []
        await scene.watch(1.0)
        assert scene.gate.may_terminate("sim", [machine.id], scene.clock.now()) == [machine.id]

    play(act)


def test_a_notice_is_passed_on():
    async def act():
        scene = Scene()
        machine = await scene.rent()
        scene.market.interrupt(machine.id, scene.clock.now())
        await scene.watch(3.0)
        ((_, notice),) = scene.of(InterruptionNoticed)
        assert notice.instance == machine.id

    play(act)


def test_a_watch_for_notices_that_breaks_is_begun_again():
    async def act():
        scene = Scene()
        begun = []

        async def broken() -> AsyncIterator[InterruptionNoticed]:
            begun.append(round(scene.clock.now() - T0))
            raise TransientError("queue away")
            yield

        scene.cloud.interruptions = broken
        await scene.watch(25.0)
        assert begun == [0, 10, 20]
        assert {e.what for _, e in scene.of(ProviderFailed)} == {"interruptions"}

    play(act)


def test_a_partial_listing_makes_the_gate_forget_no_machine():
    async def act():
        scene = Scene()
        machine = await scene.rent()
        scene.market.faults.add(Fault(Call.LIST, FaultKind.PARTIAL, skip=1))
        await scene.watch(16.0)
        assert [e.listing.complete for _, e in scene.of(FleetObserved)] == [True, False]
        assert scene.gate.may_terminate("sim", [machine.id], scene.clock.now()) == [machine.id]

    play(act)
