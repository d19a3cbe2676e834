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
    policy,
    running_world,
    template,
)

from corald.core.status import endpoints_of, status_of
from corald.model.events import (
    FailureClass,
    InterruptionNoticed,
    LaunchFailed,
    LaunchUnknown,
    PauseRequested,
    PoliciesChanged,
)
from corald.model.fleet import InstanceState, IntentState, InterruptionKind, ReplicaState
from corald.model.plan import Launch, Solve
from corald.model.policy import OrphanPolicy
from corald.model.state import StoredState


def ready_replicas(cloud: Cloud) -> int:
    return sum(r.state is ReplicaState.READY for r in cloud.engine.state.fleet.replicas.values())


def test_nothing_is_decided_before_a_provider_is_listed_and_demand_is_known():
    e = engine()
    assert e.decide(T0) == ()
    assert e.state.waiting == "waiting for a provider to be listed"
    cloud = Cloud(e)
    e.apply(offers(), T0)
    cloud.observe()
    assert e.decide(T0) == ()
    assert e.state.waiting == "waiting for demand"
    e.apply(demand(10.0), T0)
    assert any(isinstance(i, Solve) for i in e.decide(T0))


def test_the_intent_is_part_of_the_changes_before_the_launch_leaves():
    cloud = Cloud(engine(), hold_launches=True)
    e = cloud.engine
    e.apply(offers(), T0)
    cloud.observe()
    e.apply(demand(10.0), T0)
    cloud.target = (choice(1),)
    for instruction in e.decide(T0):
        cloud._answer(instruction)
    launches = [i for i in e.decide(T0) if isinstance(i, Launch)]
    changes = e.take_changes()
    assert [i.id for i in changes.intents] == [launches[0].intent]
    assert changes.intents[0].request == launches[0].request


def test_demand_is_covered_and_then_nothing_more_happens():
    cloud = running_world(2)
    assert ready_replicas(cloud) == 2
    assert len(cloud.launched) == 2
    solves = len(cloud.solves)
    for _ in range(20):
        cloud.engine.apply(demand(20.0, sequence=99, at=cloud.now), cloud.now)
        cloud.advance(10.0)
    assert len(cloud.launched) == 2
    assert cloud.terminated == []
    assert len(cloud.solves) <= solves + 1


def test_an_unknown_outcome_keeps_its_slot_and_is_asked_again_with_the_same_token():
    cloud = Cloud(engine(), hold_launches=True)
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    (first,) = cloud.launched
    cloud.engine.apply(LaunchUnknown(first.intent, "timed out", T0 + 1), T0 + 1)
    cloud.now = T0 + 60
    cloud.engine.apply(demand(10.0, sequence=2, at=cloud.now), cloud.now)
    cloud.decide()
    assert [launch.request for launch in cloud.launched] == [first.request] * 2
    assert status_of(cloud.engine.state, cloud.now).committed_usd_per_hour == 1.0


def test_an_unknown_outcome_without_a_machine_is_disproven_by_two_complete_listings():
    cloud = Cloud(engine(), hold_launches=True)
    e = cloud.engine
    e.apply(offers(), T0)
    cloud.observe()
    e.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    intent = cloud.launched[0].intent
    e.apply(LaunchUnknown(intent, "timed out", T0 + 1), T0 + 1)
    for seconds in (200.0, 230.0):
        cloud.now = T0 + seconds
        cloud.observe()
        assert not e.state.fleet.intents[intent].state.ended
    cloud.now = T0 + 300.0
    cloud.observe(complete=False)
    assert not e.state.fleet.intents[intent].state.ended
    cloud.observe()
    assert intent not in e.state.fleet.intents


