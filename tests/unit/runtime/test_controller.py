from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from corald.errors import InsufficientCapacityError, OutcomeUnknownError, StoreError
from corald.market.faults import Call
from corald.model.events import Batch, ConsumerHealth, Offset, PauseRequested, Reject
from corald.model.fleet import IntentState
from corald.model.problem import Allocation
from corald.model.state import Note
from corald.runtime.ports import Deliver
from corald.testing.scripted import Delay, Fail
from tests.unit.core.worlds import ON_DEMAND, T0, choice, demand
from tests.unit.runtime.rig import Rig, play

OFFSET = Offset("corald.demand", 0, 42)
REJECT = Reject("bad-json", "line 1", b"{", "corald.demand", 0, 41, T0)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_no_machine_is_asked_for_before_its_intent_is_durable(seed):
    async def act():
        rig = Rig()
        rig.store.seconds = 0.5
        await rig.start()
        rig.aim.target = (choice(6),)
        await rig.say(60.0)
        await asyncio.sleep(60.0)
        launches = [(n, token) for n, (what, token) in enumerate(rig.order) if what == "launch"]
        assert len(launches) == 6
        for position, token in launches:
            assert ("durable", token) in rig.order[:position]
        await rig.stop()

    play(act, seed=seed)


def test_a_store_that_fails_ends_the_controller_and_no_call_is_made():
    async def act():
        rig = Rig()
        await rig.start()
        rig.aim.target = (choice(3),)
        rig.aim.seconds = 5.0
        await rig.say(30.0)
        await asyncio.sleep(6.0)
        rig.store.broken = True
        await asyncio.wait([rig.task], timeout=30.0)
        assert rig.task.done()
        assert any(isinstance(leaf, StoreError) for leaf in leaves(rig.task.exception()))
        assert rig.calls("launch") == 0

    play(act)


def test_whoever_delivers_is_told_that_the_store_failed():
    async def act():
        rig = Rig()
        await rig.start()
        rig.store.broken = True
        with pytest.raises(StoreError):
            await rig.say(10.0)
        await asyncio.wait([rig.task])
        assert rig.task.exception() is not None

    play(act)


def test_delivering_returns_once_the_effect_is_durable_and_not_before():
    async def act():
        rig = Rig()
        await rig.start()
        await asyncio.sleep(1.0)
        rig.store.seconds = 3.0
        begun = rig.clock.now()
        await rig.say(10.0)
        assert rig.clock.now() - begun >= 3.0
        assert rig.store.commits[-1].demand[0].request_rate == 10.0
        await rig.stop()

    play(act)


def test_offsets_and_rejects_are_durable_in_the_transaction_of_their_effect():
    async def act():
        rig = Rig()
        await rig.start()
        sample = demand(10.0)
        batch = Batch(events=(sample,), offsets=(OFFSET,), rejects=(REJECT,))
        await rig.controller.deliver(batch)
        (commit,) = [c for c in rig.store.commits if c.offsets]
        assert (commit.demand, commit.offsets, commit.rejects) == ((sample,), (OFFSET,), (REJECT,))
        await rig.controller.deliver(Batch(rejects=(REJECT,)))
        assert rig.store.commits[-1].rejects == (REJECT,)
        await rig.stop()

    play(act)


def test_batches_delivered_together_keep_the_order_of_their_offsets():
    async def act():
        rig = Rig()
        await rig.start()
        rig.store.seconds = 0.2
        batches = [Batch(offsets=(Offset("t", 0, n),)) for n in range(5)]
        await asyncio.gather(*(rig.controller.deliver(batch) for batch in batches))
        stored = [o.next_offset for c in rig.store.commits for o in c.offsets]
        assert stored == [0, 1, 2, 3, 4]
        await rig.stop()

    play(act)


def test_stopping_leaves_the_machines_running():
    async def act():
        rig = Rig()
        await rig.start()
        await rig.serve(choice(2), rate=20.0)
        assert await rig.stop() < 1.0
        await asyncio.sleep(3600.0)
        rig.market.advance(rig.clock.now())
        assert rig.machines() == 2
        assert rig.calls("terminate") == 0

    play(act)


