"""What may happen while something else is under way: answers out of order, restarts, changes."""

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
    catalog,
    choice,
    demand,
    engine,
    offers,
    policies,
    policy,
    report,
    running_world,
    template,
)

from corald.core.engine import Engine
from corald.core.status import status_of
from corald.model.events import (
    DemandRetired,
    FailureClass,
    FleetObserved,
    InterruptionNoticed,
    Launched,
    LaunchFailed,
    LaunchUnknown,
    PauseRequested,
    PoliciesChanged,
    ProviderFailed,
    Solved,
    SolveFailed,
)
from corald.model.fleet import InstanceState, IntentState, InterruptionKind, Listing, ReplicaState
from corald.model.plan import Instruction, Launch, Solve, Terminate
from corald.model.policy import SpotUse
from corald.model.problem import Allocation, SolveStatus
from corald.model.state import StoredState
from corald.model.templates import Phase, Serving

PAIR = template((("4xL4", 1), ("L4", 1)), rate=50.0)


def asked(*models, target=(), rate: float = 10.0, **parts) -> Cloud:
    """A cloud whose first launches have left and are not answered."""
    cloud = Cloud(engine(*models, **parts), hold_launches=True)
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(rate), T0)
    cloud.aim(*(target or (choice(1),)))
    return cloud


def fail(cloud: Cloud, launch: Launch, kind: str, **details) -> None:
    error = FailureClass(kind, kind, **details)
    cloud.engine.apply(LaunchFailed(launch.intent, error, cloud.now), cloud.now)


def unknown(cloud: Cloud, launch: Launch) -> None:
    cloud.engine.apply(LaunchUnknown(launch.intent, "timed out", cloud.now), cloud.now)


def interrupt(cloud: Cloud, machine: str, seconds: float = 120.0) -> None:
    notice = InterruptionNoticed(
        "n", "sim", machine, InterruptionKind.TERMINATE, cloud.now + seconds, cloud.now
    )
    cloud.engine.apply(notice, cloud.now)


def fresh_demand(cloud: Cloud, rate: float, **changes) -> None:
    sample = demand(rate, sequence=int(cloud.now - T0) + 10, at=cloud.now, **changes)
    cloud.engine.apply(sample, cloud.now)


def restarted(cloud: Cloud, *, providers: frozenset[str] = frozenset({"sim"})) -> Engine:
    """An engine on what the fleet looks like now, as a store would give it back."""
    fleet = cloud.engine.state.fleet
    return Engine(
        policies=cloud.engine.state.policies,
        catalog=catalog(),
        templates=cloud.engine.state.templates,
        providers=providers,
        stored=StoredState(
            intents=tuple(fleet.live_intents()), replicas=tuple(fleet.replicas.values())
        ),
        now=cloud.now,
    )


def is_solve(instruction: Instruction) -> bool:
    return isinstance(instruction, Solve)


# Waking up


def test_an_engine_that_waits_to_be_synced_sleeps():
    e = engine()
    e.decide(T0)
    assert e.next_wakeup(T0) > T0
    assert e.next_wakeup(T0 + 5000) > T0 or e.decide(T0 + 5000) == ()
    e.decide(T0 + 5000)
    assert e.next_wakeup(T0 + 5000) > T0 + 5000


def test_an_engine_whose_last_source_was_retired_sleeps():
    cloud = running_world(1)
    cloud.engine.apply(DemandRetired("s", cloud.now), cloud.now)
    cloud.now += 400
    cloud.engine.decide(cloud.now)
    assert cloud.engine.next_wakeup(cloud.now) > cloud.now


def test_an_engine_sleeps_while_a_solve_takes_long():
    cloud = running_world(1)
    fresh_demand(cloud, 30.0)
    cloud.now += 6
    assert any(map(is_solve, cloud.engine.decide(cloud.now)))
    for _ in range(5):
        cloud.now += 301
        fresh_demand(cloud, 40.0)
        cloud.engine.decide(cloud.now)
        assert cloud.engine.next_wakeup(cloud.now) > cloud.now


