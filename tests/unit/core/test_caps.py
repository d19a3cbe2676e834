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
    (intent,) = running_world(1).engine.state.fleet.live_intents()
    assert committed_spend([replace(intent, state=state, departing="interrupted")]) == 1.0


@pytest.mark.parametrize("state", [IntentState.FAILED, IntentState.GONE])
def test_what_has_ended_costs_nothing_more(state):
    (intent,) = running_world(1).engine.state.fleet.live_intents()
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


@pytest.mark.parametrize("usd_per_day", [24.0, 33.0, 48.0, 100.0, 240.0])
def test_a_fleet_that_costs_exactly_the_daily_cap_is_within_the_limit(usd_per_day):
    mean = usd_per_day / 24.0
    for hour in range(24):
        spent = caps(
            usd_per_day=usd_per_day, spent_today_usd=mean * hour, hours_left_today=24.0 - hour
        )
        assert spent.limit() == pytest.approx(mean)
        assert spent.refusal(0.0, mean) == ""


def test_the_limit_is_the_tighter_cap_and_never_beyond_what_the_guard_allows():
    assert caps().limit() is None
    assert caps(usd_per_hour=3.0).limit() == 3.0
    assert caps(usd_per_hour=3.0, usd_per_day=24.0).limit() == pytest.approx(1.0)
    late = caps(usd_per_day=48.0, spent_today_usd=40.0, hours_left_today=3.0)
    assert late.refusal(0.0, late.limit()) == ""
    assert caps(usd_per_day=24.0, spent_today_usd=99.0, hours_left_today=3.0).limit() == 0.0


def test_the_passing_of_a_minute_does_not_change_the_limit():
    first = caps(usd_per_day=48.0, spent_today_usd=10.05, hours_left_today=12.0)
    later = caps(usd_per_day=48.0, spent_today_usd=10.05 + 0.02, hours_left_today=12.0 - 1 / 60)
    assert first.limit() == later.limit()
