from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from worlds import (
    ON_DEMAND,
    SPOT,
    T0,
    ZONE,
    Cloud,
    engine,
    policies,
    policy,
    running_world,
    template,
)

from corald.core.caps import Caps
from corald.core.guards import (
    Situation,
    budget,
    circuits,
    closed,
    disruption,
    freeze,
    guarded,
    held_models,
    make_before_break,
    min_life,
    paused,
    permitted,
    replica_limits,
    stale_demand,
)
from corald.core.planner import Moves, Remove, Repair, Start, Undrain
from corald.model.fleet import Replica, ReplicaState
from corald.model.policy import SpotUse
from corald.model.templates import Phase

OPEN = Caps(None, None, 0.0, 24.0)


def situation(cloud: Cloud, **changes) -> Situation:
    base = Situation(
        now=cloud.now,
        policies=cloud.engine.state.policies,
        fleet=cloud.engine.state.fleet,
        caps=OPEN,
        committed_usd_per_hour=float(len(cloud.engine.state.fleet.live_intents())),
        price_of=lambda _: 1.0,
        blocked=lambda _: "",
        required={},
        min_replicas={},
        hold={},
        closed_providers=frozenset(),
        open_circuits=frozenset(),
        probing_circuits=frozenset(),
        frozen="",
        recent_voluntary=0,
    )
    return replace(base, **changes)


def start(key=SPOT, model: str = "m") -> Start:
    return Start(model, Phase.MIXED, template(model=model).id, 10.0, ZONE, (key,))


def starts(count: int) -> Moves:
    return Moves(starts=(start(),) * count)


def replicas(cloud: Cloud) -> list[Replica]:
    return list(cloud.engine.state.fleet.replicas.values())


def removes(cloud: Cloud, count: int | None = None) -> Moves:
    return Moves(removes=tuple(Remove(r, "test") for r in replicas(cloud)[:count]))


def everything(cloud: Cloud) -> Moves:
    some = replicas(cloud)[0]
    return Moves(
        starts=(start(),),
        repairs=(Repair(some, ((0, SPOT),)),),
        undrains=(Undrain(some),),
        removes=(Remove(some, "test"),),
    )


def put(cloud: Cloud, index: int, **changes) -> None:
    cloud.engine.state.fleet.put_replica(replace(replicas(cloud)[index], **changes))


def empty_world(*models, **rules) -> Cloud:
    return Cloud(engine(*models, **rules))


@pytest.mark.parametrize("word", ["paused", "dry_run"])
def test_a_pause_and_a_dry_run_stop_everything(word):
    cloud = running_world(1)
    rules = policies(**{word: True})
    left = paused(everything(cloud), situation(cloud, policies=rules))
    assert left.empty
    assert left.refused


def test_a_paused_model_is_left_alone_and_others_are_not():
    cloud = running_world(1)
    rules = policies(policy(paused=True), policy("other"))
    mixed = replace(everything(cloud), starts=(start(), start(model="other")))
    left = paused(mixed, situation(cloud, policies=rules))
    assert left.starts == (start(model="other"),)
    assert not (left.repairs)
    assert not (left.undrains)
    assert not (left.removes)


def test_without_a_pause_everything_passes():
    cloud = running_world(1)
    assert paused(everything(cloud), situation(cloud)) == everything(cloud)


@pytest.mark.parametrize(
    "obstacle",
    [
        {"closed_providers": frozenset({"sim"})},
        {"price_of": lambda _: None},
        {"blocked": lambda _: "sold out"},
    ],
)
def test_no_machine_is_asked_for_where_none_may_be_had(obstacle):
    cloud = running_world(1)
    left = closed(everything(cloud), situation(cloud, **obstacle))
    assert not (left.starts)
    assert not (left.repairs)
    assert len(left.refused) == 2
    assert left.removes
    assert left.undrains


def test_one_node_out_of_bounds_stops_its_whole_gang_and_no_other():
    cloud = empty_world()
    pair = replace(start(), offerings=(ON_DEMAND, SPOT))
    only_spot = situation(cloud, blocked=lambda key: "sold out" if key == SPOT else "")
    assert closed(Moves(starts=(pair, start(ON_DEMAND))), only_spot).starts == (start(ON_DEMAND),)


def test_an_open_circuit_stops_starts_and_repairs_of_its_template():
    cloud = running_world(1)
    opened = situation(cloud, open_circuits=frozenset({template().id}))
    left = circuits(everything(cloud), opened)
    assert not (left.starts)
    assert not (left.repairs)
    other = Moves(starts=(start(model="other"),))
    assert circuits(other, opened).starts


def test_a_template_on_trial_is_started_once_at_a_time():
    cloud = running_world(1)
    trial = situation(cloud, probing_circuits=frozenset({template().id}))
    assert len(circuits(starts(3), trial).starts) == 1
    put(cloud, 0, state=ReplicaState.STARTING, ever_ready=False)
    assert not circuits(starts(3), trial).starts


def test_the_maximum_of_a_model_is_not_passed():
    cloud = running_world(2, policy(max_replicas=3))
    assert len(replica_limits(starts(4), situation(cloud)).starts) == 1