def test_a_complete_listing_without_machines_wakes_an_engine_that_waited_for_it():
    e = engine()
    e.apply(offers(), T0)
    e.apply(demand(10.0), T0)
    e.decide(T0 + 60)
    e.apply(FleetObserved("sim", Listing((), complete=True), T0 + 61), T0 + 61)
    assert e.next_wakeup(T0 + 61) <= T0 + 66
    assert any(map(is_solve, e.decide(T0 + 66)))


def test_a_provider_on_hold_is_tried_again_when_the_hold_ends():
    cloud = asked()
    fail(cloud, cloud.launched[0], "blocked")
    cloud.decide()
    assert cloud.engine.next_wakeup(cloud.now + 10) <= T0 + 61


def test_a_failed_solve_is_tried_again_without_any_event():
    cloud = running_world(1)
    fresh_demand(cloud, 30.0)
    cloud.now += 6
    (solve,) = filter(is_solve, cloud.engine.decide(cloud.now))
    cloud.engine.apply(SolveFailed(solve.generation, "crashed", cloud.now), cloud.now)
    due = cloud.engine.next_wakeup(cloud.now)
    assert cloud.now < due <= cloud.now + 60
    assert any(map(is_solve, cloud.engine.decide(due)))


def test_an_orphan_wakes_the_engine_at_the_end_of_its_grace():
    cloud = running_world(1)
    known = next(iter(cloud.machines.values()))
    tags = tuple((k, "test/m/rX-1/0/1" if k == "corald:intent" else v) for k, v in known.tags)
    cloud.machines["i-o"] = replace(known, id="i-o", tags=tags, launched_at=cloud.now)
    cloud.observe()
    cloud.decide()
    seen_at = cloud.now
    cloud.now = cloud.engine.next_wakeup(cloud.now)
    while "i-o" not in cloud.terminated and cloud.now <= seen_at + 125:
        cloud.decide()
        cloud.now = cloud.engine.next_wakeup(cloud.now) + 0.001
    assert "i-o" in cloud.terminated


@pytest.mark.parametrize("seconds", [0.0, 100.0, 700.0, 5000.0])
def test_deciding_twice_at_one_moment_asks_for_nothing_twice(seconds):
    cloud = asked(target=(choice(2),), rate=20.0)
    cloud.now += seconds
    fresh_demand(cloud, 20.0)
    cloud.engine.decide(cloud.now)
    again = cloud.engine.decide(cloud.now)
    assert [i for i in again if isinstance(i, Launch | Terminate)] == []


def test_one_solve_is_under_way_at_a_time():
    cloud = running_world(1)
    solves = []
    for step in range(6):
        fresh_demand(cloud, 30.0 + 10 * step)
        cloud.now += 6
        solves += filter(is_solve, cloud.engine.decide(cloud.now))
    (solve,) = solves
    answer = Solved(solve.generation, Allocation((choice(3),)), report(), cloud.now)
    cloud.engine.apply(answer, cloud.now)
    (after,) = filter(is_solve, cloud.engine.decide(cloud.now))
    assert after.problem.rows[0].amount == 80.0


def test_a_mark_that_ends_during_a_solve_leads_to_another_solve():
    cloud = running_world(1, resolve_every_seconds=1e6)
    rules = cloud.engine.state.policies.rules
    cloud.engine.state.offers.sold_out(SPOT, cloud.now, rules, None)
    fresh_demand(cloud, 30.0)
    cloud.now += 100
    (solve,) = filter(is_solve, cloud.engine.decide(cloud.now))
    cloud.now += 90
    assert not any(map(is_solve, cloud.engine.decide(cloud.now)))
    answer = Solved(solve.generation, Allocation((choice(1),)), report(), cloud.now)
    cloud.engine.apply(answer, cloud.now)
    solves = list(filter(is_solve, cloud.engine.decide(cloud.now)))
    due = cloud.engine.next_wakeup(cloud.now)
    solves += filter(is_solve, cloud.engine.decide(due))
    assert len(solves) == 1
    assert due <= cloud.now + 6


# Answers to launches


