"""The main job on real parts: Kafka broker, daemon and producer as processes, boto3, EC2 fake."""

from __future__ import annotations

import time

import pytest

from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.simulation.demand import (
    TRACE_FILE,
    DemandShape,
    TraceColumn,
    generate_day,
    read_trace_day,
)
from tests.e2e.library import MODELS
from tests.e2e.programs import level, until
from tests.e2e.stack import Stack
from tests.e2e.truths import PARTS, born, calls, ended_by_us, launched

RATES = dict(zip(MODELS, (7.0, 13.0, 1.5), strict=True))
TRACES = ("m-large", "m-small", "m-mid-rest")
PLAYED_MINUTES = 20
SECONDS_PER_MINUTE = 0.2
REACTION_SECONDS = 1.0
LIMITER_SECONDS = 3.0


@pytest.fixture
def morning(recorded_data):
    """Twenty recorded (or generated) minutes: (second to send at, model, level)."""
    if recorded_data is not None:
        columns = [
            TraceColumn(trace, model, RATES[model])
            for trace, model in zip(TRACES, MODELS, strict=True)
        ]
        day = read_trace_day(recorded_data / TRACE_FILE, columns)
    else:
        shapes = [DemandShape(m, RATES[m], 1000.0, 250.0, peak_hour=9.0) for m in MODELS]
        day = generate_day(shapes, seed=1)
    begin = 9 * 3600.0
    return [
        ((s.at_seconds - begin) / 60.0 * SECONDS_PER_MINUTE, s.model, *level(s.request_rate))
        for s in day
        if begin <= s.at_seconds < begin + 60.0 * PLAYED_MINUTES
    ]


@pytest.fixture
def stack(make_stack) -> Stack:
    stack = make_stack()
    stack.daemon.start()
    return stack


def test_recorded_demand_of_three_models_is_served_by_machines_tagged_at_birth(stack, morning):
    stack.producer.order("play", samples=morning)
    last = {model: rate for _, model, rate, *_ in morning}
    until(lambda: stack.served(last), "the last levels are served")

    ledger = stack.cloud.ledger()
    assert len(ledger.calls(Call.LAUNCH)) >= len(MODELS)
    assert not ledger.effects(Effect.TAGGED)
    for birth in launched(ledger):
        tags = dict(birth.tags)
        assert tags["corald:cluster"] == stack.daemon.settings.cluster
        assert tags["corald:managed-by"] == "corald"
        assert tags["corald:model"] in MODELS
        assert tags.keys() >= {"corald:intent", "corald:replica", "corald:template"}
    for machine in stack.cloud.order("machines")["machines"]:
        spot = {"spot-instances-request"} if machine["offering"].endswith("spot") else set()
        assert set(machine["details"]["tagged"].split(",")) == PARTS | spot

    status = stack.daemon.status()
    assert status["synced"]
    assert not status["degraded"]
    covered = [row["served"] >= row["demanded"] - 1e-6 for row in status["solve"]["rows"]]
    assert covered == [True] * len(MODELS)
    rows = until(lambda: stack.daemon.get("/v1/plan")["rows"], "a plan")
    assert {row["model"] for row in rows} == set(MODELS)
    endpoints = stack.daemon.endpoints()
    assert len({endpoint["address"] for endpoint in endpoints} - {""}) == len(endpoints)
    for model, rate in last.items():
        assert sum(e["weight"] for e in endpoints if e["model"] == model) >= rate


def test_when_demand_falls_replicas_drain_and_end_after_the_delay(make_stack):
    delay_seconds = 4.0
    stack = make_stack(scale_down_delay=f"{delay_seconds:g}s")
    stack.daemon.start()
    stack.serving(RATES)
    before = stack.cloud.ledger()
    assert not ended_by_us(before)
    lower = {model: rate / 4 for model, rate in RATES.items()}
    fell_at = stack.producer.levels(lower)

    def shrunk() -> bool:
        assert all(model["unmet"] == 0 for model in stack.daemon.models().values())
        ledger = stack.cloud.ledger()
        return ledger.usd_per_hour <= 0.6 * before.usd_per_hour and stack.served(lower)

    until(shrunk, "the fleet is smaller")
    (first, *_) = ended_by_us(stack.cloud.ledger())
    assert first.at - fell_at >= delay_seconds
    _drained_before_they_ended(stack)