def test_a_sold_out_offering_is_left_alone_until_its_mark_expires():
    cloud = Cloud(engine(), hold_launches=True)
    e = cloud.engine
    e.apply(offers(), T0)
    cloud.observe()
    e.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    cloud.target = (choice(1, ON_DEMAND),)
    error = FailureClass("insufficient-capacity", "sold out", "ICE")
    e.apply(LaunchFailed(cloud.launched[0].intent, error, T0 + 1), T0 + 1)
    cloud.now = T0 + 1
    cloud.decide()
    assert cloud.launched[1].request.offering == ON_DEMAND
    available = {s.offering: s.available for s in cloud.solves[-1].problem.supplies}
    assert available[SPOT] == 0
    assert e.state.offers.obtainable(SPOT, [], T0 + 179, e.state.policies.rules) == 0
    assert e.state.offers.obtainable(SPOT, [], T0 + 182, e.state.policies.rules) == 1


def test_a_gang_keeps_its_machines_when_one_of_them_is_replaced():
    pair = template((("4xL4", 1), ("L4", 1)), rate=50.0)
    cloud = Cloud(engine(templates=Templates(pair)))
    e = cloud.engine
    e.apply(offers(), T0)
    cloud.observe()
    e.apply(demand(50.0), T0)
    cloud.aim(choice(1, BIG, SPOT, of=pair))
    cloud.advance(300.0)
    assert ready_replicas(cloud) == 1
    victim = next(m for m in cloud.machines.values() if m.offering == SPOT)
    notice = InterruptionNoticed(
        "n1", "sim", victim.id, InterruptionKind.TERMINATE, cloud.now + 120, cloud.now
    )
    e.apply(notice, cloud.now)
    assert endpoints_of(e.state) == ()
    assert e.next_wakeup(cloud.now) == cloud.now
    cloud.decide()
    assert [launch.request.offering for launch in cloud.launched] == [BIG, SPOT, SPOT]
    assert len(e.state.fleet.replicas) == 1
    cloud.advance(300.0)
    assert ready_replicas(cloud) == 1
    assert cloud.terminated == [victim.id]


def test_a_notice_is_not_cancelled_by_a_listing_that_still_shows_the_machine_running():
    cloud = running_world(1)
    (machine,) = cloud.machines.values()
    notice = InterruptionNoticed(
        "n1", "sim", machine.id, InterruptionKind.TERMINATE, cloud.now + 120, cloud.now
    )
    cloud.engine.apply(notice, cloud.now)
    cloud.hold_launches = True
    cloud.decide()
    cloud.now += 30
    cloud.observe()
    cloud.decide()
    assert endpoints_of(cloud.engine.state) == ()
    assert machine.id not in cloud.terminated
    cloud.now += 81
    cloud.decide()
    assert cloud.terminated == [machine.id]


def test_a_machine_missing_from_early_listings_is_not_lost_and_not_replaced():
    cloud = Cloud(engine())
    e = cloud.engine
    e.apply(offers(), T0)
    cloud.observe()
    e.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    hidden, cloud.machines = cloud.machines, {}
    for seconds in (10.0, 40.0, 170.0):
        cloud.now = T0 + seconds
        cloud.observe()
        cloud.decide()
    assert len(cloud.launched) == 1
    assert not next(iter(e.state.fleet.intents.values())).lost
    cloud.now = T0 + 191.0
    cloud.observe()
    assert next(iter(e.state.fleet.intents.values())).lost
    cloud.machines = hidden
    cloud.observe()
    assert not next(iter(e.state.fleet.intents.values())).lost


def test_a_listing_asked_before_a_launch_was_confirmed_proves_nothing():
    cloud = running_world(1)
    before = dict(cloud.engine.state.fleet.intents)
    cloud.machines, kept = {}, cloud.machines
    cloud.now -= 500
    cloud.observe()
    assert {i: x.missing_since for i, x in cloud.engine.state.fleet.intents.items()} == {
        i: x.missing_since for i, x in before.items()
    }
    assert kept


