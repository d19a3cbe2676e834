from __future__ import annotations

import statistics
import time
from dataclasses import replace

import pytest

from corald.library import TableKey
from corald.model.market import Market
from corald.model.problem import DemandRow, Problem, SolveStatus
from corald.model.templates import Engine, Phase
from corald.solver.baselines import (
    BEST_ONE_CONFIGURATION,
    BEST_ONE_GPU,
    GREEDY,
    quick_baselines,
)
from corald.solver.checker import check
from corald.solver.compare import HIGHS, FullProgram
from corald.solver.fallback import fall_back
from corald.solver.greedy import greedy
from corald.solver.instance import compile_instance
from corald.solver.plans import objective, shortfall
from corald.solver.solve import solve
from corald.solver.tables import PreparedLibrary, gpu_of
from tests.unit.solver.worlds import (
    library_of,
    random_world,
    running_from,
    scarce_world,
    supply,
    template,
)

LIBRARY = library_of(
    [
        template("phi", Phase.MIXED, (("L4", 1),), 1.0),
        template("phi", Phase.MIXED, (("2xL4", 1),), 2.1),
        template("phi", Phase.MIXED, (("2xL4", 1), ("L4", 1)), 4.0),
        template("phi", Phase.MIXED, (("A10G", 1), ("L4", 1)), 5.0),
    ]
)
PROBLEM = Problem(
    library="small",
    rows=(DemandRow("phi", Phase.MIXED, Engine.VLLM, 5.0),),
    supplies=(
        supply("use-a", "L4", Market.ON_DEMAND, 1.0, 9),
        supply("use-a", "2xL4", Market.ON_DEMAND, 2.0, 9),
        supply("use-a", "A10G", Market.ON_DEMAND, 1.0, 9),
    ),
)


def compiled(problem, library=LIBRARY):
    return compile_instance(problem, PreparedLibrary(library))


def test_each_baseline_is_the_best_of_its_kind():
    instance = compiled(PROBLEM)

    _, report = solve(PROBLEM, LIBRARY, deadline=9.0, clock=lambda: 0.0)

    costs = {GREEDY: 6.0, BEST_ONE_CONFIGURATION: 5.0, BEST_ONE_GPU: 4.0}  # greedy: 3 x 2xL4
    assert report.baselines == pytest.approx(costs)
    assert {n: objective(instance, p) for n, p in quick_baselines(instance).items()} == (
        pytest.approx(costs)
    )
    assert report.objective == pytest.approx(2.0)


def test_a_few_cheap_machines_do_not_set_the_price_of_a_whole_fleet():
    cheap = supply("use-a", "A10G", Market.SPOT, 0.5, 3)
    dear = supply("use-a", "A10G", Market.ON_DEMAND, 4.0, 50)
    other = supply("use-a", "L4", Market.ON_DEMAND, 1.0, 50)
    library = library_of(
        [
            template("phi", Phase.MIXED, (("A10G", 1),), 1.0),
            template("phi", Phase.MIXED, (("L4", 1),), 1.0),
        ]
    )
    row = DemandRow("phi", Phase.MIXED, Engine.VLLM, 10.0)
    problem = Problem(library="small", rows=(row,), supplies=(cheap, dear, other))
    instance = compiled(problem, library)

    plans = quick_baselines(instance)

    assert objective(instance, plans[BEST_ONE_GPU]) == pytest.approx(3 * 0.5 + 7 * 1.0)
    assert objective(instance, plans[BEST_ONE_CONFIGURATION]) == pytest.approx(8.5)