def _drained_before_they_ended(stack: Stack) -> None:
    """Every serving replica left the routes, drained, and only then were its machines ended."""
    machines = born(stack.cloud.ledger())
    audit = stack.daemon.get("/v1/audit?limit=1000")
    drains = {n["fields"]["replica"]: n["at"] for n in audit if n["event"] == "drain_started"}
    served = {n["fields"]["replica"] for n in audit if n["event"] == "replica_ready"}
    assert drains
    for entry in ended_by_us(stack.cloud.ledger()):
        replica = dict(machines[entry.instance].tags)["corald:replica"]
        if replica in served:
            assert entry.at - drains[replica] >= 1.5, "no time to drain"
        assert replica not in {endpoint["replica"] for endpoint in stack.daemon.endpoints()}


def test_an_interruption_notice_reroutes_and_replaces_within_a_second(stack, figure):
    stack.serving(RATES)
    rested_at = calls(stack.cloud.ledger())[-1].at + LIMITER_SECONDS
    until(lambda: time.time() > rested_at, "the daemon's own limit on launches has recovered")
    victim = next(
        instance
        for instance in stack.daemon.status()["instances"]
        if instance["offering"]["market"] == "spot"
    )
    replica = victim["replica"]
    assert replica in {endpoint["replica"] for endpoint in stack.daemon.endpoints()}
    stack.cloud.order("interrupt", instance=victim["instance"], notice_seconds=5.0)
    noticed_at = stack.producer.notice(victim["instance"])

    until(
        lambda: replica not in {endpoint["replica"] for endpoint in stack.daemon.endpoints()},
        "the replica left the routes",
    )
    rerouted = time.time() - noticed_at
    asked = until(
        lambda: [c for c in calls(stack.cloud.ledger(), noticed_at) if c.what == Call.LAUNCH],
        "a replacement is asked for",
    )
    replaced = asked[0].at - noticed_at
    figure("rerouted_seconds", rerouted)
    figure("replacement_asked_seconds", replaced)
    assert rerouted <= REACTION_SECONDS
    assert replaced <= REACTION_SECONDS
    until(lambda: stack.served(RATES), "the replacement serves")
    until(
        lambda: victim["instance"] not in stack.cloud.ledger().alive(),
        "the cloud has taken the machine",
    )
    assert not ended_by_us(stack.cloud.ledger(), noticed_at)


def test_nothing_ends_and_nothing_is_lost_while_the_broker_is_away_for_a_minute(make_stack):
    """Demand falls just before: without the outage the fleet would shrink within the minute."""
    away_seconds = 60.0
    stack = make_stack(scale_down_delay="15s", stale_after="20s")
    stack.daemon.start()
    stack.serving(RATES)
    lower = {model: rate / 4 for model, rate in RATES.items()}
    began = stack.producer.levels(lower)
    until(lambda: stack.served(lower), "lower demand is known")

    stack.broker.stop()
    away_until = time.monotonic() + away_seconds
    try:
        until(lambda: any("Kafka" in d for d in stack.daemon.status()["degraded"]), "it is noticed")
        newest = {model: rate / 5 for model, rate in RATES.items()}
        stack.producer.levels(newest)  # waits in the producer
        until(lambda: time.monotonic() > away_until, "a minute", away_seconds + 5.0)
        assert not calls(stack.cloud.ledger(), began)
        assert all(model["stale"] for model in stack.daemon.models().values())
    finally:
        back_at = time.time()
        stack.broker.start()
    until(lambda: stack.served(newest), "the last levels are known")
    until(lambda: ended_by_us(stack.cloud.ledger()), "the fleet shrinks after all")
    assert not [call for call in calls(stack.cloud.ledger(), began) if call.at < back_at]