def test_excess_replicas_drain_one_at_a_time_and_are_terminated_at_their_deadline():
    cloud = running_world(3)
    cloud.engine.apply(demand(10.0, sequence=5, at=cloud.now), cloud.now)
    cloud.decide()
    cloud.now += 601.0
    cloud.engine.apply(demand(10.0, sequence=6, at=cloud.now), cloud.now)
    cloud.aim(choice(1))
    states = [r.state for r in cloud.engine.state.fleet.replicas.values()]
    assert states.count(ReplicaState.DRAINING) == 1
    assert len(endpoints_of(cloud.engine.state)) == 2
    assert cloud.terminated == []
    cloud.now += 600.0
    cloud.engine.apply(demand(10.0, sequence=7, at=cloud.now), cloud.now)
    cloud.decide()
    assert len(cloud.terminated) == 1


def test_stale_demand_holds_the_fleet_however_long_it_lasts():
    cloud = running_world(3)
    cloud.engine.apply(demand(10.0, sequence=5, at=cloud.now), cloud.now)
    cloud.decide()
    cloud.target = (choice(1),)
    for _ in range(24):
        cloud.advance(3600.0)
    assert cloud.terminated == []
    assert ready_replicas(cloud) == 3


def test_a_draining_replica_is_called_back_rather_than_a_new_one_launched():
    cloud = running_world(2)
    cloud.engine.apply(demand(10.0, sequence=5, at=cloud.now), cloud.now)
    cloud.decide()
    cloud.now += 601.0
    cloud.engine.apply(demand(10.0, sequence=6, at=cloud.now), cloud.now)
    cloud.aim(choice(1))
    cloud.engine.apply(demand(20.0, sequence=7, at=cloud.now), cloud.now)
    cloud.aim(choice(2))
    assert ready_replicas(cloud) == 2
    assert len(cloud.launched) == 2
    assert cloud.terminated == []


def test_a_budget_holds_even_while_replacements_overlap():
    cloud = running_world(2, budget_usd_per_hour=3.0)
    cloud.engine.apply(demand(90.0, sequence=5, at=cloud.now), cloud.now)
    cloud.aim(choice(9))
    assert status_of(cloud.engine.state, cloud.now).committed_usd_per_hour <= 3.0
    assert len(cloud.launched) == 3


def test_max_replicas_is_never_passed_while_launches_are_pending():
    cloud = running_world(2, policy(max_replicas=3))
    cloud.hold_launches = True
    for sequence in range(5, 25):
        cloud.now += 30
        cloud.engine.apply(demand(90.0, sequence=sequence, at=cloud.now), cloud.now)
        cloud.aim(choice(3))
    assert len(cloud.engine.state.fleet.replicas) == 3


def test_pausing_stops_launches_and_drains_until_resumed():
    cloud = running_world(1)
    cloud.engine.apply(PauseRequested("", paused=True, reason="test", at=cloud.now), cloud.now)
    cloud.engine.apply(demand(30.0, sequence=5, at=cloud.now), cloud.now)
    cloud.aim(choice(3))
    assert len(cloud.launched) == 1
    cloud.engine.apply(PauseRequested("", paused=False, reason="", at=cloud.now), cloud.now)
    cloud.decide()
    assert len(cloud.launched) == 3


def test_a_model_whose_policy_is_removed_keeps_its_replicas_by_default():
    cloud = running_world(2)
    rest = replace(cloud.engine.state.policies, models={"other": policy("other")})
    cloud.engine.apply(PoliciesChanged(rest, cloud.now), cloud.now)
    cloud.aim()
    cloud.advance(3600.0)
    assert ready_replicas(cloud) == 2
    assert cloud.terminated == []


def test_a_request_the_cloud_will_never_accept_opens_the_circuit_of_its_template():
    cloud = Cloud(engine(), hold_launches=True)
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    error = FailureClass("invalid-request", "bad image", "InvalidAMIID.NotFound")
    cloud.engine.apply(LaunchFailed(cloud.launched[0].intent, error, T0), T0)
    for _ in range(5):
        cloud.now += 10
        cloud.decide()
    assert len(cloud.launched) == 1
    assert template().id in cloud.solves[-1].problem.rows[0].denied_templates


