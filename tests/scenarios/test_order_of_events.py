"""Any order of one event log, with duplicates, then one decision: the same state, the same plan."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corald.config.catalog import load_catalog
from corald.core.engine import Engine
from corald.core.status import plan_rows, status_of
from corald.model.events import (
    CapacityObserved,
    DemandObserved,
    FleetObserved,
    InterruptionNoticed,
    OfferingsObserved,
    PriceObserved,
    Solved,
    Stamp,
)
from corald.model.fleet import (
    Instance,
    InstanceState,
    Intent,
    IntentState,
    InterruptionKind,
    LaunchRequest,
    Listing,
    Replica,
    ReplicaState,
)
from corald.model.market import Offering
from corald.model.plan import Solve
from corald.model.state import StoredState
from corald.solver.solve import solve
from tests.scenarios.town import MODELS, O1, O2, O3, O4, PRICES, library_of, policy, policy_set

NOW = 1_800_000_000.0
POLICIES = policy_set(policy(), policy("qwen3-14b"))
LIBRARY = library_of()
CATALOG = load_catalog()
OFFERINGS = (O1, O2, O3, O4)

ats = st.integers(-600, 0).map(lambda seconds: NOW + seconds)
stamps = st.builds(Stamp, epoch=st.integers(0, 1), sequence=st.integers(0, 30), at=ats)
sources = st.sampled_from(["north", "south"])
demand = st.builds(
    DemandObserved,
    event_id=st.just("e"),
    source=sources,
    model=st.sampled_from([*MODELS, "no-such-model"]),
    request_rate=st.integers(0, 9).map(float),
    input_tokens=st.sampled_from([None, 400.0, 600.0]),
    output_tokens=st.sampled_from([None, 80.0]),
    window_seconds=st.just(60.0),
    stamp=stamps,
)
capacity = st.builds(
    CapacityObserved,
    event_id=st.just("e"),
    source=sources,
    offering=st.sampled_from(OFFERINGS),
    available=st.integers(0, 5),
    stamp=stamps,
)
prices = st.builds(
    PriceObserved,
    event_id=st.just("e"),
    source=sources,
    offering=st.sampled_from(OFFERINGS),
    usd_per_hour=st.integers(1, 40).map(lambda tenths: tenths / 10),
    stamp=stamps,
)
notices = st.builds(
    InterruptionNoticed,
    event_id=st.just("e"),
    provider=st.just("aws"),
    instance=st.sampled_from(["i-0", "i-1", "i-2", "i-stranger"]),
    kind=st.sampled_from(list(InterruptionKind)),
    deadline=st.sampled_from([None, NOW + 60, NOW + 120]),
    at=ats,
)
logs = st.lists(st.one_of(demand, capacity, prices, notices), max_size=25)


@given(st.data(), logs)
def test_shuffles_with_duplicates_end_in_the_same_state_and_plan(data, log):
    again = data.draw(st.lists(st.sampled_from(log), max_size=10)) if log else []
    shuffled = data.draw(st.permutations(log + again))
    assert outcome(log) == outcome(shuffled)


def outcome(log):
    """State, instructions and plan after `log` and one decision."""
    engine = fresh_engine()
    for event in log:
        engine.apply(event, NOW)
    instructions = engine.decide(NOW)
    for wish in [i for i in instructions if isinstance(i, Solve)]:
        allocation, report = solve(
            wish.problem, LIBRARY, deadline=20.0, clock=lambda: 0.0, work_limit=20
        )
        engine.apply(Solved(wish.generation, allocation, replace(report, seconds=0.0), NOW), NOW)
    rows = plan_rows(engine.state)
    return durable(engine), instructions, engine.decide(NOW), rows, status_of(engine.state, NOW)


def durable(engine):
    """What would be stored, without the notes, which tell the story in its order."""
    changes = engine.take_changes()
    return {
        name: frozenset(getattr(changes, name))
        for name in ("demand", "capacity", "prices", "intents", "replicas", "settings")
    }


def fresh_engine():
    """An engine that runs three machines and has heard from its cloud."""
    running = [machine(number) for number in range(3)]
    engine = Engine(
        policies=POLICIES,
        catalog=CATALOG,
        templates=LIBRARY,
        providers=frozenset({"aws"}),
        stored=StoredState(
            intents=tuple(intent for intent, _, _ in running),
            replicas=tuple(replica for _, replica, _ in running),
            settings=(("sequence", "3"), ("incarnation", "1")),
        ),
        now=NOW - 3600,
    )
    offers = tuple(Offering(key, PRICES[key], PRICES[key]) for key in OFFERINGS)
    engine.apply(OfferingsObserved("aws", offers, (), NOW - 300), NOW - 300)
    listing = Listing(tuple(instance for _, _, instance in running), complete=True)
    engine.apply(FleetObserved("aws", listing, NOW - 30), NOW - 30)
    return engine


def machine(number):
    """One ready replica with its intent and what the cloud shows of it."""
    name = f"test/qwen3-8b/r1-{number}/0/1"
    tags = tuple(
        sorted(
            {
                "corald:cluster": "test",
                "corald:managed-by": "corald",
                "corald:intent": name,
                "corald:model": "qwen3-8b",
                "corald:replica": f"r1-{number}",
            }.items()
        )
    )
    request = LaunchRequest(f"token-{number}", f"name-{number}", O1, "", "", tags)
    intent = Intent(
        id=name,
        replica=f"r1-{number}",
        ordinal=0,
        attempt=1,
        request=request,
        usd_per_hour=0.25,
        committed_usd_per_hour=0.8,
        created_at=NOW - 7200,
        state=IntentState.LAUNCHED,
        instance=f"i-{number}",
        instance_state=InstanceState.RUNNING,
        launched_at=NOW - 7200,
        running_at=NOW - 7100,
        seen_at=NOW - 3600,
    )
    template = LIBRARY.template("qwen3-8b/mixed/vllm/1xL4-slow")
    assert template is not None
    replica = Replica(
        id=f"r1-{number}",
        template=template,
        zone=O1.zone_key,
        offerings=(O1,),
        attempts=(1,),
        created_at=NOW - 7200,
        state=ReplicaState.READY,
        ready_at=NOW - 7000,
        ever_ready=True,
    )
    instance = Instance(
        f"i-{number}", "aws", InstanceState.RUNNING, O1, tags, NOW - 7200, token=f"token-{number}"
    )
    return intent, replica, instance
