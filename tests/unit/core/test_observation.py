from __future__ import annotations

from dataclasses import replace

import pytest
from worlds import BIG, SPOT, T0, Cloud, Templates, choice, demand, engine, offers, running_world
from worlds import template as template_of

from corald.core.status import endpoints_of
from corald.model.events import FleetObserved, Launched, LaunchUnknown, ReplicaReady
from corald.model.fleet import Instance, InstanceState, Intent, IntentState, Listing, ReplicaState
from corald.model.policy import OrphanPolicy
from corald.model.state import StoredState

PAIR = template_of((("4xL4", 1), ("L4", 1)), rate=50.0)


def launched(count: int = 1) -> Cloud:
    """Machines that were launched at T0 and have not been listed since."""
    cloud = Cloud(engine())
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(10.0 * count), T0)
    cloud.aim(choice(count))
    return cloud


def listed(cloud: Cloud, seconds: float, *machines: Instance, complete: bool = True) -> None:
    event = FleetObserved("sim", Listing(machines, complete), T0 + seconds)
    cloud.engine.apply(event, T0 + seconds)
    cloud.engine.take_changes()


def only(cloud: Cloud) -> Intent:
    (intent,) = cloud.engine.state.fleet.intents.values()
    return intent


def stranger(cloud: Cloud, **changes) -> Instance:
    """A machine with our tags and an intent that nobody knows."""
    known = next(iter(cloud.machines.values()))
    tags = tuple((k, "test/m/rX-1/0/1" if k == "corald:intent" else v) for k, v in known.tags)
    return replace(known, **({"id": "i-stranger", "tags": tags} | changes))


def test_a_listed_machine_is_confirmed_and_known_to_run():
    cloud = launched()
    machine = replace(next(iter(cloud.machines.values())), state=InstanceState.PENDING)
    listed(cloud, 10, machine)
    assert (only(cloud).seen_at, only(cloud).instance_state) == (T0 + 10, InstanceState.PENDING)
    listed(cloud, 20, replace(machine, state=InstanceState.RUNNING, address="10.9.9.9"))
    listed(cloud, 30, replace(machine, state=InstanceState.RUNNING, address="10.9.9.9"))
    assert only(cloud).running_at == T0 + 20 or only(cloud).running_at == T0
    assert only(cloud).address == "10.9.9.9"


def test_a_machine_found_by_its_tag_answers_an_unknown_launch():
    cloud = Cloud(engine(), hold_launches=True)
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    (launch,) = cloud.launched
    cloud.engine.apply(LaunchUnknown(launch.intent, "timed out", T0 + 1), T0 + 1)
    listed(cloud, 15, cloud.machine(launch))
    assert (only(cloud).state, only(cloud).instance) == (IntentState.LAUNCHED, "i-0")


def test_absence_from_one_complete_listing_proves_nothing():
    cloud = launched()
    listed(cloud, 5000)
    assert not only(cloud).state.ended
    assert only(cloud).usable


def test_absence_from_two_complete_listings_a_minute_apart_is_an_end():
    cloud = launched()
    listed(cloud, 5000)
    listed(cloud, 5059)
    assert not only(cloud).state.ended
    listed(cloud, 5060)
    assert not cloud.engine.state.fleet.intents


def test_a_young_machine_is_not_declared_gone():
    cloud = launched()
    listed(cloud, 500)
    listed(cloud, 599)
    assert not only(cloud).state.ended
    listed(cloud, 601)
    assert not cloud.engine.state.fleet.intents


def test_partial_listings_never_prove_absence():
    cloud = launched()
    for seconds in range(1000, 9000, 100):
        listed(cloud, seconds, complete=False)
    assert not only(cloud).lost
    assert only(cloud).missing_since is None


def test_a_machine_that_shows_again_was_never_away():
    cloud = launched()
    listed(cloud, 5000)
    listed(cloud, 5030, *cloud.machines.values())
    assert only(cloud).missing_since is None
    listed(cloud, 5070)
    assert not only(cloud).state.ended


def test_a_listing_asked_for_before_the_launch_was_confirmed_counts_for_nothing():
    cloud = launched()
    listed(cloud, -30)
    listed(cloud, 0)
    assert only(cloud).missing_since is None


def test_a_listing_of_one_provider_says_nothing_about_machines_of_another():
    cloud = launched()
    for seconds in (5000, 6000):
        event = FleetObserved("elsewhere", Listing((), complete=True), T0 + seconds)
        cloud.engine.apply(event, T0 + seconds)
    assert only(cloud).missing_since is None


def test_a_machine_that_the_cloud_shows_as_terminated_is_gone_at_once():
    cloud = launched()
    dead = replace(
        next(iter(cloud.machines.values())),
        state=InstanceState.TERMINATED,
        state_reason="Server.SpotInstanceTermination",
    )
    cloud.engine.apply(FleetObserved("sim", Listing((dead,), complete=False), T0 + 5), T0 + 5)
    intents = cloud.engine.take_changes().intents
    assert [(i.state, i.reason) for i in intents] == [
        (IntentState.GONE, "Server.SpotInstanceTermination")
    ]


