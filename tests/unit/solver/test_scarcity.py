from __future__ import annotations

from dataclasses import replace

import pytest

from corald.model.market import Market
from corald.model.problem import DemandRow, Problem, SolveStatus
from corald.model.templates import Engine, Phase
from corald.solver.checker import check
from corald.solver.compare import HIGHS, FullProgram
from corald.solver.solve import solve
from tests.unit.solver.worlds import library_of, random_world, supply, template

MIXED = Phase.MIXED
LIBRARY = library_of(
    [
        template("phi", MIXED, (("L4", 1),), 1.0),
        template("qwen", MIXED, (("L4", 1),), 1.0),
        template("llama", MIXED, (("L40S", 1),), 1.0),
    ]
)


def problem_of(rows, nodes):
    supplies = tuple(
        supply("use-a", name, Market.ON_DEMAND, 1.0, count) for name, count in nodes.items()
    )
    demand = tuple(
        DemandRow(model, MIXED, Engine.VLLM, amount, priority=priority)
        for model, amount, priority in rows
    )
    return Problem(library="small", rows=demand, supplies=supplies)


def served(problem, library=LIBRARY):
    allocation, report = solve(problem, library, deadline=60.0, clock=lambda: 0.0, work_limit=200)
    check(problem, library, allocation, report)
    return report, {row.model: row.served for row in report.rows}


def test_what_is_scarce_is_shared_evenly_and_the_unmet_part_is_reported():
    report, got = served(problem_of([("phi", 10.0, 0), ("qwen", 20.0, 0)], {"L4": 15}))

    assert report.status is SolveStatus.SCALED
    assert got == {"phi": 5.0, "qwen": 10.0}
    assert [row.unmet for row in report.rows] == [5.0, 10.0]


def test_a_model_without_any_supply_does_not_starve_the_others():
    report, got = served(problem_of([("phi", 4.0, 0), ("llama", 4.0, 0)], {"L4": 9, "L40S": 0}))

    assert report.status is SolveStatus.SCALED
    assert got == {"phi": 4.0, "llama": 0.0}


def test_a_lower_priority_gets_nothing_that_a_higher_one_lacks():
    _, got = served(problem_of([("phi", 10.0, 0), ("qwen", 8.0, 1)], {"L4": 6}))
    _, rest = served(problem_of([("phi", 10.0, 0), ("qwen", 8.0, 1)], {"L4": 11}))

    assert got == {"phi": 0.0, "qwen": 6.0}
    assert rest == {"phi": 3.0, "qwen": 8.0}


def test_a_heavier_row_gets_a_larger_share_of_what_is_scarce():
    problem = problem_of([("phi", 10.0, 0), ("qwen", 10.0, 0)], {"L4": 9})
    rows = (replace(problem.rows[0], weight=2.0), problem.rows[1])

    _, got = served(replace(problem, rows=rows))

    assert got == {"phi": 6.0, "qwen": 3.0}


def test_a_heavy_row_that_is_served_whole_leaves_the_rest_to_the_others():
    problem = problem_of([("phi", 10.0, 0), ("qwen", 20.0, 0)], {"L4": 26})
    rows = (replace(problem.rows[0], weight=5.0), problem.rows[1])

    _, got = served(replace(problem, rows=rows))

    assert got == {"phi": 10.0, "qwen": 16.0}


def test_the_served_part_is_bought_at_the_least_cost():
    problem = problem_of([("phi", 9.0, 0)], {"L4": 4})
    cheap = supply("use-b", "L4", Market.SPOT, 0.2, 3)
    report, got = served(replace(problem, supplies=(*problem.supplies, cheap)))

    assert got == {"phi": 7.0}
    assert report.objective == pytest.approx(4 * 1.0 + 3 * 0.2)


@pytest.mark.parametrize("seed", range(600, 612))
def test_no_larger_uniform_share_of_demand_could_have_been_served(seed):
    world = random_world(seed, rules=False, plenty=3)
    tight = replace(
        world.problem,
        rows=tuple(replace(row, amount=row.amount * 20) for row in world.problem.rows),
    )

    report, _ = served(tight, world.library)
    share = min(row.served / row.demanded for row in report.rows)
    more = replace(
        tight,
        rows=tuple(replace(row, amount=row.amount * share * 1.001) for row in tight.rows),
    )

    assert report.status is SolveStatus.SCALED
    if share == 0:
        return  # one row cannot be served at all; then nothing is uniform
    assert FullProgram(more, world.library).solve(HIGHS, 60.0, 0.5).feasible is False