def test_a_call_under_way_is_answered_before_the_controller_ends():
    async def act():
        rig = Rig()
        rig.cloud.script(Call.LAUNCH, Delay(4.0))
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.sleep(6.0)
        assert rig.calls("launch") == 1
        assert 1.0 < await rig.stop() < 5.0
        assert rig.store.intent().state is IntentState.LAUNCHED

    play(act)


def test_a_call_without_an_answer_does_not_keep_the_controller_and_rents_one_machine():
    async def act():
        rig = Rig()
        rig.cloud.script(Call.LAUNCH, Delay(60.0))
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.sleep(6.0)
        assert await rig.stop() <= 15.0
        assert rig.store.intent().state in (IntentState.COMMITTED, IntentState.UNKNOWN)
        await rig.start()
        await rig.serve(choice(1))
        tokens = {token for what, token in rig.order if what == "launch"}
        assert len(tokens) == 1
        assert rig.machines() == 1
        await rig.stop()

    play(act)


def test_no_call_is_started_after_the_stop():
    async def act():
        rig = Rig()
        await rig.start()
        rig.aim.target = (choice(12),)
        await rig.say(120.0)
        await asyncio.sleep(6.0)
        made = rig.calls("launch")
        assert 0 < made < 12
        await rig.stop()
        await asyncio.sleep(60.0)
        assert rig.calls("launch") == made

    play(act)


def test_a_bug_of_our_own_in_a_call_ends_the_controller():
    async def act():
        rig = Rig()
        rig.aim.bug = ZeroDivisionError("a bug")
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.wait([rig.task], timeout=400.0)
        assert rig.task.done()
        assert any(isinstance(leaf, ZeroDivisionError) for leaf in leaves(rig.task.exception()))

    play(act)


def test_a_bug_of_a_plugin_leaves_the_outcome_unknown_and_the_slot_kept():
    async def act():
        rig = Rig()
        rig.cloud.bug = ZeroDivisionError("a plugin's bug")
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.sleep(30.0)
        (intent,) = rig.engine.state.fleet.live_intents()
        assert intent.unknown_since is not None
        assert rig.machines() == 0
        rig.cloud.bug = None
        await asyncio.sleep(30.0)
        assert rig.machines() == 1
        await rig.stop()

    play(act)


def test_a_source_that_breaks_ends_the_controller():
    class Broken:
        name = "broken"

        async def run(self, deliver: Deliver) -> None:
            raise RuntimeError("a bug")

    async def act():
        rig = Rig()
        await rig.start(sources=(Broken(),))
        await asyncio.wait([rig.task], timeout=5.0)
        assert any(isinstance(leaf, RuntimeError) for leaf in leaves(rig.task.exception()))

    play(act)


def test_a_loss_cancels_the_solve_under_way_and_asks_again_at_once():
    async def act():
        rig = Rig()
        await rig.start()
        await rig.serve(choice(1))
        rig.aim.seconds = 15.0
        await rig.say(35.0)
        await asyncio.sleep(7.0)
        under_way = rig.aim.asked[-1]
        rig.market.interrupt(rig.store.intent().instance, rig.clock.now())
        await asyncio.sleep(2.0)
        assert rig.aim.cancelled == [under_way.generation]
        assert rig.aim.asked[-1].generation > under_way.generation
        assert rig.aim.asked[-1].urgent
        await rig.stop()

    play(act)


def test_a_lost_machine_is_asked_for_again_within_two_seconds_of_the_notice():
    async def act():
        rig = Rig()
        await rig.start()
        await rig.serve(choice(1))
        rig.aim.seconds = 15.0
        rig.market.interrupt(rig.store.intent().instance, rig.clock.now())
        await asyncio.sleep(2.0)
        assert rig.calls("launch") == 2
        await rig.stop()

    play(act)


