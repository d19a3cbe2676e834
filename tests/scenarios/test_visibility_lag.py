"""A machine that a cloud does not show yet is not dead; one that stays away is lost, once."""

from __future__ import annotations

from dataclasses import replace

from corald.market.faults import Call


def test_a_machine_that_shows_up_late_is_launched_once_and_never_lost(play):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        assert len(town.ledger.calls(Call.LAUNCH)) == 1
        assert town.world.noted("instance_lost") == []

    play(story, instance_lag_seconds=40.0)


def test_a_machine_absent_for_three_minutes_is_lost_once_and_replaced(play):
    async def story(town):
        town.demand(1.0)
        await town.ready(1)
        town.market.rules = replace(town.market.rules, instance_lag_seconds=1e9)
        await town.world.advance(170)
        assert len(town.ledger.calls(Call.LAUNCH)) == 1
        await town.world.advance(60)
        assert len(town.world.noted("instance_lost")) == 1
        assert len(town.ledger.calls(Call.LAUNCH)) == 2
        town.market.rules = replace(town.market.rules, instance_lag_seconds=0.0)
        await town.world.advance(900)
        assert len(town.world.noted("instance_lost")) == 1
        assert town.model().capacity_ready >= 1.0

    play(story)
