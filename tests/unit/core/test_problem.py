from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import (
    BIG,
    ON_DEMAND,
    SPOT,
    T0,
    Cloud,
    Templates,
    choice,
    demand,
    engine,
    offers,
    policies,
    policy,
    running_world,
    template,
)

from corald.core.problem import ShapeRules, Want, build_problem, permits
from corald.model.fleet import ReplicaState
from corald.model.policy import SpotUse
from corald.model.problem import Problem
from corald.model.state import StoredState
from corald.model.templates import Phase


def problem(cloud: Cloud, *, wants=None, rules=None, **changes) -> Problem:
    e = cloud.engine
    if rules is not None:
        e.state.policies = rules
    arguments = {
        "policies": rules or e.state.policies,
        "wants": wants if wants is not None else {"m": Want({Phase.MIXED: 20.0}, 1)},
        "offers": e.state.offers,
        "fleet": e.state.fleet,
        "caps": e.state.caps(cloud.now),
        "library": "test-library",
        "shapes": ShapeRules(e.state.templates),
        "open_circuits": frozenset(),
        "closed_providers": frozenset(),
        "now": cloud.now,
    } | changes
    return build_problem(**arguments)


def available(found: Problem) -> dict:
    return {s.offering: s.available for s in found.supplies}


def leave(cloud: Cloud, index: int = 0) -> None:
    intent = cloud.engine.state.fleet.live_intents()[index]
    cloud.engine.state.fleet.put_intent(replace(intent, departing="interrupted"))


def put(cloud: Cloud, index: int, **changes) -> None:
    replica = list(cloud.engine.state.fleet.replicas.values())[index]
    cloud.engine.state.fleet.put_replica(replace(replica, **changes))


def test_equal_states_give_equal_problems_at_any_time():
    cloud = running_world(2)
    first = problem(cloud)
    assert problem(cloud, now=cloud.now + 1000) == first


def test_a_restart_gives_the_same_problem():
    cloud = running_world(2)
    fleet = cloud.engine.state.fleet
    again = Cloud(
        engine(
            stored=StoredState(
                intents=tuple(reversed(fleet.live_intents())),
                replicas=tuple(reversed(fleet.replicas.values())),
            )
        ),
        now=cloud.now,
    )
    again.engine.apply(offers(), T0)
    assert problem(again) == problem(cloud)


def test_a_row_says_what_is_wanted_and_how():
    rules = policies(policy(max_replicas=7, priority=3, weight=2.0, max_usd_per_hour=9.0))
    (row,) = problem(running_world(1), rules=rules).rows
    assert (row.model, row.phase, row.amount) == ("m", Phase.MIXED, 20.0)
    assert (row.min_replicas, row.max_replicas) == (1, 7)
    assert (row.priority, row.weight, row.max_usd_per_hour) == (3, 2.0, 9.0)


def test_machines_held_are_counted_besides_those_obtainable():
    cloud = running_world(2)
    cloud.engine.apply(replace(offers(available=5), at=cloud.now), cloud.now)
    assert available(problem(cloud))[SPOT] == 7


def test_machines_that_are_leaving_are_not_counted():
    cloud = running_world(2)
    cloud.engine.apply(replace(offers(available=5), at=cloud.now), cloud.now)
    leave(cloud)
    assert available(problem(cloud))[SPOT] == 6


def test_equal_replicas_that_may_stay_are_one_item_with_a_count():
    (item,) = problem(running_world(3)).running
    assert (item.template, item.count, item.offerings) == (template().id, 3, ((SPOT, 1),))


@pytest.mark.parametrize(
    ("state", "counted"),
    [
        (ReplicaState.STARTING, 2),
        (ReplicaState.READY, 2),
        (ReplicaState.DRAINING, 2),
        (ReplicaState.RELEASING, 1),
    ],
)
def test_starting_and_draining_replicas_may_stay_and_released_ones_may_not(state, counted):
    cloud = running_world(2)
    put(cloud, 0, state=state)
    (item,) = problem(cloud).running
    assert item.count == counted


def test_a_replica_with_a_hole_or_an_advised_machine_may_not_stay_as_it_is():
    cloud = running_world(3)
    leave(cloud)
    intent = cloud.engine.state.fleet.live_intents()[1]
    cloud.engine.state.fleet.put_intent(replace(intent, advised=True))
    (item,) = problem(cloud).running
    assert item.count == 1