def test_a_lost_answer_is_asked_for_again_with_the_same_token():
    async def act():
        rig = Rig()
        rig.cloud.script(Call.LAUNCH, Fail(OutcomeUnknownError("reset"), after_effect=True))
        await rig.start()
        await rig.serve(choice(1))
        assert len({token for what, token in rig.order if what == "launch"}) == 1
        assert rig.machines() == 1
        await rig.stop()

    play(act)


def test_a_sold_out_offering_is_not_asked_for_again_at_once():
    async def act():
        rig = Rig()
        error = InsufficientCapacityError("sold out", code="ICE")
        rig.cloud.script(Call.LAUNCH, Fail(error), where="*/spot", times=None)
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.sleep(120.0)
        assert rig.calls("launch") == 1
        rig.aim.target = (choice(1, ON_DEMAND),)
        await rig.say(11.0)
        await asyncio.sleep(60.0)
        assert rig.calls("launch") == 2
        assert rig.machines() == 1
        await rig.stop()

    play(act)


def test_nothing_is_written_or_called_while_nothing_changes():
    async def act():
        rig = Rig(resolve_every_seconds=1e9)
        await rig.start()
        await rig.serve(choice(2), rate=20.0)
        launches, commits = rig.calls("launch"), len(rig.store.commits)
        await asyncio.sleep(3600.0)
        assert rig.calls("launch") == launches
        assert rig.calls("terminate") == 0
        changed = [c for c in rig.store.commits[commits:] if c.intents or c.replicas]
        assert changed == []
        await rig.stop()

    play(act)


def test_a_flood_of_events_leaves_the_loop_room_to_breathe():
    async def act():
        rig = Rig()
        await rig.start()
        turns = 0

        async def breathe():
            nonlocal turns
            while not delivering.done():
                turns += 1
                await asyncio.sleep(0)

        samples = tuple(demand(1.0, sequence=n, at=rig.clock.now()) for n in range(1, 5001))
        delivering = asyncio.create_task(rig.controller.deliver(Batch(events=samples)))
        await breathe()
        assert turns >= 5000 / 500
        await rig.stop()

    play(act)


def test_routes_rise_in_version_only_when_they_change():
    async def act():
        rig = Rig()
        await rig.start()
        assert rig.controller.routes().version == 0
        await rig.serve(choice(1))
        version = rig.controller.routes().version
        assert version == 1
        await asyncio.sleep(600.0)
        assert rig.controller.routes().version == version
        stored = dict(setting for c in rig.store.commits for setting in c.settings)
        assert stored["routes_version"] == "1"
        rig.market.interrupt(rig.store.intent().instance, rig.clock.now())
        await asyncio.sleep(3.0)
        assert rig.controller.routes().endpoints == ()
        assert rig.controller.routes().version == 2
        await rig.stop()

    play(act)


def test_audit_notes_reach_the_sinks_after_they_are_durable():
    class Sink:
        def __init__(self, committed: Callable[[], list[str]]) -> None:
            self.committed = committed
            self.early: list[str] = []
            self.seen: list[str] = []

        def publish(self, note: Note) -> None:
            self.seen.append(note.event)
            if note.audit and note.event not in self.committed():
                self.early.append(note.event)

    async def act():
        rig = Rig()
        sink = Sink(lambda: [n.event for c in rig.store.commits for n in c.notes])
        await rig.start(sinks=(sink,))
        await rig.serve(choice(1))
        assert {"launch_committed", "launched", "replica_ready"} <= set(sink.seen)
        assert sink.early == []
        await rig.stop()

    play(act)


def test_an_unhealthy_consumer_is_believed_until_it_recovers():
    async def act():
        rig = Rig()
        await rig.start()
        await rig.serve(choice(2), rate=20.0)
        sick = ConsumerHealth(healthy=False, detail="broker away", at=rig.clock.now())
        await rig.controller.deliver(Batch(events=(sick,)))
        rig.aim.target = ()
        for _ in range(60):
            await rig.say(0.0)
            await asyncio.sleep(60.0)
        assert rig.machines() == 2
        await rig.stop()

    play(act)


