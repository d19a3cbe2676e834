"""The baselines beside a plan: planned from nothing, for the same demand and supply."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corald.library import Library, LibraryOrigin, TemplateTable
from corald.model.market import Market, OfferingKey
from corald.model.problem import DemandRow, Problem, RunningReplica, Supply
from corald.model.templates import Engine, Phase, ServingTemplate, Slo, Stage, Workload
from corald.simulation.comparison import Comparison
from corald.solver.baselines import BEST_ONE_GPU, GREEDY

MODEL = "m"
THROUGHPUT = {
    (("L4", 1),): 1.0,
    (("L40S", 1),): 3.0,
    (("L4", 1), ("L40S", 1)): 4.5,
}
"""Mixing pays: 4.5 for what yields 4.0 apart."""
NAMES = ("L4", "L40S")


def library():
    templates = [
        ServingTemplate(
            model=MODEL,
            phase=Phase.MIXED,
            engine=Engine.VLLM,
            nodes=nodes,
            stages=tuple(
                Stage(layers=1, tp=1, node_ordinals=(ordinal,)) for ordinal in range(len(nodes))
            ),
            throughput=throughput,
        )
        for nodes, throughput in THROUGHPUT.items()
    ]
    table = TemplateTable.of(
        templates, configurations=NAMES, slo=Slo(1000, 80), workload=Workload(1, 1, 1, 1)
    )
    origin = LibraryOrigin(2, 12.0, 0.0, False, (NAMES,), {}, {}, {}, {}, "by hand")
    return Library("mixing", NAMES, {table.key: table}, origin)


def supply(configuration, usd_per_hour, available, obtainable=None):
    key = OfferingKey("aws", "r", "z", f"type-{configuration}", Market.ON_DEMAND)
    return Supply(key, configuration, usd_per_hour, usd_per_hour, available, obtainable)


def problem(amount, **changes):
    row = DemandRow(MODEL, Phase.MIXED, Engine.VLLM, amount)
    supplies = (supply("L4", 1.0, 10), supply("L40S", 3.0, 10))
    return replace(Problem("mixing", (row,), supplies, gap=0.0), **changes)


@pytest.fixture(scope="module")
def comparison():
    return Comparison(library(), work_limit=20)


def test_the_best_one_gpu_plan_may_not_mix(comparison):
    costs = comparison.costs(problem(4.5))
    assert costs[BEST_ONE_GPU].serves_all
    assert costs[BEST_ONE_GPU].usd_per_hour == pytest.approx(5.0)  # mixed would cost 4.0
    assert costs[GREEDY].usd_per_hour >= 4.0


def test_what_runs_and_what_starting_costs_plays_no_part(comparison):
    l4 = supply("L4", 1.0, 10).offering
    running = RunningReplica(
        "m/mixed/vllm/1xL4", MODEL, Phase.MIXED, l4.zone_key, (("L4", 1),), ((l4, 1),), 1.0, 9
    )
    held = (supply("L4", 1.0, 10, obtainable=1), supply("L40S", 3.0, 10, obtainable=0))
    later = problem(4.5, running=(running,), supplies=held, start_cost={"L4": 0.5})
    assert comparison.costs(later) == comparison.costs(problem(4.5))


def test_a_baseline_that_cannot_serve_all_says_so(comparison):
    scarce = problem(4.5, supplies=(supply("L4", 1.0, 1), supply("L40S", 3.0, 1)))
    assert not comparison.costs(scarce)[BEST_ONE_GPU].serves_all
