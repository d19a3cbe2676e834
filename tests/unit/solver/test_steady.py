"""What runs is left alone unless a change is worth it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from corald.model.market import Market
from corald.model.problem import DemandRow, Problem, SolveStatus
from corald.model.templates import Engine, Phase
from corald.solver.checker import check
from corald.solver.solve import solve
from tests.unit.solver.worlds import library_of, random_world, running_from, supply, template

LIBRARY = library_of(
    [
        template("phi", Phase.MIXED, (("L4", 1),), 1.0),
        template("phi", Phase.MIXED, (("A10G", 1),), 1.0),
        template("qwen", Phase.MIXED, (("L4", 1),), 1.0),
        template("qwen", Phase.MIXED, (("A10G", 1),), 1.0),
    ]
)
PROBLEM = Problem(
    library="small",
    rows=(
        DemandRow("phi", Phase.MIXED, Engine.VLLM, 10.0),
        DemandRow("qwen", Phase.MIXED, Engine.VLLM, 10.0),
    ),
    supplies=(
        supply("use-a", "L4", Market.ON_DEMAND, 1.0, 40),
        supply("use-a", "A10G", Market.ON_DEMAND, 1.1, 40),
    ),
    gap=1e-6,
)


def solved(problem, library=LIBRARY):
    allocation, report = solve(problem, library, deadline=60.0, clock=lambda: 0.0, work_limit=50)
    check(problem, library, allocation, report)
    return allocation, report


def with_prices(problem, *prices):
    supplies = tuple(
        replace(s, usd_per_hour=usd) for s, usd in zip(problem.supplies, prices, strict=True)
    )
    return replace(problem, supplies=supplies)


def running(problem, library=LIBRARY):
    """The problem once its plan was carried out."""
    return replace(problem, running=running_from(solved(problem, library)[0]))


def started(allocation):
    return sum(choice.count - choice.kept for choice in allocation.choices)


def shape(allocation):
    return {(c.template, c.zone, c.offerings): c.count for c in allocation.choices}


@pytest.mark.parametrize("seed", range(500, 512))
def test_unchanged_inputs_give_the_plan_that_runs_even_when_starting_is_free(seed):
    world = random_world(seed, rules=False, plenty=30)
    problem = replace(world.problem, running=(), start_cost={}, min_saving=0.02)
    first, _ = solved(problem, world.library)

    second, _ = solved(replace(problem, running=running_from(first)), world.library)

    assert shape(second) == shape(first)
    assert started(second) == 0


def test_of_plans_of_one_cost_the_one_that_runs_is_kept_row_by_row():
    before = running(PROBLEM)
    level = with_prices(before, 1.0, 1.0)
    # qwen's own L4 became dear, so that the plan as a whole has to change.
    rows = (level.rows[0], replace(level.rows[1], supplies=(1,)))

    allocation, report = solved(replace(level, rows=rows))

    kept = {choice.model: choice.kept for choice in allocation.choices}
    assert report.objective == pytest.approx(20.0)
    assert kept == {"phi": 10, "qwen": 0}


@pytest.mark.parametrize("seed", range(520, 532))
def test_a_jitter_of_prices_moves_nothing(seed):
    world = random_world(seed, rules=False, plenty=30)
    problem = replace(world.problem, running=(), start_cost={}, min_saving=0.02, gap=1e-4)
    first, before = solved(problem, world.library)
    if before.status is not SolveStatus.PROVEN:
        return  # a demand that cannot be met is bought anew in every way that serves more
    rng = random.Random(seed)
    prices = [s.usd_per_hour * rng.uniform(0.99, 1.01) for s in problem.supplies]

    second, report = solved(
        replace(with_prices(problem, *prices), running=running_from(first)), world.library
    )

    assert shape(second) == shape(first)
    assert report.objective <= report.lower_bound * 1.021


def test_an_offering_that_became_much_cheaper_for_good_is_moved_to():
    before = replace(running(PROBLEM), start_cost={"A10G": 0.1}, min_saving=0.02)

    allocation, report = solved(with_prices(before, 1.0, 0.6))

    assert report.usd_per_hour == pytest.approx(20 * 0.6)
    assert started(allocation) == 20


def test_a_saving_that_is_too_small_is_named_and_the_bound_stays_honest():
    before = running(PROBLEM)
    cheaper = with_prices(before, 1.0, 0.99)

    moved, _ = solved(cheaper)
    kept, report = solved(replace(cheaper, min_saving=0.02))

    assert started(moved) == 20
    assert started(kept) == 0
    assert report.lower_bound == pytest.approx(19.8, rel=1e-4)
    assert report.gap == pytest.approx(0.01, rel=1e-2)
    assert report.status is SolveStatus.BEST_FOUND
    assert any("changing it would save 1.00%" in message for message in report.messages)


def test_more_demand_is_added_to_what_runs():
    before = replace(running(PROBLEM), min_saving=0.02)
    cheaper = with_prices(before, 1.0, 0.99)
    rows = (replace(cheaper.rows[0], amount=13.0), cheaper.rows[1])

    allocation, report = solved(replace(cheaper, rows=rows))

    assert sum(choice.kept for choice in allocation.choices) == 20
    assert started(allocation) == 3
    assert report.objective == pytest.approx(20.0 + 3 * 0.99)


def test_where_nothing_runs_the_best_plan_is_taken_whatever_it_saves():
    _, frugal = solved(replace(PROBLEM, min_saving=0.5))

    assert frugal.objective == pytest.approx(20.0)
