from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import ON_DEMAND, SPOT, running_world

from corald.core.caps import Caps, committed_price, committed_spend
from corald.model.fleet import IntentState
from corald.model.market import Market, Offering


def caps(**changes) -> Caps:
    return replace(Caps(None, None, 0.0, 24.0), **changes)


def test_spot_is_counted_at_the_on_demand_price():
    assert committed_price(Offering(SPOT, 0.4, 1.0)) == 1.0
    assert committed_price(Offering(SPOT, 1.4, 1.0)) == 1.4
    assert committed_price(Offering(ON_DEMAND, 0.9, 1.0)) == 0.9
    reserved = replace(ON_DEMAND, market=Market.RESERVED)
    assert committed_price(Offering(reserved, 0.3, 1.0)) == 0.3


@pytest.mark.parametrize("state", [s for s in IntentState if not s.ended])
def test_everything_that_may_exist_counts_as_spend(state):
    (intent,) = running_world(1).engine.fleet.live_intents()
    assert committed_spend([replace(intent, state=state, departing="interrupted")]) == 1.0


@pytest.mark.parametrize("state", [IntentState.FAILED, IntentState.GONE])
def test_what_has_ended_costs_nothing_more(state):
    (intent,) = running_world(1).engine.fleet.live_intents()
    assert committed_spend([replace(intent, state=state)]) == 0.0


def test_without_limits_nothing_is_refused():
    assert caps().refusal(1e9, 1e9) == ""


def test_the_hourly_cap_is_reached_but_not_passed():
    assert caps(usd_per_hour=3.0).refusal(2.0, 1.0) == ""
    assert "exceeds" in caps(usd_per_hour=3.0).refusal(2.0, 1.01)


def test_the_daily_cap_counts_what_the_rest_of_the_day_will_cost():
    today = caps(usd_per_day=48.0, spent_today_usd=40.0, hours_left_today=4.0)
    assert today.refusal(1.0, 1.0) == ""
    assert "today would reach 52" in today.refusal(1.0, 2.0)