def test_only_supplies_that_a_policy_permits_belong_to_its_row():
    rules = policies(policy(spot=SpotUse.NEVER))
    found = problem(running_world(1), rules=rules)
    (row,) = found.rows
    assert [found.supplies[i].offering for i in row.supplies] == [ON_DEMAND]


def test_a_row_that_may_use_every_supply_says_so():
    (row,) = problem(running_world(1)).rows
    assert row.supplies is None


def test_offerings_that_no_policy_permits_are_left_out():
    found = problem(Cloud(engine()), wants={}, rules=policies(policy(instance_types=("big",))))
    assert found.supplies == ()
    cloud = Cloud(engine())
    cloud.engine.apply(offers(), T0)
    rules = policies(policy(instance_types=("bi*",)))
    assert [s.offering for s in problem(cloud, rules=rules).supplies] == [BIG]


def test_an_open_circuit_denies_its_template_to_its_own_model_only():
    other = template(model="other")
    cloud = Cloud(engine(policy(), policy("other"), templates=Templates(template(), other)))
    wants = {name: Want({Phase.MIXED: 1.0}, 0) for name in ("m", "other")}
    rows = problem(cloud, wants=wants, open_circuits=frozenset({template().id})).rows
    assert {r.model: r.denied_templates for r in rows} == {
        "m": frozenset({template().id}),
        "other": frozenset(),
    }


def test_patterns_allow_and_deny_templates_by_shape():
    single, double = template(), template((("L4", 2),), rate=25.0)
    cloud = Cloud(engine(templates=Templates(single, double)))
    for patterns, denied in (
        ({"templates_deny": ("2x*",)}, double),
        ({"templates_allow": ("2x*",)}, single),
    ):
        (row,) = problem(cloud, rules=policies(policy(**patterns))).rows
        assert row.denied_templates == {denied.id}


def test_the_budget_left_is_what_leaving_machines_do_not_use():
    cloud = running_world(2, budget_usd_per_hour=5.0)
    assert problem(cloud).budget_usd_per_hour == 5.0
    leave(cloud)
    assert problem(cloud).budget_usd_per_hour == 4.0
    assert problem(cloud, rules=policies()).budget_usd_per_hour is None


def test_spot_is_budgeted_at_the_on_demand_price():
    prices = {
        s.offering: (s.usd_per_hour, s.budget_usd_per_hour)
        for s in problem(running_world(1)).supplies
    }
    assert prices[SPOT] == (0.4, 1.0)


def test_a_start_costs_what_boot_and_load_take_of_the_interval():
    rules = policies(boot_seconds=180.0, amortize_seconds=3600.0)
    assert problem(running_world(1), rules=rules).start_cost["L4"] == pytest.approx(0.1)


def test_a_closed_provider_offers_nothing_new():
    found = problem(running_world(2), closed_providers=frozenset({"sim"}))
    assert available(found)[SPOT] == 2
    assert available(found)[ON_DEMAND] == 0


@pytest.mark.parametrize(
    ("changes", "spot", "on_demand"),
    [
        ({}, True, True),
        ({"spot": SpotUse.NEVER}, False, True),
        ({"spot": SpotUse.ONLY}, True, False),
        ({"regions": ("r1",)}, True, True),
        ({"regions": ("r2",)}, False, False),
        ({"instance_types": ("sm*",)}, True, True),
        ({"instance_types": ("big",)}, False, False),
    ],
)
def test_a_policy_permits_markets_regions_and_instance_types(changes, spot, on_demand):
    assert permits(policy(**changes), SPOT) is spot
    assert permits(policy(**changes), ON_DEMAND) is on_demand


def test_new_samples_of_the_same_level_ask_for_no_new_solve():
    cloud = running_world(2)
    before = len(cloud.solves)
    for step in range(10):
        cloud.now += 10
        cloud.engine.apply(demand(20.0, sequence=50 + step, at=cloud.now), cloud.now)
        cloud.decide()
    assert len(cloud.solves) == before


def test_a_choice_of_a_new_template_is_not_a_new_problem_once_it_runs():
    cloud = running_world(1)
    cloud.engine.apply(demand(20.0, sequence=9, at=cloud.now), cloud.now)
    cloud.aim(choice(2))
    before = problem(cloud)
    cloud.decide()
    assert problem(cloud) == before