@pytest.mark.parametrize("kind", ["blocked", "credentials-rejected", "withdrawn"])
def test_a_repeated_call_that_was_not_made_proves_nothing_about_the_first(kind):
    cloud = asked()
    (launch,) = cloud.launched
    unknown(cloud, launch)
    cloud.now += 12
    cloud.decide()
    assert len(cloud.launched) == 2
    fail(cloud, launch, kind)
    assert cloud.engine.state.fleet.intents[launch.intent].state is IntentState.UNKNOWN


def test_a_call_of_an_earlier_life_may_have_had_an_effect():
    cloud = asked()
    (launch,) = cloud.launched
    again = restarted(cloud)
    again.apply(LaunchFailed(launch.intent, FailureClass("blocked", "cap"), T0 + 1), T0 + 1)
    assert again.state.fleet.intents[launch.intent].state is IntentState.UNKNOWN


def test_a_late_error_does_not_end_a_machine_that_a_listing_has_shown():
    cloud = asked()
    (launch,) = cloud.launched
    unknown(cloud, launch)
    cloud.now += 12
    cloud.decide()
    cloud.machine(launch)
    cloud.now += 3
    cloud.observe()
    fail(cloud, launch, "insufficient-capacity")
    intent = cloud.engine.state.fleet.intents[launch.intent]
    assert (intent.state, intent.instance) == (IntentState.LAUNCHED, "i-0")


def test_a_late_error_does_not_end_a_machine_that_is_being_given_back():
    cloud = asked()
    (launch,) = cloud.launched
    unknown(cloud, launch)
    cloud.now += 12
    cloud.decide()
    cloud.machine(launch)
    cloud.now += 3
    cloud.observe()
    (replica,) = cloud.engine.state.fleet.replicas.values()
    cloud.engine.lifecycle.release(replica, cloud.now, reason="test")
    fail(cloud, launch, "insufficient-capacity")
    assert cloud.engine.state.fleet.intents[launch.intent].state is IntentState.TERMINATING


def test_listings_disprove_nothing_while_a_call_is_under_way():
    cloud = asked()
    (launch,) = cloud.launched
    cloud.now = T0 + 15
    cloud.observe()
    cloud.now = T0 + 91
    unknown(cloud, launch)
    cloud.now = T0 + 150
    cloud.observe()
    cloud.decide()
    assert len(cloud.launched) == 2
    for seconds in (185, 250, 400):
        cloud.now = T0 + seconds
        cloud.observe()
    assert not cloud.engine.state.fleet.intents[launch.intent].state.ended
    machine = cloud.machine(launch)
    cloud.engine.apply(Launched(launch.intent, machine, T0 + 401), T0 + 401)
    assert cloud.engine.state.fleet.intents[launch.intent].instance == machine.id


def test_a_released_launch_whose_call_still_waits_is_not_disproven():
    cloud = asked()
    (launch,) = cloud.launched
    (replica,) = cloud.engine.state.fleet.replicas.values()
    cloud.engine.lifecycle.release(replica, T0 + 1, reason="test")
    for seconds in (200, 300, 400):
        cloud.now = T0 + seconds
        cloud.observe()
    assert launch.intent in cloud.engine.state.fleet.intents


def test_what_is_remembered_about_a_disproven_launch_is_forgotten():
    cloud = asked()
    (launch,) = cloud.launched
    unknown(cloud, launch)
    for seconds in (170, 250, 320):
        cloud.now = T0 + seconds
        cloud.observe()
    assert launch.intent not in cloud.engine.state.fleet.intents
    assert cloud.engine.calls._retry_at == {}


def test_an_answer_for_an_intent_that_nobody_knows_is_harmless():
    cloud = running_world(1)
    before = dict(cloud.engine.state.fleet.intents)
    cloud.engine.apply(LaunchUnknown("test/m/r0-0/0/1", "late", cloud.now), cloud.now)
    error = FailureClass("insufficient-capacity", "late")
    cloud.engine.apply(LaunchFailed("test/m/r0-0/0/1", error, cloud.now), cloud.now)
    assert dict(cloud.engine.state.fleet.intents) == before