def test_what_was_noted_last_is_shown_first():
    async def act():
        rig = Rig()
        await rig.start()
        await rig.serve(choice(1))
        (newest,) = await rig.controller.audit(1)
        assert newest.event == "replica_ready"
        await rig.stop()

    play(act)


def test_delivering_after_the_end_is_refused():
    async def act():
        rig = Rig()
        await rig.start()
        await rig.stop()
        with pytest.raises(StoreError):
            await rig.say(10.0)

    play(act)


def test_whoever_waits_behind_a_failed_commit_is_told_too():
    async def act():
        rig = Rig()
        await rig.start()
        await asyncio.sleep(1.0)
        rig.store.seconds, rig.store.broken = 1.0, True
        first = asyncio.create_task(rig.say(10.0))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(rig.say(11.0))
        await asyncio.wait([first, second, rig.task], timeout=60.0)
        assert isinstance(first.exception(), StoreError)
        assert isinstance(second.exception(), StoreError)
        assert rig.task.exception() is not None

    play(act)


def test_whoever_waits_while_the_last_commit_fails_is_told():
    async def act():
        rig = Rig()
        rig.cloud.script(Call.LAUNCH, Delay(5.0))
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.sleep(6.0)
        rig.controller.stop()
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(rig.say(11.0))
        await asyncio.sleep(0.1)
        rig.store.broken = True
        await asyncio.wait([waiting, rig.task], timeout=60.0)
        assert isinstance(waiting.exception(), StoreError)
        assert rig.task.exception() is not None

    play(act)


def test_a_bug_that_shows_while_stopping_is_not_swallowed():
    async def act():
        rig = Rig()
        await rig.start()
        rig.aim.target = (choice(1),)
        await rig.say(10.0)
        await asyncio.sleep(1.0)
        rig.controller._call(_broken(), "broken")
        rig.controller.stop()
        await asyncio.wait([rig.task])
        assert any(isinstance(leaf, ZeroDivisionError) for leaf in leaves(rig.task.exception()))

    async def _broken():
        await asyncio.sleep(3.0)
        raise ZeroDivisionError("a bug")

    play(act)


def test_a_pause_stops_launches_that_wait_for_their_turn_and_its_end_resumes_them():
    async def act():
        rig = Rig()
        await rig.start()
        rig.aim.target = (choice(12),)
        await rig.say(120.0)
        await asyncio.sleep(6.0)
        made = rig.calls("launch")
        pause = PauseRequested("", paused=True, reason="test", at=rig.clock.now())
        await rig.controller.deliver(Batch(events=(pause,)))
        await asyncio.sleep(60.0)
        assert rig.calls("launch") == made
        resume = PauseRequested("", paused=False, reason="test", at=rig.clock.now())
        await rig.controller.deliver(Batch(events=(resume,)))
        await asyncio.sleep(60.0)
        assert rig.machines() == 12
        await rig.stop()

    play(act)


def test_machines_that_are_no_longer_wanted_are_not_rented_first():
    async def act():
        rig = Rig()
        await rig.start()
        rig.aim.target = (choice(12),)
        await rig.say(120.0)
        await asyncio.sleep(6.0)
        made = rig.calls("launch")
        for replica in list(rig.engine.state.fleet.replicas.values()):
            rig.engine.lifecycle.release(replica, rig.clock.now(), reason="test")
        rig.aim.target = ()
        rig.engine.state.target = Allocation(())
        await asyncio.sleep(60.0)
        assert rig.calls("launch") == made
        rig.market.advance(rig.clock.now())
        assert rig.machines() == 0
        await rig.stop()

    play(act)


def test_more_launches_than_a_deadline_lets_through_all_come_up():
    async def act():
        rig = Rig(supply=100, max_step_replicas=100, launch_deadline_seconds=20.0)
        await rig.start()
        rig.aim.target = (choice(60),)
        for _ in range(20):
            await rig.say(600.0)
            await asyncio.sleep(15.0)
        assert rig.machines() == 60
        assert rig.calls("launch") == 60
        await rig.stop()

    play(act)
