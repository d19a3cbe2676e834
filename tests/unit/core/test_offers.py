from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import BIG, ON_DEMAND, SPOT, T0, catalog, offers, running_world

from corald.core.offers import Offers
from corald.model.events import CapacityObserved, PriceObserved, Stamp
from corald.model.market import Offering, OfferingKey
from corald.model.policy import Rules

RULES = Rules()


def stock(available: int | None = 8) -> Offers:
    known = Offers(catalog())
    known.report(offers(available=available))
    return known


def capacity(available: int, *, at: float = T0, sequence: int = 1, source: str = "s"):
    return CapacityObserved("e", source, SPOT, available, Stamp(0, sequence, at))


def price(usd: float, *, at: float = T0, key: OfferingKey = SPOT, sequence: int = 1):
    return PriceObserved("e", "s", key, usd, Stamp(0, sequence, at))


def held(*, created_at: float, key: OfferingKey = SPOT):
    (intent,) = running_world(1).engine.state.fleet.live_intents()
    return replace(intent, created_at=created_at, request=replace(intent.request, offering=key))


def supplies(known: Offers, intents=(), now: float = T0, rules: Rules = RULES, closed=frozenset()):
    usable = {i.id for i in intents if i.usable}
    found = known.supplies(intents, now, rules, usable=usable, closed=closed, wanted=lambda _: True)
    return {s.offering: s for s in found}


def test_a_report_says_what_can_be_had_beyond_what_is_held():
    assert stock(5).obtainable(SPOT, [], T0, RULES) == 5
    found = supplies(stock(5), [held(created_at=T0 - 60)])[SPOT]
    assert (found.available, found.obtainable) == (6, 5)


def test_machines_asked_for_since_the_report_are_subtracted():
    since = [held(created_at=T0 + 1), held(created_at=T0 + 2), held(created_at=T0 - 1)]
    assert stock(5).obtainable(SPOT, since, T0 + 3, RULES) == 3
    assert stock(1).obtainable(SPOT, since, T0 + 3, RULES) == 0


def test_the_same_machines_are_not_subtracted_from_a_later_report():
    known = stock(5)
    known.report(replace(offers(available=5), at=T0 + 60))
    assert known.obtainable(SPOT, [held(created_at=T0 + 1)], T0 + 61, RULES) == 5


def test_where_nobody_says_the_default_is_assumed():
    assert stock(None).obtainable(SPOT, [], T0, RULES) == RULES.default_availability


def test_a_capacity_event_newer_than_the_report_wins_and_an_older_one_does_not():
    known = stock(5)
    assert known.merge_capacity(capacity(2, at=T0 - 10))
    assert known.obtainable(SPOT, [], T0, RULES) == 5
    assert known.merge_capacity(capacity(3, at=T0 + 10, sequence=2))
    assert known.obtainable(SPOT, [], T0 + 10, RULES) == 3


def test_a_report_that_does_not_count_leaves_the_last_capacity_event_in_force():
    known = stock(None)
    known.merge_capacity(capacity(3, at=T0 - 100))
    assert known.obtainable(SPOT, [], T0, RULES) == 3


def test_an_event_that_is_not_newer_changes_nothing():
    known = stock()
    assert known.merge_capacity(capacity(3, at=T0 + 10))
    assert not known.merge_capacity(capacity(3, at=T0 + 10))
    assert not known.merge_capacity(capacity(9, at=T0 + 5, sequence=99))
    assert known.merge_price(price(0.5, at=T0 + 10))
    assert not known.merge_price(price(0.9, at=T0 + 9, sequence=99))


def test_events_of_one_moment_merge_alike_in_any_order():
    pair = [capacity(3, source="a"), capacity(7, source="b")]
    answers = set()
    for order in (pair, pair[::-1]):
        known = stock(None)
        for event in order:
            known.merge_capacity(event)
        answers.add(known.obtainable(SPOT, [], T0, RULES))
    assert answers == {7}


def test_a_stock_out_lasts_three_minutes_and_doubles_to_thirty():
    known, now, lasted = stock(), T0, []
    for _ in range(6):
        known.sold_out(SPOT, now, RULES, None)
        until = known.next_change(now)
        lasted.append(until - now)
        assert known.blocked(SPOT, until - 1) == "sold out"
        assert known.blocked(SPOT, until) == ""
        now = until
    assert lasted == pytest.approx([180, 360, 720, 1440, 1800, 1800])


def test_several_failures_at_once_are_one_stock_out():
    known = stock()
    for _ in range(5):
        known.sold_out(SPOT, T0, RULES, None)
    assert known.next_change(T0) == T0 + 180


def test_after_a_stock_out_one_machine_is_tried():
    known = stock()
    known.sold_out(SPOT, T0, RULES, None)
    assert known.obtainable(SPOT, [], T0 + 179, RULES) == 0
    assert known.obtainable(SPOT, [], T0 + 180, RULES) == 1
    assert known.obtainable(SPOT, [held(created_at=T0 + 181)], T0 + 182, RULES) == 0