def test_an_unknown_outcome_is_left_alone_for_a_moment_before_it_is_asked_again():
    cloud = asked()
    unknown(cloud, cloud.launched[0])
    cloud.now += 9
    cloud.decide()
    assert len(cloud.launched) == 1
    assert cloud.engine.next_wakeup(cloud.now) <= T0 + 10
    cloud.now += 1
    cloud.decide()
    assert len(cloud.launched) == 2


def test_a_throttled_launch_waits_as_long_as_the_cloud_asks_for():
    cloud = asked()
    fail(cloud, cloud.launched[0], "throttled", retry_after=40.0)
    for seconds, calls in ((39.0, 1), (40.0, 2)):
        cloud.now = T0 + seconds
        cloud.decide()
        assert len(cloud.launched) == calls


def test_the_answer_to_a_solve_that_was_given_up_is_ignored():
    cloud = running_world(2)
    fresh_demand(cloud, 30.0)
    cloud.now += 6
    (given_up,) = filter(is_solve, cloud.engine.decide(cloud.now))
    interrupt(cloud, next(iter(cloud.machines)))
    (present,) = filter(is_solve, cloud.engine.decide(cloud.now))
    before = cloud.engine.state.target
    late = Solved(given_up.generation, Allocation((choice(9),)), report(), cloud.now)
    cloud.engine.apply(late, cloud.now)
    assert cloud.engine.state.target == before
    wanted = Allocation((choice(3),))
    cloud.engine.apply(Solved(present.generation, wanted, report(), cloud.now), cloud.now)
    assert cloud.engine.state.target == wanted


def test_a_gang_with_one_bad_image_opens_its_circuit_once():
    quad = template((("L4", 4),), rate=40.0)
    cloud = asked(target=(choice(1, SPOT, SPOT, SPOT, SPOT, of=quad),), templates=Templates(quad))
    for launch in cloud.launched:
        fail(cloud, launch, "invalid-request")
    assert cloud.engine.state.circuits.open_at(T0) == {quad.id: T0 + 300.0}


@pytest.mark.parametrize("kind", ["quota-exceeded", "instance-gone", "a-new-kind"])
def test_no_kind_of_failure_is_repeated_without_a_pause(kind):
    cloud = asked()
    answered = 0
    while answered < len(cloud.launched) and answered < 10:
        fail(cloud, cloud.launched[answered], kind, bucket="a name of the cloud's own")
        answered += 1
        cloud.now += 1
        cloud.decide()
    assert answered <= 3


def test_a_lost_machine_that_comes_back_after_its_repair_is_given_back():
    cloud = running_world(1)
    (machine,) = cloud.machines.values()
    hidden, cloud.machines = cloud.machines, {}
    for _ in range(20):
        cloud.now += 15
        fresh_demand(cloud, 10.0)
        cloud.observe()
        cloud.decide()
    assert len(cloud.launched) == 2
    cloud.machines |= {f"{k}-back" if k in cloud.machines else k: v for k, v in hidden.items()}
    cloud.observe()
    cloud.decide()
    (replica,) = cloud.engine.state.fleet.replicas.values()
    assert cloud.engine.state.fleet.whole(replica)
    assert len(cloud.launched) == 2
    assert set(cloud.terminated) <= {machine.id}


def test_a_launch_without_an_outcome_is_given_up_after_a_while_and_counted_until_disproven():
    cloud = asked(launch_deadline_seconds=300.0)
    (launch,) = cloud.launched
    unknown(cloud, launch)
    denied = ProviderFailed("sim", "listing", "denied", credentials=True, at=cloud.now)
    cloud.engine.apply(denied, cloud.now)
    for seconds in (299.0, 300.0):
        cloud.now = T0 + seconds
        cloud.engine.decide(cloud.now)
        intent = cloud.engine.state.fleet.intents[launch.intent]
        assert intent.usable is (seconds < 300.0)
    assert status_of(cloud.engine.state, cloud.now).committed_usd_per_hour >= 1.0
    assert cloud.engine.state.circuits.on_trial() == frozenset()


