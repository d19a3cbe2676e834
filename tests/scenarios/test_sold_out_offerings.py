"""A sold-out pool is not asked again and again: the next one is, until the mark expires."""

from __future__ import annotations

from itertools import pairwise

from corald.errors import InsufficientCapacityError
from corald.market.faults import Call
from corald.testing.scripted import Fail
from tests.scenarios.town import O1, O2, policy_set

SOLD_OUT = Fail(InsufficientCapacityError("none left", code="InsufficientInstanceCapacity"))
ZONE_1_SPOT = "*/use2-az1/*/spot"


def test_the_next_offering_is_taken_at_once_and_the_sold_out_one_after_its_time(play):
    async def story(town):
        town.cloud.script(Call.LAUNCH, SOLD_OUT, where=ZONE_1_SPOT)
        began = town.world.clock.now()
        town.demand(1.0)
        await town.world.until(lambda: len(town.launched(O2)) == 1, within=30)
        (refusal,) = town.ledger.refusals(Call.LAUNCH)
        assert town.launched(O2)[0] - refusal.at < 2
        assert "sold out" in town.world.controller.explain("offering", str(O1))["out_of_bounds"]
        assert [mark.offering for mark in town.world.status().marks] == [O1]

        await town.world.advance(170 - (town.world.clock.now() - began))
        town.demand(2.0)
        await town.world.advance(9)
        assert len(town.launched(O2)) == 2
        assert town.launched(O1) == []
        town.demand(3.0)
        await town.world.advance(300)
        assert min(town.launched(O1)) - refusal.at > 180
        assert "sold out" not in town.world.controller.explain("offering", str(O1))["out_of_bounds"]

    play(story, policies=policy_set(stockout_seconds=180.0))


def test_an_offering_that_stays_sold_out_is_asked_ever_more_rarely(play):
    async def story(town):
        town.cloud.script(Call.LAUNCH, SOLD_OUT, where=ZONE_1_SPOT, times=None)
        for minute in range(180):
            town.demand(1.0 + minute % 2)
            await town.world.advance(60)
        times = [entry.at for entry in town.ledger.refusals(Call.LAUNCH)]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert 2 <= len(times) <= 9
        assert all(gap >= 180 for gap in gaps)
        assert max(gaps) >= 1800

    play(story)