@pytest.mark.parametrize("state", [InstanceState.STOPPING, InstanceState.STOPPED])
def test_a_machine_that_the_cloud_stops_leaves_its_replica_and_is_given_back(state):
    cloud = running_world(1)
    (machine,) = cloud.machines.values()
    cloud.machines[machine.id] = replace(machine, state=state)
    cloud.observe()
    assert endpoints_of(cloud.engine.state) == () or not only(cloud).usable
    cloud.hold_launches = True
    cloud.decide()
    assert cloud.terminated == [machine.id]


def test_a_second_machine_with_the_tag_of_a_known_one_is_an_orphan():
    cloud = running_world(1)
    (machine,) = cloud.machines.values()
    cloud.machines["i-twin"] = replace(machine, id="i-twin", launched_at=cloud.now - 500)
    cloud.observe()
    assert list(cloud.engine.state.orphans) == [("sim", "i-twin")]
    assert only(cloud).instance == machine.id


@pytest.mark.parametrize("tag", ["corald:cluster", "corald:managed-by"])
def test_a_machine_that_is_not_ours_is_not_looked_at(tag):
    cloud = running_world(1)
    tags = tuple((k, "someone" if k == tag else v) for k, v in stranger(cloud).tags)
    cloud.machines["i-foreign"] = stranger(cloud, id="i-foreign", tags=tags)
    cloud.observe()
    assert not cloud.engine.state.orphans


def test_an_orphan_is_given_time_before_it_is_terminated():
    cloud = running_world(1, orphan_grace_seconds=120.0, orphans=OrphanPolicy.TERMINATE)
    cloud.machines["i-stranger"] = stranger(cloud, launched_at=cloud.now)
    cloud.observe()
    cloud.now += 119
    cloud.decide()
    assert cloud.terminated == []
    cloud.now += 1
    cloud.decide()
    assert cloud.terminated == ["i-stranger"]


def test_an_orphan_is_reported_once():
    cloud = running_world(1, orphans=OrphanPolicy.REPORT)
    cloud.machines["i-stranger"] = stranger(cloud, launched_at=cloud.now - 500)
    cloud.observe()
    cloud.engine.state.notes.take()
    told = []
    for _ in range(3):
        cloud.now += 60
        cloud.engine.decide(cloud.now)
        told += [n.event for n in cloud.engine.take_changes().notes]
    assert told.count("orphan_found") == 1


def test_an_orphan_that_a_complete_listing_no_longer_shows_is_forgotten():
    cloud = running_world(1)
    cloud.machines["i-stranger"] = stranger(cloud)
    cloud.observe()
    del cloud.machines["i-stranger"]
    cloud.observe(complete=False)
    assert cloud.engine.state.orphans
    cloud.observe()
    assert not cloud.engine.state.orphans


def adopting(machines: dict[str, Instance], now: float, **parts) -> Cloud:
    return Cloud(engine(stored=StoredState(adopting=True), **parts), now=now, machines=machines)


def test_adoption_rebuilds_replicas_with_their_machines_and_prices():
    old = running_world(2)
    cloud = adopting(old.machines, old.now)
    cloud.observe()
    before = old.engine.state.fleet
    after = cloud.engine.state.fleet
    assert set(after.intents) == set(before.intents)
    assert set(after.replicas) == set(before.replicas)
    for replica in after.replicas.values():
        assert replica.offerings == before.replicas[replica.id].offerings
        assert min(replica.attempts) > max(before.replicas[replica.id].attempts)
        assert after.whole(replica)
    assert {i.committed_usd_per_hour for i in after.live_intents()} == {1.0}
    assert {i.request.token for i in after.live_intents()} == {
        i.request.token for i in before.live_intents()
    }


def test_a_gang_is_adopted_whole():
    old = Cloud(engine(templates=Templates(PAIR)))
    old.engine.apply(offers(), T0)
    old.observe()
    old.engine.apply(demand(50.0), T0)
    old.aim(choice(1, BIG, SPOT, of=PAIR))
    cloud = adopting(old.machines, T0 + 100, templates=Templates(PAIR))
    cloud.observe()
    (replica,) = cloud.engine.state.fleet.replicas.values()
    assert replica.offerings == (BIG, SPOT)
    assert cloud.engine.state.fleet.whole(replica)


def test_adopted_machines_of_an_unknown_template_are_kept_and_counted():
    old = running_world(1)
    cloud = adopting(old.machines, old.now, templates=Templates(PAIR))
    cloud.observe()
    assert not cloud.engine.state.fleet.replicas
    assert only(cloud).state is IntentState.LAUNCHED
    assert only(cloud).committed_usd_per_hour == 1.0


