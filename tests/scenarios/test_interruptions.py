"""A notice is acted on at once: unrouted, solved anew, replaced before the machine dies."""

from __future__ import annotations

import pytest

from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.model.events import InterruptionNoticed
from corald.model.fleet import InstanceState, InterruptionKind


def routed(town):
    return {endpoint.replica for endpoint in town.world.controller.routes().endpoints}


@pytest.mark.parametrize("notice_seconds", [120.0, 30.0])
def test_a_notice_unroutes_solves_and_launches_within_a_second(play, notice_seconds):
    async def story(town):
        town.demand(3.0)
        await town.ready(3)
        leaving = town.world.status().instances[0]
        assert leaving.replica in routed(town)
        launches = len(town.ledger.calls(Call.LAUNCH))
        solves = len(town.world.noted("solve_ended"))
        now = town.world.clock.now()
        await town.world.send(notice(leaving.instance, now, deadline=now + notice_seconds))
        await town.world.advance(1.0)

        assert leaving.replica not in routed(town)
        assert len(routed(town)) == 2
        assert len(town.ledger.calls(Call.LAUNCH)) == launches + 1
        assert town.metric("corald_interruptions_total") == 1
        (solved,) = town.world.noted("solve_ended")[solves:]
        assert solved.field("trigger") == "interruption"

        # The cloud still shows the machine as running, for a while.
        assert town.market.machine(leaving.instance).state is InstanceState.RUNNING
        for _ in range(int(min(60, notice_seconds - 15) / 5)):
            await town.world.advance(5)
            assert leaving.replica not in routed(town) or all(
                i.instance != leaving.instance or i.departing for i in town.world.status().instances
            )
        await town.ready(3)
        assert len(town.ledger.calls(Call.LAUNCH)) == launches + 1

    play(story)


def test_a_notice_from_the_clouds_own_channel_is_acted_on_too(play):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        leaving = town.world.status().instances[0]
        town.market.interrupt(leaving.instance, town.world.clock.now())
        await town.world.advance(2.5)
        assert routed(town) == set()
        assert len(town.ledger.calls(Call.LAUNCH)) == 2

    play(story)


def test_the_machine_is_used_to_its_deadline_and_then_given_back(play):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        leaving = town.world.status().instances[0].instance
        now = town.world.clock.now()
        await town.world.send(notice(leaving, now, deadline=now + 120))
        await town.world.advance(100)
        assert town.ledger.effects(Effect.SHUTTING_DOWN) == []
        await town.world.advance(20)
        (ended,) = town.ledger.effects(Effect.SHUTTING_DOWN)
        assert ended.instance == leaving
        assert 105 <= ended.at - now <= 115

    play(story)


def test_a_repeated_notice_asks_for_one_replacement(play):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        leaving = town.world.status().instances[0].instance
        for _ in range(3):
            now = town.world.clock.now()
            await town.world.send(notice(leaving, now, deadline=now + 120))
            await town.world.advance(1)
        await town.ready(1)
        assert len(town.ledger.calls(Call.LAUNCH)) == 2

    play(story)


def notice(instance, now, *, deadline):
    return InterruptionNoticed(
        event_id=f"notice-{instance}-{now}",
        provider="aws",
        instance=instance,
        kind=InterruptionKind.TERMINATE,
        deadline=deadline,
        at=now,
    )
