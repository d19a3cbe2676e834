"""A machine is TERMINATING, billed and counted, until the cloud says that it is gone."""

from __future__ import annotations

import pytest

from corald.errors import TransientError
from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.model.fleet import IntentState
from corald.testing.scripted import Fail
from tests.scenarios.town import policy, policy_set

BROKEN = Fail(TransientError("internal error", code="InternalError"))


def states(town):
    return [i.state for i in town.world.status().instances]


def test_termination_is_asked_again_until_the_machine_is_gone_and_costs_until_then(play):
    async def story(town):
        town.demand(2.0)
        await town.ready(2)
        town.cloud.script(Call.TERMINATE, *[BROKEN] * 3)
        town.demand(1.0)
        await town.world.until(lambda: IntentState.TERMINATING in states(town), within=1200)
        stuck = next(
            i.instance for i in town.world.status().instances if i.state is IntentState.TERMINATING
        )
        town.market.stick(stuck, stuck=True)
        await town.world.until(lambda: bool(town.ledger.effects(Effect.SHUTTING_DOWN)), within=600)
        assert len(town.ledger.calls(Call.TERMINATE)) >= 4
        for _ in range(6):
            await town.world.advance(15)
            assert IntentState.TERMINATING in states(town)
            assert town.world.status().usd_per_hour == pytest.approx(0.50)
        await town.world.advance(900)
        assert IntentState.TERMINATING in states(town)
        assert town.metric("corald_instances_stuck_terminating") == 1
        town.market.stick(stuck, stuck=False)
        await town.world.advance(30)
        assert states(town) == [IntentState.LAUNCHED]
        assert town.world.status().usd_per_hour == pytest.approx(0.25)
        assert town.metric("corald_instances_stuck_terminating") == 0

    play(story, policies=policy_set(policy(scale_down_delay_seconds=60.0), min_life_seconds=0.0))


def test_a_replacement_waits_while_the_leaving_machine_still_counts_against_the_budget(play):
    async def story(town):
        town.demand(2.0)
        await town.ready(2)
        leaving = town.world.status().instances[0].instance
        town.market.stick(leaving, stuck=True)
        town.market.interrupt(leaving, town.world.clock.now(), notice_seconds=120.0)
        await town.world.advance(1200)
        assert len(town.ledger.calls(Call.LAUNCH)) == 2
        assert town.model().replicas_ready == 1
        town.market.stick(leaving, stuck=False)
        await town.ready(2)
        assert len(town.ledger.calls(Call.LAUNCH)) == 3

    # Spot counts at its on-demand price: two machines, and not a third.
    play(story, policies=policy_set(budget_usd_per_hour=1.70), cap=1.70)
