"""Some of the wanted machines come up, some do not: what came is kept, only the rest is planned."""

from __future__ import annotations

from corald.errors import InsufficientCapacityError
from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.testing.scripted import Fail, Pass
from tests.scenarios.town import O1, O2

SOLD_OUT = Fail(InsufficientCapacityError("none left", code="InsufficientInstanceCapacity"))


def test_six_of_eight_come_up_and_two_are_planned_elsewhere(play):
    async def story(town):
        town.cloud.script(Call.LAUNCH, *[Pass()] * 6, *[SOLD_OUT] * 2, where="*/use2-az1/*/spot")
        town.demand(8.0)
        await town.ready(8)
        assert len(town.launched(O1)) == 6
        assert len(town.launched(O2)) == 2
        assert len(town.ledger.refusals(Call.LAUNCH)) == 2
        assert len(town.ledger.calls(Call.LAUNCH)) == 10
        assert town.ledger.effects(Effect.SHUTTING_DOWN) == []
        tracked = {i.instance for i in town.world.status().instances}
        assert tracked == set(town.ledger.alive())

    play(story)