@pytest.mark.parametrize(
    ("name", "allowed", "seeds"),
    [
        (BEST_ONE_CONFIGURATION, "one_configuration", range(800, 815)),
        (BEST_ONE_GPU, "one_gpu", range(815, 830)),
    ],
)
def test_where_cheap_machines_are_few_a_baseline_is_nearly_the_best_of_its_kind(
    name, allowed, seeds
):
    over = []
    for seed in seeds:
        world = scarce_world(seed)
        prepared = PreparedLibrary(world.library)

        _, report = solve(world.problem, prepared, deadline=60.0, clock=lambda: 0.0, work_limit=20)

        exact = FullProgram(restricted(world.problem, prepared, allowed), world.library)
        best = exact.solve(HIGHS, 20.0, 5e-3).objective
        assert report.objective <= report.baselines[name] + 1e-6
        over.append(report.baselines[name] / best - 1)
    assert max(over) <= 0.06
    assert statistics.median(over) <= 0.005


def restricted(problem, prepared, allowed):
    """The problem with every template denied that the baseline may not start."""
    rows = []
    for row in problem.rows:
        table = prepared.table(TableKey(row.model, row.phase, row.engine))
        denied = {table.id(i) for i in range(len(table)) if not getattr(table, allowed)[i]}
        rows.append(replace(row, denied_templates=frozenset(denied)))
    return replace(problem, rows=tuple(rows))


def test_greedy_goes_on_with_the_next_best_when_something_sells_out():
    supplies = (PROBLEM.supplies[0], replace(PROBLEM.supplies[1], available=1))
    instance = compiled(replace(PROBLEM, supplies=supplies))

    plan = greedy(instance)

    assert not any(shortfall(instance, plan))
    assert objective(instance, plan) == pytest.approx(2.0 + 3 * 1.0)


def test_a_baseline_that_cannot_serve_is_said_and_not_priced():
    supplies = (replace(PROBLEM.supplies[0], available=1), PROBLEM.supplies[2])
    problem = replace(PROBLEM, supplies=supplies)

    _, report = solve(problem, LIBRARY, deadline=9.0, clock=lambda: 0.0)

    assert report.status is SolveStatus.PROVEN
    assert report.baselines == {}
    assert "baseline best-one-gpu cannot serve this demand" in report.messages


@pytest.mark.parametrize(
    ("name", "gpu"), [("L4", "L4"), ("4xL40S", "L40S"), ("8xA100-40-fast", "A100-40")]
)
def test_the_gpu_is_read_from_the_name_of_a_configuration(name, gpu):
    assert gpu_of(name) == gpu


@pytest.mark.parametrize("seed", range(700, 730))
def test_a_fallback_plan_passes_the_checker_and_keeps_what_is_worth_keeping(seed):
    world = random_world(seed)
    prepared = PreparedLibrary(world.library)
    last, before = solve(
        world.problem, world.library, deadline=9.0, clock=lambda: 0.0, work_limit=50
    )
    problem = replace(world.problem, running=running_from(last))

    started = time.perf_counter()
    allocation, report = fall_back(problem, prepared, last, "the solver is gone")

    assert time.perf_counter() - started < 2.0
    check(problem, world.library, allocation, report)
    assert report.status is SolveStatus.FALLBACK
    assert report.messages[0] == "fallback: the solver is gone"
    if before.status is SolveStatus.PROVEN:
        assert all(row.unmet <= row.demanded * 1e-6 for row in report.rows)
        assert report.objective <= before.usd_per_hour + 1e-6


def test_what_is_left_of_the_last_plan_is_completed_when_a_supply_sold_out():
    world = random_world(31, rules=False, plenty=30)
    problem = replace(world.problem, running=())
    last, _ = solve(problem, world.library, deadline=9.0, clock=lambda: 0.0, work_limit=50)
    gone = last.choices[0].offerings[0][0]
    sold_out = tuple(replace(s, available=0) if s.offering == gone else s for s in problem.supplies)
    later = replace(problem, supplies=sold_out)

    allocation, report = fall_back(later, PreparedLibrary(world.library), last, "killed")

    check(later, world.library, allocation, report)
    assert all(gone not in dict(choice.offerings) for choice in allocation.choices)
    assert all(row.unmet <= row.demanded * 1e-6 for row in report.rows)
