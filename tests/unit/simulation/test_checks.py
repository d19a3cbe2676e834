"""The judge of stories: each kind of wrong is found, and nothing else."""

from __future__ import annotations

import random

from corald.market.marketplace import Marketplace
from corald.market.stock import Stock
from corald.model.fleet import TAG_CLUSTER, TAG_INTENT, Intent, IntentState, LaunchRequest
from corald.model.market import Market, OfferingKey
from corald.model.state import StoredState
from corald.simulation.checks import violations

OFFERING = OfferingKey("aws", "r", "z", "g6.xlarge", Market.SPOT)


def market():
    return Marketplace([Stock(OFFERING, 2.0, 2.0, 9)], rng=random.Random(1), start=0.0)


def place(cloud, intent, *, cluster="ours", at=1.0):
    tags = tuple(sorted({TAG_CLUSTER: cluster, TAG_INTENT: intent}.items()))
    return cloud.place(OFFERING, tags, at).id


def stored(*names, state=IntentState.LAUNCHED):
    request = LaunchRequest("", "", OFFERING, "", "", ())
    return StoredState(
        intents=tuple(
            Intent(name, "r", 0, 1, request, 2.0, 2.0, created_at=0.0, state=state)
            for name in names
        )
    )


def judge(cloud, state, **options):
    return violations([cloud.ledger], state, cluster="ours", **options)


def test_known_machines_of_ours_and_machines_of_others_are_in_order():
    cloud = market()
    place(cloud, "a")
    place(cloud, "b", cluster="another")
    assert judge(cloud, stored("a"), most_usd_per_hour=4.0) == []


def test_two_live_machines_for_one_intent_are_found_and_one_after_another_is_not():
    cloud = market()
    first = place(cloud, "a")
    cloud.kill(first, 2.0, reason="spot")
    place(cloud, "a", at=100.0)
    assert judge(cloud, stored("a")) == []
    place(cloud, "a", at=101.0)
    assert [w for w in judge(cloud, stored("a")) if "2 live machines" in w]


def test_a_machine_that_the_store_does_not_know_is_found():
    cloud = market()
    machine = place(cloud, "a")
    for state in (stored(), stored("a", state=IntentState.GONE)):
        assert judge(cloud, state) == [
            f"{machine} is alive and ours, and the store does not know it"
        ]


def test_terminating_another_ones_machine_is_found_and_its_own_end_is_not():
    cloud = market()
    reclaimed = place(cloud, "b", cluster="another")
    cloud.kill(reclaimed, 2.0, reason="spot")
    assert judge(cloud, stored()) == []
    ended = place(cloud, "c", cluster="another")
    cloud.terminate([ended], 3.0)
    assert judge(cloud, stored()) == [f"{ended} is not ours and was terminated at 3"]


def test_a_peak_above_the_cap_is_found_although_it_has_passed():
    cloud = market()
    machines = [place(cloud, name) for name in "ab"]
    cloud.terminate(machines, 2.0)
    cloud.advance(1000.0)
    (wrong,) = judge(cloud, stored("a", "b"), most_usd_per_hour=3.0)
    assert "4.00 USD/h at their peak" in wrong