def test_nothing_is_given_back_while_adoption_waits_for_a_provider():
    old = running_world(3)
    cloud = adopting(old.machines, old.now, min_life_seconds=60.0)
    cloud.engine.state.providers.names = frozenset({"sim", "not-listed-yet"})
    cloud.observe()
    cloud.engine.apply(replace(offers(), at=cloud.now), cloud.now)

    def surplus(minutes: int) -> None:
        for _ in range(minutes):
            cloud.now += 60
            cloud.observe(complete=False)
            for replica in list(cloud.engine.state.fleet.replicas.values()):
                cloud.engine.apply(ReplicaReady(replica.id, cloud.now), cloud.now)
            sequence = int(cloud.now - T0) + 100
            cloud.engine.apply(demand(10.0, sequence=sequence, at=cloud.now), cloud.now)
            cloud.aim(choice(1))

    surplus(60)
    assert {r.state for r in cloud.engine.state.fleet.replicas.values()} == {ReplicaState.READY}
    assert cloud.terminated == []
    nothing = FleetObserved("not-listed-yet", Listing((), complete=True), cloud.now)
    cloud.engine.apply(nothing, cloud.now)
    surplus(60)
    assert len(cloud.terminated) == 2


def test_adoption_ends_with_a_complete_listing_of_every_provider():
    old = running_world(1)
    cloud = adopting(old.machines, old.now)
    cloud.engine.apply(
        FleetObserved("sim", Listing(tuple(old.machines.values()), complete=True), old.now), old.now
    )
    assert ("adopted", "1") in cloud.engine.take_changes().settings
    cloud.machines["i-stranger"] = stranger(old)
    cloud.now += 15
    cloud.observe()
    assert len(cloud.engine.state.fleet.intents) == 1
    assert list(cloud.engine.state.orphans) == [("sim", "i-stranger")]


def test_a_machine_that_appears_for_a_replica_long_released_is_given_back():
    cloud = Cloud(engine(), hold_launches=True)
    e = cloud.engine
    e.apply(offers(), T0)
    cloud.observe()
    e.apply(demand(10.0), T0)
    cloud.aim(choice(1))
    (launch,) = cloud.launched
    e.apply(LaunchUnknown(launch.intent, "timed out", T0 + 1), T0 + 1)
    (replica,) = e.state.fleet.replicas.values()
    e.lifecycle.release(replica, T0 + 2, reason="test")
    machine = cloud.machine(launch)
    e.apply(Launched(launch.intent, machine, T0 + 30), T0 + 30)
    cloud.target, cloud.now = (), T0 + 31
    cloud.decide()
    assert cloud.terminated == [machine.id]


def gang_machines() -> tuple[dict[str, Instance], float]:
    old = Cloud(engine(templates=Templates(PAIR)))
    old.engine.apply(offers(), T0)
    old.observe()
    old.engine.apply(demand(50.0), T0)
    old.aim(choice(1, BIG, SPOT, of=PAIR))
    return old.machines, T0 + 100


def test_a_gang_that_shows_in_two_listings_is_adopted_whole():
    machines, now = gang_machines()
    some = {k: m for k, m in machines.items() if m.offering == SPOT}
    cloud = adopting(some, now, templates=Templates(PAIR))
    cloud.observe(complete=False)
    cloud.machines, cloud.now = machines, now + 15
    cloud.observe()
    (replica,) = cloud.engine.state.fleet.replicas.values()
    assert replica.offerings == (BIG, SPOT)
    assert cloud.engine.state.fleet.whole(replica)


@pytest.mark.parametrize("left", [SPOT, BIG])
def test_an_adopted_gang_lacks_a_machine_of_the_right_configuration(left):
    machines, now = gang_machines()
    some = {k: m for k, m in machines.items() if m.offering == left}
    cloud = adopting(some, now, templates=Templates(PAIR))
    cloud.engine.apply(replace(offers(), at=now), now)
    cloud.observe()
    for replica in cloud.engine.state.fleet.replicas.values():
        types = [key.instance_type for key in replica.offerings]
        assert types == ["big", "small"]
    cloud.engine.apply(demand(50.0, sequence=9, at=now), now)
    cloud.aim(choice(1, BIG, SPOT, of=PAIR))
    cloud.advance(60.0)
    assert [r.state for r in cloud.engine.state.fleet.replicas.values()] == [ReplicaState.READY]


def test_an_adopted_machine_without_an_intent_tag_is_no_orphan():
    old = running_world(1)
    (machine,) = old.machines.values()
    tags = tuple((k, v) for k, v in machine.tags if k != "corald:intent")
    cloud = adopting({machine.id: replace(machine, tags=tags)}, old.now)
    cloud.observe()
    cloud.now += 15
    cloud.observe()
    assert only(cloud).instance == machine.id
    assert not cloud.engine.state.orphans
