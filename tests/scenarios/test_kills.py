"""The daemon is killed at every named point, again and again, under changing demand and losses."""

from __future__ import annotations

import random

import pytest

from corald.market.ledger import Effect

POINTS = (
    "store.load:after",
    "store.commit:before",
    "store.commit:after",
    "provider.launch:before",
    "provider.launch:after",
    "provider.terminate:before",
    "provider.terminate:after",
    "provider.list_instances:before",
    "provider.list_instances:after",
    "provider.offerings:after",
    "events.deliver:before",
    "events.deliver:after",
)


@pytest.mark.parametrize("seed", range(6))
def test_ten_kills_leave_no_duplicate_no_orphan_and_the_demand_served(play, seed):
    dice = random.Random(seed)
    points = dice.sample(POINTS, 10)

    async def story(town):
        killed = 0
        for point in points:
            town.demand(float(dice.randint(1, 6)))
            town.world.points.arm(point, after=dice.randrange(3))
            if town.ledger.alive() and dice.random() < 0.5:
                machine = dice.choice(town.ledger.alive())
                town.market.interrupt(machine, town.world.clock.now())
            await town.world.advance(dice.uniform(1, 900))
            if not town.world.alive:
                killed += 1
                await town.world.advance(dice.uniform(0, 120))
            await town.world.restart()
        town.world.points.disarm()
        if not town.world.alive:
            await town.world.start()
        town.demand(3.0)
        await town.world.advance(3600)
        assert killed >= 5
        assert town.model().capacity_ready == 3.0
        assert len(town.ledger.alive()) == 3
        assert town.ledger.effects(Effect.LAUNCHED)

    play(story, seed=seed)