def test_replicas_that_never_become_ready_stop_being_started():
    cloud = Cloud(engine())
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    for sequence in range(2, 14):
        cloud.now += 620
        cloud.observe()
        cloud.engine.apply(demand(10.0, sequence=sequence, at=cloud.now), cloud.now)
        cloud.decide()
    without_a_circuit = 12 * 620 // 1200
    assert 3 <= len(cloud.launched) < without_a_circuit


def test_machines_of_a_lost_store_are_adopted_and_none_is_terminated():
    old = running_world(2)
    e = engine(stored=StoredState(adopting=True))
    cloud = Cloud(e, now=old.now, machines=old.machines, target=(choice(2),))
    cloud.observe()
    assert ("adopted", "1") in e.take_changes().settings or not e.state.adopting
    e.apply(replace(offers(), at=cloud.now), cloud.now)
    cloud.advance(100.0)
    assert ready_replicas(cloud) == 2
    e.apply(demand(20.0, sequence=9, at=cloud.now), cloud.now)
    cloud.aim(choice(2))
    assert cloud.launched == []
    assert cloud.terminated == []


@pytest.mark.parametrize("orphans", list(OrphanPolicy))
def test_an_orphan_is_reported_and_terminated_only_if_policy_says_so(orphans):
    cloud = running_world(1, orphans=orphans)
    known = next(iter(cloud.machines.values()))
    tags = tuple((k, "test/m/rX-1/0/1" if k == "corald:intent" else v) for k, v in known.tags)
    foreign = tuple((k, "other" if k == "corald:cluster" else v) for k, v in known.tags)
    age = cloud.now - 600
    cloud.machines["i-orphan"] = replace(known, id="i-orphan", tags=tags, launched_at=age)
    cloud.machines["i-foreign"] = replace(known, id="i-foreign", tags=foreign, launched_at=age)
    cloud.observe()
    cloud.now += 15
    cloud.observe()
    assert status_of(cloud.engine.state, cloud.now).orphans == 1
    cloud.decide()
    assert cloud.terminated == (["i-orphan"] if orphans is OrphanPolicy.TERMINATE else [])
    cloud.observe()
    assert status_of(cloud.engine.state, cloud.now).orphans == (orphans is OrphanPolicy.REPORT)


def test_terminating_is_asked_again_until_the_cloud_shows_that_it_happened():
    cloud = running_world(1)
    (machine,) = cloud.machines.values()
    notice = InterruptionNoticed(
        "n", "sim", machine.id, InterruptionKind.TERMINATE, cloud.now + 10, cloud.now
    )
    cloud.engine.apply(notice, cloud.now)
    cloud.hold_launches = True
    cloud.decide()
    stuck = replace(machine, state=InstanceState.STOPPING)
    for _ in range(6):
        cloud.machines[machine.id] = stuck
        cloud.now += 121
        cloud.observe()
        cloud.decide()
    assert len(cloud.terminated) >= 4
    intent = next(i for i in cloud.engine.state.fleet.intents.values() if i.instance == machine.id)
    assert intent.state is IntentState.TERMINATING
    cloud.machines[machine.id] = replace(machine, state=InstanceState.TERMINATED)
    cloud.observe()
    assert cloud.engine.state.fleet.by_instance("sim", machine.id) is None


def test_shrinking_after_an_outage_needs_a_whole_window_of_fresh_demand():
    cloud = running_world(3)
    cloud.engine.apply(demand(10.0, sequence=5, at=cloud.now), cloud.now)
    cloud.decide()
    cloud.target = (choice(1),)
    cloud.advance(3600.0)
    fresh_at = cloud.now
    for sequence in range(6, 18):
        cloud.engine.apply(demand(10.0, sequence=sequence, at=cloud.now), cloud.now)
        cloud.aim(choice(1))
        draining = any(
            r.state is ReplicaState.DRAINING for r in cloud.engine.state.fleet.replicas.values()
        )
        assert not draining or cloud.now - fresh_at >= 600.0
        cloud.advance(60.0)
    assert any(r.state is ReplicaState.DRAINING for r in cloud.engine.state.fleet.replicas.values())