# Stops


@pytest.mark.parametrize("model", ["", "m"])
def test_a_throttled_launch_is_not_asked_for_again_during_a_pause(model):
    cloud = asked()
    fail(cloud, cloud.launched[0], "throttled")
    pause = PauseRequested(model, paused=True, reason="test", at=cloud.now)
    cloud.engine.apply(pause, cloud.now)
    cloud.now += 30
    cloud.decide()
    assert len(cloud.launched) == 1
    cloud.engine.apply(replace(pause, paused=False), cloud.now)
    cloud.decide()
    assert [launch.request for launch in cloud.launched] == [cloud.launched[0].request] * 2


def test_a_launch_is_wanted_until_its_replica_is_released_or_paused():
    cloud = asked()
    calls, name = cloud.engine.calls, cloud.launched[0].intent
    assert calls.wanted(name)
    pause = PauseRequested("", paused=True, reason="test", at=cloud.now)
    cloud.engine.apply(pause, cloud.now)
    assert not calls.wanted(name)
    cloud.engine.apply(replace(pause, paused=False), cloud.now)
    (replica,) = cloud.engine.state.fleet.replicas.values()
    cloud.engine.lifecycle.release(replica, cloud.now, reason="test")
    assert not calls.wanted(name)
    assert not calls.wanted("test/m/r0-0/0/1")


def test_machines_of_a_provider_that_is_not_configured_any_more_are_left_alone():
    cloud = running_world(1)
    again = restarted(cloud, providers=frozenset({"elsewhere"}))
    (replica,) = again.state.fleet.replicas.values()
    again.lifecycle.release(replica, cloud.now, reason="test")
    calls = [i for i in again.decide(cloud.now) if isinstance(i, Launch | Terminate)]
    assert calls == []


def test_a_frozen_provider_is_not_asked_to_terminate():
    cloud = running_world(1)
    (replica,) = cloud.engine.state.fleet.replicas.values()
    cloud.engine.lifecycle.release(replica, cloud.now, reason="test")
    denied = ProviderFailed("sim", "listing", "denied", credentials=True, at=cloud.now)
    cloud.engine.apply(denied, cloud.now)
    cloud.decide()
    assert cloud.terminated == []
    cloud.now += 40
    cloud.observe()
    cloud.decide()
    assert len(cloud.terminated) == 1


def test_an_old_price_gives_no_new_machine_even_to_a_plan_that_is_in_force():
    cloud = running_world(1)
    cloud.now += 3 * 86400
    cloud.observe()
    fresh_demand(cloud, 10.0)
    cloud.decide()
    interrupt(cloud, next(iter(cloud.machines)))
    cloud.decide()
    assert len(cloud.launched) == 1


def test_a_plan_made_under_another_policy_launches_nothing_that_this_one_forbids():
    cloud = running_world(1)
    changed = PoliciesChanged(policies(policy(spot=SpotUse.NEVER)), cloud.now)
    cloud.engine.apply(changed, cloud.now)
    interrupt(cloud, next(iter(cloud.machines)))
    launches = [i for i in cloud.engine.decide(cloud.now) if isinstance(i, Launch)]
    assert launches == []


# Plans that must be carried out, or must not grow


