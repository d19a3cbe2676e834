from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import (
    BIG,
    SPOT,
    T0,
    Cloud,
    Templates,
    choice,
    demand,
    engine,
    offers,
    policy,
    report,
    running_world,
    template,
)

from corald.core.status import endpoints_of, plan_rows, status_of
from corald.model.events import (
    ConsumerHealth,
    FailureClass,
    LaunchFailed,
    PauseRequested,
    ProviderFailed,
    Solved,
    SolveFailed,
)
from corald.model.fleet import IntentState, ReplicaState
from corald.model.market import Market
from corald.model.plan import Move, Solve
from corald.model.problem import Allocation, RowOutcome
from corald.model.templates import Phase, Serving

PAIR = template((("4xL4", 1), ("L4", 1)), rate=50.0)


def put(cloud: Cloud, index: int, **changes) -> None:
    replica = list(cloud.engine.state.fleet.replicas.values())[index]
    cloud.engine.state.fleet.put_replica(replace(replica, **changes))


def model_of(cloud: Cloud, name: str = "m"):
    return next(m for m in status_of(cloud.engine.state, cloud.now).models if m.model == name)


def test_a_model_shows_demand_capacity_and_cost():
    model = model_of(running_world(2))
    assert (model.demand, model.capacity_ready, model.unmet) == (20.0, 20.0, 0.0)
    assert (model.replicas_ready, model.replicas_starting, model.replicas_draining) == (2, 0, 0)
    assert model.usd_per_hour == pytest.approx(0.8)
    assert model.usd_per_hour_by_market == {Market.SPOT: pytest.approx(0.8)}


def test_capacity_that_does_not_serve_yet_does_not_meet_demand():
    cloud = running_world(2)
    put(cloud, 0, state=ReplicaState.STARTING)
    put(cloud, 1, state=ReplicaState.DRAINING)
    model = model_of(cloud)
    assert (model.capacity_ready, model.capacity_starting, model.unmet) == (0.0, 10.0, 20.0)
    assert (model.replicas_ready, model.replicas_starting, model.replicas_draining) == (0, 1, 1)


def test_the_scarcer_phase_decides_what_split_serving_can_carry():
    prefill = replace(template(), phase=Phase.PREFILL, throughput=50_000.0)
    decode = replace(template(), phase=Phase.DECODE, throughput=4_000.0)
    split = policy(serving=Serving.DISAGGREGATED)
    cloud = Cloud(engine(split, templates=Templates(prefill, decode)))
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(20.0), T0)
    cloud.aim(choice(1, of=prefill), choice(1, of=decode))
    cloud.advance(200.0)
    assert model_of(cloud).capacity_ready == pytest.approx(20.0)


def test_cost_and_commitment_are_told_apart():
    status = status_of((cloud := running_world(2)).engine.state, cloud.now)
    assert status.usd_per_hour == pytest.approx(0.8)
    assert status.committed_usd_per_hour == pytest.approx(2.0)


def test_a_model_nobody_reported_has_no_age():
    cloud = running_world(1, policy(), policy("other"))
    assert model_of(cloud, "other").demand_age_seconds is None
    assert model_of(cloud).demand_age_seconds == pytest.approx(cloud.now - (T0 + 1100))


def test_what_is_wrong_is_named():
    cloud = running_world(1)
    e = cloud.engine
    assert status_of(e.state, T0 + 1150).degraded == ()
    e.apply(ConsumerHealth(healthy=False, detail="broker away", at=cloud.now), cloud.now)
    e.apply(ProviderFailed("sim", "listing", "denied", credentials=True, at=cloud.now), cloud.now)
    degraded = status_of(e.state, cloud.now).degraded
    assert "events: broker away" in degraded
    assert "provider sim: listing: denied" in degraded
    assert status_of(e.state, cloud.now).providers[0].frozen


def test_a_failed_solve_degrades_until_one_succeeds():
    cloud = running_world(1)
    e = cloud.engine
    e.apply(demand(30.0, sequence=9, at=cloud.now), cloud.now)
    cloud.now += 6
    (solve,) = [i for i in e.decide(cloud.now) if isinstance(i, Solve)]
    e.apply(SolveFailed(solve.generation, "crashed", cloud.now), cloud.now)
    assert "solver: crashed" in status_of(e.state, cloud.now).degraded
    cloud.now += 6
    (again,) = [i for i in e.decide(cloud.now) if isinstance(i, Solve)]
    unmet = replace(report(), rows=(RowOutcome("m", Phase.MIXED, 30.0, 10.0),))
    e.apply(Solved(again.generation, Allocation((choice(1),)), unmet, cloud.now), cloud.now)
    assert [d for d in status_of(e.state, cloud.now).degraded if "demand is stale" not in d] == [
        "m mixed: 20 of 30 unmet"
    ]


