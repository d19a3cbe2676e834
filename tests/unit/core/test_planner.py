from __future__ import annotations

from dataclasses import replace

from worlds import (
    BIG,
    ON_DEMAND,
    SPOT,
    T0,
    ZONE,
    Cloud,
    Templates,
    catalog,
    choice,
    demand,
    engine,
    offers,
    running_world,
    template,
)

from corald.core.planner import Moves, plan_moves
from corald.model.fleet import ReplicaState
from corald.model.market import ZoneKey
from corald.model.problem import Allocation
from corald.model.templates import Engine

PAIR = template((("4xL4", 1), ("L4", 1)), rate=50.0)
TWINS = template((("L4", 2),), rate=25.0)


def moves(cloud: Cloud, *choices, governs=lambda _: True) -> Moves:
    types = catalog().instance_types
    return plan_moves(
        Allocation(choices),
        cloud.engine.state.fleet,
        governs=governs,
        configuration_of=lambda key: types[key.instance_type].configuration,
    )


def gang(shape, *keys) -> Cloud:
    """One ready replica of a template with several nodes."""
    cloud = Cloud(engine(templates=Templates(shape)))
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(shape.throughput), T0)
    cloud.aim(choice(1, *keys, of=shape))
    cloud.advance(200.0)
    return cloud


def lose(cloud: Cloud, *keys) -> None:
    """Let the machines of these offerings leave their replica."""
    fleet = cloud.engine.state.fleet
    for key in keys:
        intent = next(i for i in fleet.live_intents() if i.request.offering == key and i.usable)
        fleet.put_intent(replace(intent, departing="interrupted"))


def put(cloud: Cloud, index: int, **changes):
    """Change one of the fleet's replicas."""
    replica = list(cloud.engine.state.fleet.replicas.values())[index]
    cloud.engine.state.fleet.put_replica(replace(replica, **changes))
    return replica.id


def test_a_target_that_is_reached_asks_for_nothing():
    assert moves(running_world(2), choice(2)).empty


def test_an_empty_fleet_starts_everything_and_an_empty_target_removes_everything():
    started = moves(Cloud(engine()), choice(3))
    assert len(started.starts) == 3
    assert {(s.zone, s.offerings) for s in started.starts} == {(ZONE, (SPOT,))}
    removed = moves(running_world(2))
    assert len(removed.removes) == 2
    assert not removed.starts


def test_only_the_difference_is_moved():
    cloud = running_world(2)
    assert len(moves(cloud, choice(3)).starts) == 1
    assert len(moves(cloud, choice(1)).removes) == 1


def test_another_offering_zone_or_template_is_another_replica():
    cloud = running_world(1)
    elsewhere = replace(choice(1), zone=ZoneKey("sim", "r1", "r1-b"))
    for other in (choice(1, ON_DEMAND), elsewhere, choice(1, SPOT, SPOT, of=TWINS)):
        found = moves(cloud, other)
        assert (len(found.starts), len(found.removes)) == (1, 1)


def test_the_youngest_surplus_replica_is_removed_first():
    cloud = running_world(3)
    youngest = put(cloud, 1, created_at=cloud.now)
    assert [m.replica.id for m in moves(cloud, choice(2)).removes] == [youngest]


def test_surplus_replicas_are_removed_from_the_youngest_to_the_oldest():
    cloud = running_world(3)
    for index, age in enumerate((20.0, 5.0, 90.0)):
        put(cloud, index, created_at=cloud.now - age)
    ages = [cloud.now - m.replica.created_at for m in moves(cloud).removes]
    assert ages == [5.0, 20.0, 90.0]


def test_a_serving_replica_is_kept_before_a_starting_one():
    cloud = running_world(2)
    starting = put(cloud, 0, state=ReplicaState.STARTING, created_at=0.0)
    assert [m.replica.id for m in moves(cloud, choice(1)).removes] == [starting]


def test_a_drain_is_called_off_before_anything_is_started():
    cloud = running_world(2)
    draining = put(cloud, 0, state=ReplicaState.DRAINING)
    found = moves(cloud, choice(3))
    assert [u.replica.id for u in found.undrains] == [draining]
    assert len(found.starts) == 1


def test_a_drain_goes_on_while_the_others_suffice():
    cloud = running_world(2)
    put(cloud, 0, state=ReplicaState.DRAINING)
    assert moves(cloud, choice(1)).empty


def test_a_draining_replica_that_lost_a_machine_is_not_called_back():
    cloud = running_world(1)
    put(cloud, 0, state=ReplicaState.DRAINING)
    lose(cloud, SPOT)
    found = moves(cloud, choice(1))
    assert not found.undrains
    assert len(found.starts) == 1