def test_a_count_newer_than_the_stock_out_is_believed():
    known = stock()
    known.sold_out(SPOT, T0, RULES, None)
    known.merge_capacity(capacity(50, at=T0 + 100))
    assert known.obtainable(SPOT, [], T0 + 100, RULES) == 0
    assert known.obtainable(SPOT, [], T0 + 181, RULES) == 1
    known.merge_capacity(capacity(50, at=T0 + 190))
    assert known.obtainable(SPOT, [], T0 + 190, RULES) == 50


def test_a_stock_out_long_past_no_longer_limits_a_gang():
    known = stock(None)
    known.sold_out(SPOT, T0, RULES, None)
    over = T0 + RULES.stockout_seconds + RULES.stockout_max_seconds
    assert known.obtainable(SPOT, [], over - 1, RULES) == 1
    assert known.obtainable(SPOT, [], over, RULES) == RULES.default_availability


def test_a_success_ends_the_suspicion():
    known = stock()
    known.sold_out(SPOT, T0, RULES, None)
    known.obtained(SPOT)
    assert known.obtainable(SPOT, [], T0 + 1, RULES) == 8
    known.sold_out(SPOT, T0 + 2, RULES, None)
    assert known.next_change(T0 + 2) == T0 + 182


def test_a_cloud_that_says_for_how_many_hours_is_believed():
    known = stock()
    known.sold_out(SPOT, T0, RULES, 2.0)
    assert known.next_change(T0) == T0 + 7200


def test_a_stock_out_leaves_other_offerings_alone():
    known = stock()
    known.sold_out(SPOT, T0, RULES, None)
    assert known.blocked(ON_DEMAND, T0) == ""
    assert known.blocked(BIG, T0) == ""
    assert [m.offering for m in known.marks(T0)] == [SPOT]


def test_a_reached_quota_blocks_its_whole_bucket_on_that_market_only():
    known = stock()
    assert known.quota_reached(SPOT, "G", T0, RULES)
    assert not known.quota_reached(BIG, "G", T0, RULES)
    assert "quota G" in known.blocked(BIG, T0)
    assert known.obtainable(BIG, [], T0, RULES) == 0
    assert known.blocked(ON_DEMAND, T0) == ""
    assert known.blocked(SPOT, T0 + RULES.quota_seconds) == ""


def test_a_bucket_by_a_name_that_the_catalogue_does_not_know_blocks_the_family_too():
    known = stock()
    known.quota_reached(SPOT, "L-DB2E81BA", T0, RULES)
    assert known.blocked(SPOT, T0)


def test_a_quota_whose_bucket_the_cloud_does_not_name_blocks_the_family():
    known = stock()
    known.quota_reached(SPOT, "", T0, RULES)
    assert known.blocked(BIG, T0)


def test_a_price_event_newer_than_the_report_is_used_and_an_older_one_is_not():
    known = stock()
    known.merge_price(price(0.1, at=T0 - 1))
    assert known.quote(SPOT).offering.usd_per_hour == 0.4
    known.merge_price(price(0.3, at=T0 + 1, sequence=2))
    assert known.quote(SPOT).offering.usd_per_hour == 0.3
    assert known.quote(SPOT).priced_at == T0 + 1


def test_a_price_beyond_the_hard_age_gives_no_new_machine_but_keeps_those_held():
    known, later = stock(), T0 + RULES.price_hard_age_seconds + 1
    found = supplies(known, [held(created_at=T0)], later)
    assert found[SPOT].available == 1
    assert found[ON_DEMAND].available == 0


def test_a_closed_provider_gives_no_new_machine_but_keeps_those_held():
    found = supplies(stock(), [held(created_at=T0)], closed=frozenset({"sim"}))
    assert found[SPOT].available == 1
    assert found[ON_DEMAND].available == 0


def test_a_machine_that_may_not_be_used_is_held_but_not_available():
    leaver = replace(held(created_at=T0 - 1), departing="interrupted")
    found = supplies(stock(0), [leaver])[SPOT]
    assert (found.available, found.obtainable) == (0, 0)


def test_a_held_machine_that_nobody_offers_any_more_stays_a_supply_at_its_own_price():
    known = stock()
    known.report(replace(offers(), offerings=(Offering(ON_DEMAND, 1.0, 1.0, 8),), at=T0 + 60))
    found = supplies(known, [held(created_at=T0)], T0 + 60)
    assert (found[SPOT].available, found[SPOT].usd_per_hour) == (1, 0.4)
    assert known.quote(SPOT) is None


def test_an_offering_without_a_valid_price_is_no_offering():
    known = Offers(catalog())
    known.report(replace(offers(), offerings=(Offering(SPOT, 0.0, 1.0, 8),)))
    assert known.quote(SPOT) is None
    assert supplies(known) == {}


def test_the_same_list_again_is_no_change():
    known = Offers(catalog())
    assert known.report(offers())
    assert not known.report(replace(offers(), at=T0 + 60))
    assert known.report(replace(offers(available=7), at=T0 + 120))


def test_a_machine_without_a_quote_costs_what_the_catalogue_lists():
    assert Offers(catalog()).price_or_list(SPOT) == (0.4, 1.0)
    assert Offers(catalog()).price_or_list(ON_DEMAND) == (1.0, 1.0)