def test_replicas_that_still_cost_money_count_against_the_maximum():
    cloud = running_world(3, policy(max_replicas=3))
    put(cloud, 0, state=ReplicaState.RELEASING)
    put(cloud, 1, state=ReplicaState.DRAINING)
    assert not replica_limits(starts(1), situation(cloud)).starts


def test_a_replacement_may_overlap_with_what_it_replaces_by_one():
    cloud = running_world(3, policy(max_replicas=3))
    both = Moves(starts=(start(), start()), removes=removes(cloud, 2).removes)
    assert len(replica_limits(both, situation(cloud)).starts) == 1


def test_one_decision_adds_no_more_than_the_step():
    cloud = empty_world(max_step_replicas=4)
    assert len(replica_limits(starts(9), situation(cloud)).starts) == 4


def test_the_hourly_budget_counts_what_is_committed_and_every_start_before():
    cloud = running_world(2)
    caps = replace(OPEN, usd_per_hour=4.0)
    left = budget(starts(5), situation(cloud, caps=caps))
    assert len(left.starts) == 2
    assert len(left.refused) == 3


def test_the_daily_budget_stops_launches():
    cloud = running_world(1)
    caps = replace(OPEN, usd_per_day=10.0, spent_today_usd=7.0, hours_left_today=1.0)
    assert len(budget(starts(5), situation(cloud, caps=caps)).starts) == 2


def test_the_budget_of_one_model_does_not_stop_another():
    cloud = running_world(2, policy(max_usd_per_hour=3.0), policy("other"))
    mixed = Moves(starts=(start(), start(), start(model="other")))
    left = budget(mixed, situation(cloud))
    assert [s.model for s in left.starts] == ["m", "other"]


def test_repairs_are_paid_before_starts():
    cloud = running_world(1)
    repair = Repair(replicas(cloud)[0], ((0, SPOT),))
    caps = replace(OPEN, usd_per_hour=2.0)
    left = budget(Moves(starts=(start(),), repairs=(repair,)), situation(cloud, caps=caps))
    assert left.repairs == (repair,)
    assert not left.starts


def test_a_start_that_does_not_fit_leaves_its_money_to_a_smaller_one():
    cloud = empty_world()
    pair = replace(start(), offerings=(SPOT, SPOT))
    caps = replace(OPEN, usd_per_hour=1.0)
    assert budget(Moves(starts=(pair, start())), situation(cloud, caps=caps)).starts == (start(),)


def test_a_model_on_hold_does_not_shrink():
    cloud = running_world(2)
    held = situation(cloud, hold={"m": "demand is stale"})
    left = stale_demand(removes(cloud), held)
    assert not left.removes
    assert "demand is stale" in left.refused[0]
    assert stale_demand(removes(cloud), situation(cloud, hold={"other": "x"})).removes


def test_a_model_on_hold_starts_only_what_it_lacks():
    cloud = running_world(2)
    held = situation(cloud, hold={"m": "demand is stale"}, required=required(20.0))
    assert not held_models(starts(3), held).starts
    short = replace(held, required=required(35.0))
    assert len(held_models(starts(3), short).starts) == 2
    few = replace(held, min_replicas={"m": 3})
    assert len(held_models(starts(3), few).starts) == 1
    assert len(held_models(starts(3), replace(held, hold={})).starts) == 3


@pytest.mark.parametrize(
    "changes", [{"spot": SpotUse.NEVER}, {"regions": ("r2",)}, {"templates_deny": ("1x*",)}]
)
def test_nothing_is_launched_that_the_policy_of_this_moment_forbids(changes):
    cloud = running_world(1)
    found = permitted(everything(cloud), situation(cloud, policies=policies(policy(**changes))))
    assert not (found.starts)
    assert not (found.repairs)
    assert found.removes
    assert permitted(everything(cloud), situation(cloud)) == everything(cloud)


def test_nothing_is_launched_for_a_model_without_a_policy():
    cloud = running_world(1)
    found = permitted(everything(cloud), situation(cloud, policies=policies(policy("other"))))
    assert not (found.starts)
    assert not (found.repairs)


def test_a_freeze_stops_removals_and_no_launch():
    cloud = running_world(1)
    left = freeze(everything(cloud), situation(cloud, frozen="mass failure"))
    assert not left.removes
    assert left.starts
    assert left.repairs


def test_a_young_replica_is_not_ended_and_one_that_never_served_may_be():
    cloud = running_world(2, min_life_seconds=900.0)
    put(cloud, 0, ready_at=cloud.now - 899)
    put(cloud, 1, ready_at=cloud.now - 900)
    old = replicas(cloud)[1]
    assert [m.replica for m in min_life(removes(cloud), situation(cloud)).removes] == [old]
    put(cloud, 0, ready_at=None, ever_ready=False, state=ReplicaState.STARTING)
    assert len(min_life(removes(cloud), situation(cloud)).removes) == 2


def required(amount: float) -> Mapping[tuple[str, Phase], float]:
    return {("m", Phase.MIXED): amount}


