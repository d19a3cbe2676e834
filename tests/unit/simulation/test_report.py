"""What people see of a simulation."""

from __future__ import annotations

from collections import Counter

import pytest
from rich.console import Console

from corald.model.fleet import ReplicaState
from corald.model.market import Market, ZoneKey
from corald.model.status import ModelStatus, ReplicaStatus, Status
from corald.model.templates import Phase
from corald.simulation.report import PLANNED, CostBook, Frame, line, render, shapes_of, summary


def replica(name, shape, state=ReplicaState.READY):
    return ReplicaStatus(
        id=name,
        model="qwen3-32b",
        phase=Phase.MIXED,
        template=f"qwen3-32b/mixed/vllm/{shape}",
        shape=shape,
        zone=ZoneKey("aws", "us-east-2", "use2-az1"),
        state=state,
        reason="",
        throughput=2.0,
        usd_per_hour=1.0,
        instances=(),
        age_seconds=0.0,
        drain_deadline=None,
    )


REPLICAS = (
    replica("a", "2xL4"),
    replica("b", "2xL4"),
    replica("c", "1xL40S"),
    replica("d", "2xL4", ReplicaState.STARTING),
)


def frame():
    model = ModelStatus(
        model="qwen3-32b",
        demand=10.0,
        demand_age_seconds=5.0,
        stale=False,
        capacity_ready=6.0,
        capacity_starting=2.0,
        unmet=4.0,
        replicas_ready=3,
        replicas_starting=1,
        replicas_draining=0,
        usd_per_hour=4.0,
        usd_per_hour_by_market={Market.SPOT: 4.0},
        paused=False,
    )
    status = Status(
        at=1_767_261_600.0,  # 10:00 UTC
        cluster="demo",
        synced=True,
        waiting="",
        paused=False,
        frozen="",
        degraded=("prices are stale",),
        models=(model,),
        replicas=REPLICAS,
        instances=(),
        providers=(),
        marks=(),
        quota_blocked=(),
        open_circuits=(),
        orphans=0,
        stuck_terminating=0,
        usd_per_hour=4.0,
        committed_usd_per_hour=9.0,
        usd_today=1.0,
        budget_usd_per_hour=None,
        solve=None,
        plan_age_seconds=None,
    )
    costs = CostBook()
    costs.record({PLANNED: 4.0, "greedy": 6.0}, at=0.0)
    costs.record({PLANNED: 4.0, "greedy": 10.0}, at=3600.0)
    return Frame(status, costs, Counter(launches=7), frozenset({"greedy"}))


def test_costs_add_up_at_the_rates_that_held():
    costs = CostBook()
    costs.record({"plan": 2.0}, at=100.0)
    costs.record({"plan": 6.0}, at=1900.0)
    costs.record({"plan": 0.0}, at=3700.0)
    assert costs.usd["plan"] == pytest.approx(1.0 + 3.0)


def test_replicas_are_counted_by_shape_with_those_that_do_not_serve_apart():
    assert shapes_of(REPLICAS, "qwen3-32b") == "1 of 1xL40S, 2 of 2xL4 (+1 starting)"
    assert shapes_of(REPLICAS, "phi-4-14b") == ""


def test_the_table_shows_models_costs_ratios_and_trouble():
    console = Console(width=140)
    with console.capture() as captured:
        console.print(render(frame()))
    text = captured.get()
    assert "qwen3-32b" in text
    assert "1 of 1xL40S, 2 of 2xL4" in text
    assert "2.50x" in text  # greedy now, 10 against 4
    assert "1.50x" in text  # greedy so far, 6 against 4
    assert "prices are stale" in text
    assert "launches=7" in text
    assert "greedy (cannot serve all)" in text


def test_a_line_says_time_replicas_unmet_and_costs():
    assert line(frame()).startswith(
        "day 01 10:00 replicas=3/4 unmet_rps=4.0 usd_per_hour: corald, plan=4.00 greedy=10.00"
    )


def test_the_summary_compares_whole_costs():
    text = summary(frame(), virtual_seconds=7200.0)
    assert text.startswith("2.0 virtual hours")
    assert "6.00 USD  1.50x" in text
