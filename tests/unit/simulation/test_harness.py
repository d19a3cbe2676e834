"""The world that scenarios are played in: time, events, death and restart."""

from __future__ import annotations

import pytest

from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.model.events import Batch


def test_time_passes_only_as_told(play):
    async def story(town):
        before = town.world.clock.now()
        await town.world.advance(3600)
        assert town.world.clock.now() - before == pytest.approx(3600)

    play(story)


def test_waiting_in_vain_ends_with_what_was_waited_for(play):
    async def story(town):
        with pytest.raises(TimeoutError, match="after 60 s still not: 1 replicas"):
            await town.ready(1, within=60)

    play(story)


def test_events_sent_to_a_dead_daemon_are_read_by_the_next(play):
    async def story(town):
        await town.world.kill()
        assert not town.world.alive
        town.demand(2.0)
        town.meter.silence("qwen3-8b")
        await town.world.advance(60)
        assert town.ledger.calls(Call.LAUNCH) == []
        await town.world.start()
        await town.ready(2)

    play(story)


def test_what_was_read_before_a_kill_is_not_read_again(play):
    async def story(town):
        town.demand(1.0)
        town.meter.silence("qwen3-8b")
        await town.world.settle()
        await town.world.kill()
        offsets = (await town.world.stored()).offsets
        assert [o.next_offset for o in offsets] == [len(town.world.log)]
        await town.world.start()
        assert town.metric("corald_events_total") == 0
        assert town.model().demand == 1.0

    play(story)


def test_a_killed_daemon_calls_no_cloud_and_a_stopped_one_leaves_the_fleet(play):
    async def story(town):
        town.demand(2.0)
        await town.ready(2)
        for end in (town.world.kill, town.world.stop):
            await end()
            calls = len(town.ledger.calls())
            await town.world.advance(600)
            assert len(town.ledger.calls()) == calls
            assert len(town.ledger.alive()) == 2
            await town.world.start()
            await town.world.advance(60)
        assert town.ledger.effects(Effect.SHUTTING_DOWN) == []

    play(story)


def test_two_daemons_at_a_time_are_refused(play):
    async def story(town):
        with pytest.raises(RuntimeError, match="runs already"):
            await town.world.start()

    play(story)


def test_routes_only_rise_across_lives(play):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        version = town.world.controller.routes().version
        await town.world.restart()
        await town.world.advance(60)
        routes = town.world.controller.routes()
        assert routes.version > version
        assert len(routes.endpoints) == 1

    play(story)


def test_a_bug_ends_the_daemon_and_is_raised_where_time_passes(play):
    async def story(town):
        with pytest.raises(AssertionError):
            await town.world.deliver(Batch(events=("no event at all",)))
        with pytest.raises(ExceptionGroup):
            await town.world.advance(1)
        assert not town.world.alive

    play(story)


def test_the_same_seed_tells_the_same_story(play, tmp_path):
    ledgers = []

    async def story(town):
        town.demand(3.0)
        await town.ready(3)
        ledgers.append(town.ledger.dump())

    for _ in range(2):
        play(story, seed=7)
        (tmp_path / "state").rename(tmp_path / f"state-{len(ledgers)}")
    assert ledgers[0] == ledgers[1]
