from __future__ import annotations

import pytest
from worlds import ON_DEMAND, SPOT, choice, demand, policy, running_world, template

from corald.core.explain import explain
from corald.model.events import ProviderFailed
from corald.model.policy import SpotUse


def test_what_is_unknown_is_not_explained():
    cloud = running_world(1)
    for kind in ("model", "instance", "offering", "template", "nonsense"):
        assert explain(cloud.engine.state, kind, "nobody", cloud.now) is None


def test_a_model_is_explained_by_its_demand_target_and_what_was_refused():
    cloud = running_world(2, policy(max_replicas=2))
    cloud.engine.apply(demand(90.0, sequence=9, at=cloud.now), cloud.now)
    cloud.aim(choice(3))
    found = explain(cloud.engine.state, "model", "m", cloud.now)
    assert found["demand_requests_per_second"] == 90.0
    assert [t["count"] for t in found["target"]] == [3]
    assert found["refused_moves"] == ["m: max_replicas 2 reached"]
    assert found["must_not_shrink"] == ""
    assert found["proven_gap"] == 0.0


def test_a_model_on_hold_says_why():
    cloud = running_world(1)
    found = explain(cloud.engine.state, "model", "m", cloud.now + 3600)
    assert found["must_not_shrink"] == "demand is stale"


@pytest.mark.parametrize("by", ["instance", "id"])
def test_a_machine_is_explained_by_either_of_its_names(by):
    cloud = running_world(1)
    (intent,) = cloud.engine.state.fleet.live_intents()
    found = explain(cloud.engine.state, "instance", getattr(intent, by), cloud.now)
    assert (found["intent"], found["instance"]) == (intent.id, intent.instance)
    assert found["replica_state"] == "ready"
    assert found["template"] == template().id


def test_an_offering_says_how_many_can_be_had_and_for_whom_it_was_chosen():
    cloud = running_world(2)
    found = explain(cloud.engine.state, "offering", str(SPOT), cloud.now)
    assert (found["held"], found["usd_per_hour"], found["out_of_bounds"]) == (2, 0.4, "")
    assert found["chosen_for"] == ["m"]
    assert explain(cloud.engine.state, "offering", str(ON_DEMAND), cloud.now)["chosen_for"] == []


def test_an_offering_out_of_bounds_names_the_first_rule():
    cloud = running_world(1, policy(spot=SpotUse.NEVER))

    def why() -> object:
        return explain(cloud.engine.state, "offering", str(SPOT), cloud.now)["out_of_bounds"]

    assert why() == "no policy permits it"
    cloud.engine.state.offers.sold_out(SPOT, cloud.now, cloud.engine.state.policies.rules, None)
    assert why() == "sold out"
    failed = ProviderFailed("sim", "listing", "denied", credentials=True, at=cloud.now)
    cloud.engine.apply(failed, cloud.now)
    assert why() == "provider sim is not ready"


def test_a_template_says_where_it_is_used_and_until_when_it_may_not_be_started():
    cloud = running_world(2)
    rules = cloud.engine.state.policies.rules
    cloud.engine.state.circuits.failed(template().id, cloud.now, rules, at_once=True)
    found = explain(cloud.engine.state, "template", template().id, cloud.now)
    assert (found["replicas"], found["in_target"], found["throughput"]) == (2, 2, 10.0)
    assert found["circuit_open_until"] == cloud.now + rules.circuit_seconds