def test_a_draining_replica_is_preferred_to_repairing_a_broken_one():
    cloud = running_world(2)
    broken = put(cloud, 0, state=ReplicaState.STARTING)
    draining = put(cloud, 1, state=ReplicaState.DRAINING)
    lose(cloud, SPOT)
    found = moves(cloud, choice(1))
    assert [u.replica.id for u in found.undrains] == [draining]
    assert [m.replica.id for m in found.removes] == [broken]
    assert not found.repairs


def test_a_hole_is_filled_and_the_rest_of_the_gang_kept():
    cloud = gang(PAIR, BIG, SPOT)
    lose(cloud, SPOT)
    found = moves(cloud, choice(1, BIG, SPOT, of=PAIR))
    (repair,) = found.repairs
    assert [key for _, key in repair.holes] == [SPOT]
    assert repair.replica.template.node_configurations[repair.holes[0][0]] == "L4"
    assert not (found.starts)
    assert not (found.removes)


def test_a_hole_may_be_filled_from_another_market():
    cloud = gang(PAIR, BIG, SPOT)
    lose(cloud, SPOT)
    found = moves(cloud, choice(1, BIG, ON_DEMAND, of=PAIR))
    (repair,) = found.repairs
    assert [key for _, key in repair.holes] == [ON_DEMAND]
    assert not (found.starts)
    assert not (found.removes)


def test_a_whole_replica_is_not_repaired_into_another_market():
    found = moves(gang(PAIR, BIG, SPOT), choice(1, BIG, ON_DEMAND, of=PAIR))
    assert not found.repairs
    assert (len(found.starts), len(found.removes)) == (1, 1)


def test_what_a_broken_replica_still_has_must_fit_the_choice():
    cloud = gang(TWINS, SPOT, SPOT)
    lose(cloud, SPOT)
    found = moves(cloud, choice(1, ON_DEMAND, ON_DEMAND, of=TWINS))
    assert not found.repairs
    assert (len(found.starts), len(found.removes)) == (1, 1)


def test_a_gang_of_mixed_markets_is_repaired_with_the_market_it_lacks():
    cloud = gang(TWINS, ON_DEMAND, SPOT)
    lose(cloud, ON_DEMAND)
    (repair,) = moves(cloud, choice(1, ON_DEMAND, SPOT, of=TWINS)).repairs
    (hole,) = repair.holes
    assert hole[1] == ON_DEMAND
    assert repair.replica.offerings[hole[0]] == ON_DEMAND


def test_all_holes_of_a_gang_are_filled_at_once():
    cloud = gang(TWINS, SPOT, SPOT)
    lose(cloud, SPOT, SPOT)
    (repair,) = moves(cloud, choice(1, SPOT, SPOT, of=TWINS)).repairs
    assert repair.holes == ((0, SPOT), (1, SPOT))


def test_a_lost_machine_leaves_a_hole():
    cloud = running_world(1)
    (intent,) = cloud.engine.state.fleet.live_intents()
    cloud.engine.state.fleet.put_intent(replace(intent, lost=True))
    (repair,) = moves(cloud, choice(1)).repairs
    assert repair.holes == ((0, SPOT),)


def test_nodes_of_several_configurations_get_offerings_by_their_ordinal():
    coral = replace(template((("4xL4", 1), ("L4", 2)), rate=80.0), engine=Engine.CORAL)
    cloud = Cloud(engine(templates=Templates(coral)))
    (start,) = moves(cloud, choice(1, SPOT, BIG, ON_DEMAND, of=coral)).starts
    assert coral.node_configurations == ("4xL4", "L4", "L4")
    assert start.offerings[0] == BIG
    assert sorted(start.offerings[1:]) == sorted([SPOT, ON_DEMAND])


def test_a_replica_that_the_cloud_advises_to_leave_is_replaced():
    cloud = running_world(1)
    (intent,) = cloud.engine.state.fleet.live_intents()
    cloud.engine.state.fleet.put_intent(replace(intent, advised=True))
    found = moves(cloud, choice(1))
    assert (len(found.starts), len(found.removes)) == (1, 1)


def test_replicas_of_a_model_that_is_not_governed_are_left_alone():
    assert moves(running_world(2), governs=lambda _: False).empty


def test_replicas_that_are_being_given_back_are_no_longer_counted():
    cloud = running_world(1)
    put(cloud, 0, state=ReplicaState.RELEASING)
    found = moves(cloud, choice(1))
    assert len(found.starts) == 1
    assert not found.removes
