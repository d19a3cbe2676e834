"""Metrics: frozen names, levels that follow the status, counts that follow the notes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from corald.adapters.metrics import Metrics
from corald.model.events import FailureClass
from corald.model.state import Note
from tests.unit.adapters.shown import STATUS, instance, model, replica

NAMES = re.findall(
    r"\S+",
    """
corald_build_info{version} corald_leader corald_config_last_reload_successful
corald_events_total{type,result} corald_events_ignored_total{reason} corald_event_lag_seconds
corald_event_skew_seconds corald_demand_age_seconds{model}
corald_demand_requests_per_second{model} corald_capacity_requests_per_second{model,state}
corald_unmet_requests_per_second{model} corald_replicas{model,template,state}
corald_instances{provider,region,market,state} corald_launches_total{provider,region,market,result}
corald_launch_seconds corald_model_ready_seconds corald_terminations_total{reason}
corald_drain_seconds corald_interruptions_total{kind,handled} corald_interruption_reaction_seconds
corald_offering_unavailable corald_quota_blocked{region,market}
corald_solver_runs_total{status,trigger} corald_solver_seconds corald_solver_gap_ratio
corald_plan_moves_total{kind} corald_plan_age_seconds corald_cost_usd_per_hour{model,market}
corald_cost_usd_total corald_budget_usd_per_hour corald_orphan_instances
corald_instances_stuck_terminating corald_provider_requests_total{provider,action,class}
corald_price_age_seconds{provider} corald_event_loop_lag_seconds corald_store_errors_total
""",
)

NOTES = (
    Note("event_applied", (("lag_seconds", 0.5), ("skew_seconds", 0.0), ("type", "demand"))),
    Note("event_ignored", (("count", 3), ("reason", "unknown-model"), ("type", "demand"))),
    Note("rejected", (("reason", "malformed-json"),)),
    Note(
        "launched",
        (("market", "spot"), ("provider", "aws"), ("region", "r1"), ("seconds", 2.0)),
    ),
    Note(
        "launch_failed",
        (
            ("code", "InsufficientInstanceCapacity"),
            ("kind", "insufficient-capacity"),
            ("market", "spot"),
            ("provider", "aws"),
            ("region", "r1"),
        ),
    ),
    Note("launch_unknown", (("market", "spot"), ("provider", "aws"), ("region", "r1"))),
    Note("replica_ready", (("model", "phi-4"), ("seconds", 300.0))),
    Note("terminated", (("reason", "drained: not in the plan"),)),
    Note("drain_ended", (("seconds", 40.0),)),
    Note("interruption", (("handled", True), ("kind", "terminate"), ("seconds", 0.2))),
    Note(
        "solve_ended",
        (("gap", 0.004), ("seconds", 0.4), ("status", "proven"), ("trigger", "demand")),
    ),
    Note("solve_failed", (("message", "crashed"),)),
    Note("plan_moves", (("add", 2), ("drain", 1), ("keep", 0))),
    Note("provider_call", (("action", "launch"), ("class", "ok"), ("provider", "aws"))),
    Note("store_failed", ()),
    Note("config_reloaded", (("ok", True),)),
)


def scraped(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics("1.2.3")
    made.watch(lambda: STATUS)
    for note in NOTES:
        made.publish(note)
    return made


def test_the_names_and_labels_are_those_of_the_contract(metrics: Metrics) -> None:
    found = set()
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            name = sample.name
            if family.type == "histogram":
                name = re.sub("_(bucket|sum|count)$", "", name)
            labels = [label for label in sample.labels if label != "le"]
            found.add((name, frozenset(labels)))
    wanted = {
        (name.partition("{")[0], frozenset(filter(None, name.partition("{")[2][:-1].split(","))))
        for name in NAMES
    }
    assert found == wanted


def test_the_reference_page_lists_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    assert set(re.findall(r"`(corald_[a-z_]+(?:{[a-z,]+})?)`", page)) == set(NAMES)


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("corald_replicas", {"model": "phi-4", "template": "2xL4", "state": "ready"}, 1),
        (
            "corald_instances",
            {"provider": "aws", "region": "us-east-2", "market": "spot", "state": "launched"},
            2,
        ),
        ("corald_capacity_requests_per_second", {"model": "phi-4", "state": "starting"}, 4),
        ("corald_cost_usd_per_hour", {"model": "phi-4", "market": "on-demand"}, 0.5),
        ("corald_quota_blocked", {"region": "us-east-2", "market": "spot"}, 1),
        ("corald_offering_unavailable", {}, 1),
        ("corald_events_total", {"type": "demand", "result": "applied"}, 1),
        ("corald_events_total", {"type": "unknown", "result": "rejected"}, 1),
        ("corald_events_ignored_total", {"reason": "malformed-json"}, 1),
        ("corald_events_ignored_total", {"reason": "unknown-model"}, 3),
        ("corald_terminations_total", {"reason": "drained"}, 1),
        (
            "corald_launches_total",
            {
                "provider": "aws",
                "region": "r1",
                "market": "spot",
                "result": "insufficient-capacity",
            },
            1,
        ),
        ("corald_solver_runs_total", {"status": "failed", "trigger": "none"}, 1),
        ("corald_plan_moves_total", {"kind": "add"}, 2),
        ("corald_launch_seconds_sum", {}, 2.0),
        ("corald_interruptions_total", {"kind": "terminate", "handled": "true"}, 1),
        ("corald_config_last_reload_successful", {}, 1),
        ("corald_event_lag_seconds", {}, 0.5),
    ],
)
def test_levels_and_counts_are_right(
    metrics: Metrics, name: str, labels: dict[str, str], value: float
) -> None:
    assert scraped(metrics)[name, tuple(sorted(labels.items()))] == value


def test_a_series_ends_with_its_object() -> None:
    metrics = Metrics("1")
    shown = STATUS
    metrics.watch(lambda: shown)
    assert any(name == "corald_replicas" for name, _ in scraped(metrics))
    shown = replace(STATUS, replicas=(), instances=(), models=(), quota_blocked=())
    left = {name for name, _ in scraped(metrics)}
    assert not left & {"corald_replicas", "corald_instances", "corald_quota_blocked"}
    assert "corald_cost_usd_per_hour" not in left


def test_money_is_summed_over_midnight() -> None:
    metrics = Metrics("1")
    spent = iter((100.0, 103.0, 104.0, 1.0, 3.0))
    metrics.watch(lambda: replace(STATUS, usd_today=next(spent)))
    totals = [scraped(metrics)["corald_cost_usd_total", ()] for _ in range(5)]
    assert totals == [0.0, 3.0, 4.0, 5.0, 7.0]


def test_without_a_status_only_counts_are_shown() -> None:
    assert ("corald_leader", ()) in scraped(Metrics("1"))


def test_ten_thousand_launches_leave_the_number_of_series_and_the_memory_alone() -> None:
    metrics = Metrics("1")
    shown = STATUS
    metrics.watch(lambda: shown)
    for note in NOTES:
        metrics.publish(note)
    before = len(scraped(metrics))
    process = psutil.Process()
    memory = process.memory_info().rss
    for number in range(10_000):
        shown = replace(STATUS, replicas=(replica(number),), instances=(instance(number),))
        for note in NOTES:
            metrics.publish(note)
        if number % 1000 == 0:
            metrics.render()
    assert len(scraped(metrics)) <= before
    assert process.memory_info().rss - memory < 20e6


def test_unforeseen_label_values_are_bounded() -> None:
    metrics = Metrics("1")
    for number in range(1000):
        metrics.publish(Note("terminated", (("reason", f"reason {number}"),)))
    series = [key for key in scraped(metrics) if key[0] == "corald_terminations_total"]
    assert len(series) == 201
    assert scraped(metrics)["corald_terminations_total", (("reason", "other"),)] == 800


def test_no_label_is_an_id(metrics: Metrics) -> None:
    text = metrics.render().decode()
    for secret in ("i-1", "test.phi-4.1", "phi-4-1"):
        assert f'"{secret}"' not in text


def test_every_kind_of_failure_is_a_launch_result() -> None:
    kinds = re.findall(r"`([a-z-]+)`", FailureClass.__doc__ or "")
    metrics = Metrics("1")
    for kind in kinds:
        metrics.publish(Note("launch_failed", (("kind", kind),)))
    results = {dict(labels)["result"] for name, labels in scraped(metrics) if "launches" in name}
    assert set(kinds) - {"kind"} <= results


def test_models_without_demand_have_no_age() -> None:
    metrics = Metrics("1")
    silent = replace(model(), demand_age_seconds=None)
    metrics.watch(lambda: replace(STATUS, models=(silent,)))
    assert "corald_demand_age_seconds" not in {name for name, _ in scraped(metrics)}