def test_ready_capacity_does_not_fall_below_what_is_required():
    cloud = running_world(3)
    left = make_before_break(removes(cloud), situation(cloud, required=required(15.0)))
    assert len(left.removes) == 1
    assert len(left.refused) == 2


def test_a_starting_replacement_does_not_count_yet():
    cloud = running_world(2)
    put(cloud, 1, state=ReplicaState.STARTING)
    wanted = situation(cloud, required=required(10.0))
    assert not make_before_break(removes(cloud, 1), wanted).removes
    put(cloud, 1, state=ReplicaState.READY)
    assert len(make_before_break(removes(cloud, 1), wanted).removes) == 1


def test_replicas_of_a_phase_that_is_given_up_go_when_their_successors_are_ready():
    cloud = running_world(2)
    split = situation(cloud, required={("m", Phase.PREFILL): 100.0, ("m", Phase.DECODE): 10.0})
    assert not make_before_break(removes(cloud, 1), split).removes
    for number, phase in enumerate((Phase.PREFILL, Phase.DECODE)):
        new = replace(template(), phase=phase, throughput=100.0)
        successor = replace(replicas(cloud)[0], id=f"new-{number}", template=new)
        assert not make_before_break(removes(cloud, 1), split).removes
        cloud.engine.state.fleet.put_replica(successor)
    assert make_before_break(removes(cloud, 1), split).removes


def test_a_replica_that_does_not_serve_may_always_go():
    cloud = running_world(1)
    put(cloud, 0, state=ReplicaState.STARTING)
    assert make_before_break(removes(cloud), situation(cloud, required=required(99.0))).removes


def test_one_replica_drains_at_a_time_in_a_small_model():
    cloud = running_world(4)
    assert len(disruption(removes(cloud), situation(cloud)).removes) == 1
    put(cloud, 3, state=ReplicaState.DRAINING)
    assert not disruption(removes(cloud, 1), situation(cloud)).removes


def test_a_share_of_a_large_model_drains_at_a_time():
    cloud = running_world(8, disruption_share=0.25)
    assert len(disruption(removes(cloud), situation(cloud)).removes) == 2


def test_few_machines_are_given_back_voluntarily_within_a_window():
    cloud = running_world(4, disruption_share=1.0, max_voluntary_terminations=3)
    assert len(disruption(removes(cloud), situation(cloud)).removes) == 3
    assert len(disruption(removes(cloud), situation(cloud, recent_voluntary=2)).removes) == 1
    assert not disruption(removes(cloud), situation(cloud, recent_voluntary=3)).removes


def test_a_gang_larger_than_the_limit_may_go_when_nothing_else_went():
    cloud = running_world(1, max_voluntary_terminations=3)
    put(cloud, 0, offerings=(SPOT,) * 8)
    assert disruption(removes(cloud), situation(cloud)).removes
    assert not disruption(removes(cloud), situation(cloud, recent_voluntary=1)).removes


def test_replicas_that_never_served_are_outside_the_disruption_limits():
    cloud = running_world(3)
    for index in range(3):
        put(cloud, index, ever_ready=False, state=ReplicaState.STARTING)
    left = disruption(removes(cloud), situation(cloud, recent_voluntary=99))
    assert len(left.removes) == 3


def test_all_guards_together_let_a_harmless_plan_through():
    cloud = running_world(3)
    plan = Moves(starts=(start(),), removes=removes(cloud, 1).removes)
    left = guarded(plan, situation(cloud, required=required(20.0)))
    assert left == plan


@pytest.mark.parametrize(
    "brake",
    [
        {"hold": {"m": "demand is stale"}},
        {"frozen": "x"},
        {"required": required(30.0)},
        {"recent_voluntary": 5},
        {"now": T0 + 210},
        {"policies": policies(paused=True)},
    ],
)
def test_every_brake_on_removals_is_in_force(brake):
    cloud = running_world(3)
    assert len(guarded(removes(cloud, 1), situation(cloud)).removes) == 1
    assert not guarded(removes(cloud, 1), situation(cloud, **brake)).removes


@pytest.mark.parametrize(
    "brake",
    [
        {"closed_providers": frozenset({"sim"})},
        {"open_circuits": frozenset({template().id})},
        {"caps": replace(OPEN, usd_per_hour=3.0)},
        {"policies": policies(policy(max_replicas=3))},
        {"policies": policies(paused=True)},
    ],
)
def test_every_brake_on_starts_is_in_force(brake):
    cloud = running_world(3)
    assert len(guarded(starts(1), situation(cloud)).starts) == 1
    assert not guarded(starts(1), situation(cloud, **brake)).starts


def test_a_broken_replica_does_not_serve_a_model_on_hold():
    cloud = running_world(1)
    put(cloud, 0, state=ReplicaState.STARTING)
    held = situation(cloud, hold={"m": "demand is stale"}, required=required(10.0))
    assert not held_models(starts(1), held).starts
    (intent,) = cloud.engine.state.fleet.live_intents()
    cloud.engine.state.fleet.put_intent(replace(intent, departing="interrupted"))
    assert held_models(starts(1), held).starts
