"""Everything at once: the cloud fails in all its ways, the daemon is killed, demand moves."""

from __future__ import annotations

import random

import pytest

from corald.market.faults import Call, Fault, FaultKind
from tests.scenarios.test_kills import POINTS
from tests.scenarios.town import policy, policy_set

LAUNCH_CODES = ("insufficient-capacity", "throttled", "outcome-unknown", "quota-exceeded")
BUDGET_USD_PER_HOUR = 9.0
BOTH = policy_set(
    policy(min_replicas=1, scale_down_delay_seconds=120.0),
    policy("qwen3-14b", scale_down_delay_seconds=120.0),
    budget_usd_per_hour=BUDGET_USD_PER_HOUR,
    min_life_seconds=120.0,
)


def trouble(dice):
    """One order for trouble with some kind of call."""
    call = dice.choice([Call.LAUNCH, Call.LAUNCH, Call.TERMINATE, Call.LIST, Call.OFFERINGS])
    kinds = [FaultKind.ERROR, FaultKind.LOST_BEFORE, FaultKind.LOST_AFTER, FaultKind.DELAY]
    if call is Call.LIST:
        kinds = [FaultKind.PARTIAL, FaultKind.LOST_BEFORE, FaultKind.DELAY]
    if call is Call.LAUNCH:
        kinds.append(FaultKind.DIES_AT_BOOT)
    kind = dice.choice(kinds)
    code = dice.choice(LAUNCH_CODES) if call is Call.LAUNCH else "transient"
    delay = dice.uniform(0, 100) if kind is FaultKind.DELAY else 0.0
    return Fault(call, kind, code=code, times=dice.randint(1, 4), delay_seconds=delay)


@pytest.mark.parametrize("seed", range(4))
def test_after_a_storm_the_fleet_is_what_demand_asks_for(play, seed):
    dice = random.Random(seed)

    async def story(town):
        for _ in range(40):
            match dice.randrange(4):
                case 0:
                    town.market.faults.add(trouble(dice))
                case 1:
                    town.demand(float(dice.randint(0, 5)))
                    town.demand(float(dice.randint(0, 4)), "qwen3-14b")
                case 2 if town.ledger.alive():
                    machine = dice.choice(town.ledger.alive())
                    now = town.world.clock.now()
                    if dice.random() < 0.7:
                        town.market.interrupt(machine, now)
                    else:
                        town.market.kill(machine, now, reason="spot")
                case _:
                    town.world.points.arm(dice.choice(POINTS), after=dice.randrange(4))
            await town.world.advance(dice.uniform(1, 400))
            if not town.world.alive:
                await town.world.start()
        town.world.points.disarm()
        town.market.faults.clear()
        if not town.world.alive:
            await town.world.start()
        town.demand(3.0)
        town.demand(2.0, "qwen3-14b")
        await town.world.advance(3 * 3600)
        assert town.model().capacity_ready == 3.0
        assert town.model("qwen3-14b").capacity_ready == 2.0
        assert len(town.ledger.alive()) == 5

    play(story, policies=BOTH, seed=seed, cap=BUDGET_USD_PER_HOUR)