def test_a_model_without_known_demand_does_not_grow():
    other = template(model="other")
    cloud = Cloud(engine(policy(), policy("other"), templates=Templates(template(), other)))
    cloud.engine.apply(offers(available=None), T0)
    cloud.observe()
    cloud.engine.apply(demand(20.0), T0)
    cloud.engine.apply(demand(1.0, model="other", source="o"), T0)
    cloud.aim(choice(2, ON_DEMAND))
    cloud.advance(300.0)
    cloud.engine.apply(DemandRetired("s", cloud.now), cloud.now)
    for _ in range(10):
        cloud.now += 400
        cloud.observe()
        for _ in range(3):
            cloud.now += 6
            for solve in filter(is_solve, cloud.engine.decide(cloud.now)):
                (row,) = [r for r in solve.problem.rows if r.model == "m"]
                target = Allocation((choice(max(1, int(row.amount // 10))),))  # all on spot
                answer = Solved(solve.generation, target, report(), cloud.now)
                cloud.engine.apply(answer, cloud.now)
            cloud.engine.take_changes()
    assert (
        len([r for r in cloud.engine.state.fleet.replicas.values() if r.template.model == "m"]) == 2
    )


def test_what_is_planned_for_does_not_shrink_while_demand_is_stale():
    cloud = running_world(3)
    fresh_demand(cloud, 10.0)
    cloud.decide()
    for _ in range(10):
        cloud.now += 3600
        cloud.observe()
        cloud.decide()
    assert cloud.solves[-1].problem.rows[0].amount == 30.0
    fresh_demand(cloud, 10.0)
    cloud.decide()
    cloud.now += 601
    fresh_demand(cloud, 10.0)
    cloud.decide()
    cloud.now += 6
    cloud.decide()
    assert cloud.solves[-1].problem.rows[0].amount == 10.0


def test_scarce_machines_go_to_the_model_that_comes_first():
    high = template(model="high")
    cloud = Cloud(
        engine(
            policy(),
            policy("high", priority=9),
            templates=Templates(template(), high),
            budget_usd_per_hour=3.0,
        )
    )
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(20.0), T0)
    cloud.engine.apply(demand(0.0, model="high", source="h"), T0)
    cloud.aim(choice(2))
    cloud.advance(200.0)
    for _ in range(60):
        cloud.now += 60
        fresh_demand(cloud, 20.0)
        fresh_demand(cloud, 20.0, model="high", source="h")
        cloud.aim(choice(1), choice(2, of=high))
        cloud.engine.state.report = report(SolveStatus.SCALED)
        cloud.advance(0.0)
    states = [(r.template.model, r.state) for r in cloud.engine.state.fleet.replicas.values()]
    assert sorted(states) == [
        ("high", ReplicaState.READY),
        ("high", ReplicaState.READY),
        ("m", ReplicaState.READY),
    ]


def test_split_serving_is_ready_before_mixed_serving_ends():
    cloud = running_world(2)
    prefill = replace(template(), phase=Phase.PREFILL, throughput=1e5)
    decode = replace(template(), phase=Phase.DECODE, throughput=1e5)
    cloud.engine.state.templates = Templates(template(), prefill, decode)
    split = PoliciesChanged(policies(policy(serving=Serving.DISAGGREGATED)), cloud.now)
    cloud.engine.apply(split, cloud.now)
    fresh_demand(cloud, 20.0)
    cloud.aim(choice(1, of=prefill), choice(1, of=decode))
    for _ in range(3):
        cloud.now += 60
        fresh_demand(cloud, 20.0)
        cloud.decide()
        mixed = [
            r for r in cloud.engine.state.fleet.replicas.values() if r.template.phase == "mixed"
        ]
        assert {r.state for r in mixed} == {ReplicaState.READY}
    for _ in range(60):
        cloud.advance(60.0)
        fresh_demand(cloud, 20.0)
        cloud.decide()
    phases = {r.template.phase for r in cloud.engine.state.fleet.replicas.values()}
    assert phases == {Phase.PREFILL, Phase.DECODE}


def test_machines_of_a_model_that_is_not_served_are_no_supply_for_others():
    cloud = running_world(2)
    cloud.engine.apply(PoliciesChanged(policies(policy("other")), cloud.now), cloud.now)
    fresh_demand(cloud, 10.0, model="other")
    cloud.engine.apply(replace(offers(available=0), at=cloud.now), cloud.now)
    cloud.aim()
    available = {s.offering: s.available for s in cloud.solves[-1].problem.supplies}
    assert available[SPOT] == 0


def test_a_removed_model_that_comes_back_finds_its_replicas():
    cloud = running_world(2)
    cloud.engine.apply(PoliciesChanged(policies(policy("other")), cloud.now), cloud.now)
    cloud.aim()
    cloud.engine.apply(PoliciesChanged(policies(policy()), cloud.now), cloud.now)
    fresh_demand(cloud, 1.0)
    cloud.aim(choice(2))
    assert cloud.solves[-1].problem.rows[0].amount == pytest.approx(20.0)
    assert len(cloud.launched) == 2
    assert cloud.terminated == []


def test_a_gang_on_hold_for_its_missing_machine_is_not_held_for_ever():
    cloud = Cloud(engine(templates=Templates(PAIR)), hold_launches=True)
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(50.0), T0)
    cloud.aim(choice(1, BIG, SPOT, of=PAIR))
    head = next(launch for launch in cloud.launched if launch.request.offering == BIG)
    cloud.engine.apply(Launched(head.intent, cloud.machine(head), T0), T0)
    answered = 0
    while not cloud.terminated and cloud.now < T0 + 7200:
        for launch in cloud.launched[answered:]:
            if launch.request.offering != BIG:
                fail(cloud, launch, "insufficient-capacity")
        answered = len(cloud.launched)
        market = ON_DEMAND if int(cloud.now / 60) % 2 else SPOT
        cloud.now += 10
        cloud.observe()
        fresh_demand(cloud, 50.0)
        cloud.aim(choice(1, BIG, market, of=PAIR))
    assert cloud.now - T0 < 1800


# What is stored


def test_a_source_that_reports_and_is_retired_at_once_stays_retired():
    cloud = running_world(1)
    cloud.engine.take_changes()
    cloud.engine.apply(demand(5.0, source="x", sequence=2), cloud.now)
    cloud.engine.apply(DemandRetired("x", cloud.now), cloud.now)
    assert not [s for s in cloud.engine.take_changes().demand if s.source == "x"]


def test_forgetting_one_silent_sample_does_not_take_the_sources_others_along():
    cloud = Cloud(engine(policy(), policy("other"), forget_demand_seconds=1000.0))
    e = cloud.engine
    e.apply(demand(5.0), T0)
    e.apply(demand(5.0, model="other", at=T0 + 900, sequence=2), T0 + 900)
    e.take_changes()
    e.decide(T0 + 1500)
    assert e.state.demand.level("other") is not None
    assert "s" not in e.take_changes().retired_sources


def test_a_machine_that_ends_is_paid_until_it_is_seen_to_have_ended():
    cloud = running_world(1)
    cloud.decide()
    before = cloud.engine.state.spend.total
    cloud.now += 250
    (name,) = cloud.machines
    cloud.machines[name] = replace(cloud.machines[name], state=InstanceState.TERMINATED)
    cloud.hold_launches = True
    cloud.observe()
    cloud.decide()
    assert cloud.engine.state.spend.total - before == pytest.approx(0.4 * 250 / 3600)


def test_machines_are_paid_while_the_daemon_is_down():
    cloud = running_world(1)
    fleet = cloud.engine.state.fleet
    stored = StoredState(
        intents=tuple(fleet.live_intents()),
        replicas=tuple(fleet.replicas.values()),
        settings=(("spend_until", repr(cloud.now)),),
    )
    later = cloud.now + 3600
    again = engine(stored=stored)
    again.decide(later)
    assert again.state.spend.total == pytest.approx(0.4)


def test_a_replica_name_is_never_given_twice_over_a_restart():
    cloud = running_world(1)
    cloud.engine.apply(demand(20.0, sequence=99, at=cloud.now), cloud.now)
    cloud.engine.state.fleet.take_changes()
    cloud.target = (choice(2),)
    cloud.now += 6
    settings: dict[str, str] = {}
    for _ in range(3):
        for instruction in cloud.engine.decide(cloud.now):
            cloud._answer(instruction)
        settings |= dict(cloud.engine.take_changes().settings)
    assert settings["sequence"] == "2"
    stored = StoredState(settings=tuple(settings.items()))
    again = Cloud(engine(stored=stored), now=cloud.now)
    again.engine.apply(offers(), T0)
    again.observe()
    fresh_demand(again, 10.0)
    again.aim(choice(1))
    (name,) = again.engine.state.fleet.replicas
    assert name not in cloud.engine.state.fleet.replicas