def test_marks_quotas_and_circuits_are_shown_while_they_last():
    cloud = running_world(1)
    e = cloud.engine
    cloud.hold_launches = True
    e.apply(demand(40.0, sequence=9, at=cloud.now), cloud.now)
    cloud.aim(choice(4))
    for launch, kind in zip(
        cloud.launched[1:],
        ("insufficient-capacity", "quota-exceeded", "invalid-request"),
        strict=True,
    ):
        error = FailureClass(kind, "x", bucket="G" if kind == "quota-exceeded" else "")
        e.apply(LaunchFailed(launch.intent, error, cloud.now), cloud.now)
    status = status_of(e.state, cloud.now)
    assert [m.offering for m in status.marks] == [SPOT]
    assert status.quota_blocked == (("r1", Market.SPOT),)
    assert status.open_circuits == (template().id,)
    later = status_of(e.state, cloud.now + 3600)
    assert (later.marks, later.quota_blocked, later.open_circuits) == ((), (), ())


def test_a_machine_that_does_not_go_is_counted_as_stuck():
    cloud = running_world(1)
    (intent,) = cloud.engine.state.fleet.live_intents()
    gone = replace(intent, state=IntentState.TERMINATING, terminating_since=cloud.now)
    cloud.engine.state.fleet.put_intent(gone)
    assert status_of(cloud.engine.state, cloud.now + 899).stuck_terminating == 0
    late = status_of(cloud.engine.state, cloud.now + 900)
    assert late.stuck_terminating == 1
    assert "1 machines are stuck terminating" in late.degraded


def test_a_pause_of_everything_and_of_one_model_are_shown():
    cloud = running_world(1, policy(), policy("other"))
    pause = PauseRequested("other", paused=True, reason="x", at=cloud.now)
    cloud.engine.apply(pause, cloud.now)
    assert [model_of(cloud).paused, model_of(cloud, "other").paused] == [False, True]
    cloud.engine.apply(replace(pause, model=""), cloud.now)
    assert status_of(cloud.engine.state, cloud.now).paused


def test_an_instance_is_ready_only_while_its_replica_serves():
    cloud = running_world(1)
    assert [i.ready for i in status_of(cloud.engine.state, cloud.now).instances] == [True]
    put(cloud, 0, state=ReplicaState.DRAINING)
    assert [i.ready for i in status_of(cloud.engine.state, cloud.now).instances] == [False]


def gang() -> Cloud:
    cloud = Cloud(engine(templates=Templates(PAIR)))
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(50.0), T0)
    cloud.aim(choice(1, BIG, SPOT, of=PAIR))
    return cloud


def test_an_endpoint_is_the_head_node_weighted_by_throughput():
    cloud = gang()
    assert endpoints_of(cloud.engine.state) == ()
    cloud.advance(200.0)
    (endpoint,) = endpoints_of(cloud.engine.state)
    assert (endpoint.address, endpoint.weight) == ("10.0.0.1", 50.0)
    assert (endpoint.region, endpoint.zone, endpoint.phase) == ("r1", "r1-a", Phase.MIXED)


@pytest.mark.parametrize("ordinal", [0, 1])
def test_a_gang_that_is_about_to_lose_a_machine_takes_no_requests(ordinal):
    cloud = gang()
    cloud.advance(200.0)
    intent = next(i for i in cloud.engine.state.fleet.live_intents() if i.ordinal == ordinal)
    cloud.engine.state.fleet.put_intent(replace(intent, departing="interrupted"))
    assert endpoints_of(cloud.engine.state) == ()


@pytest.mark.parametrize("state", [s for s in ReplicaState if s is not ReplicaState.READY])
def test_only_a_ready_replica_takes_requests(state):
    cloud = running_world(1)
    put(cloud, 0, state=state)
    assert endpoints_of(cloud.engine.state) == ()


def test_the_plan_shows_what_is_added_kept_and_drained():
    cloud = running_world(3)
    put(cloud, 0, state=ReplicaState.DRAINING, reason="surplus")
    cloud.engine.state.target = Allocation((choice(1), choice(2, BIG, of=template((("4xL4", 1),)))))
    cloud.engine.state.templates = Templates(template(), template((("4xL4", 1),)))
    rows = plan_rows(cloud.engine.state)
    assert [r.move for r in rows] == [Move.ADD, Move.KEEP, Move.DRAIN, Move.DRAIN]
    assert {(r.shape, r.count, r.reason) for r in rows} == {
        ("1x4xL4", 2, "covers demand at least cost"),
        ("1xL4", 1, ""),
        ("1xL4", 1, "not in the plan"),
        ("1xL4", 1, "surplus"),
    }
    assert [r.usd_per_hour for r in rows] == pytest.approx([3.0, 0.4, 0.4, 0.4])


def test_before_the_first_plan_there_is_none_to_show():
    assert plan_rows(engine().state) == ()


def test_the_plan_shows_a_drain_that_is_called_off_as_kept():
    cloud = running_world(1)
    put(cloud, 0, state=ReplicaState.DRAINING, reason="surplus")
    cloud.engine.state.target = Allocation((choice(1),))
    assert [r.move for r in plan_rows(cloud.engine.state)] == [Move.KEEP]


def test_the_plan_does_not_show_an_old_reason_for_a_new_removal():
    cloud = running_world(1)
    put(cloud, 0, reason="drain called off")
    cloud.engine.state.target = Allocation(())
    assert [(r.move, r.reason) for r in plan_rows(cloud.engine.state)] == [
        (Move.DRAIN, "not in the plan")
    ]
