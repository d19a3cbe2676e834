from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from corald.errors import SolverError
from corald.model.market import Market
from corald.model.problem import DemandRow, Problem, SolveStatus
from corald.model.templates import Engine, Phase
from corald.solver.checker import check
from corald.solver.compare import HIGHS, FullProgram
from corald.solver.effort import Effort
from corald.solver.instance import compile_instance
from corald.solver.memory import SolverMemory
from corald.solver.search import Search
from corald.solver.solve import solve
from corald.solver.tables import PreparedLibrary
from tests.unit.solver.worlds import (
    CONFIGURATIONS,
    library_of,
    random_world,
    running_from,
    supply,
    template,
)

EXACT = 1e-6


def solved(world, **options):
    return solve(
        world.problem,
        world.library,
        **{"deadline": 60.0, "clock": lambda: 0.0, "work_limit": 200} | options,
    )


def optimum(world):
    return FullProgram(world.problem, world.library).solve(HIGHS, 60.0, 1e-7)


@pytest.mark.parametrize("seed", range(100))
def test_the_plan_is_as_cheap_as_the_whole_integer_program_within_the_gap(seed):
    world = random_world(seed)

    allocation, report = solved(world)
    full = optimum(world)

    check(world.problem, world.library, allocation, report)
    assert (report.status is SolveStatus.SCALED) == (not full.feasible)
    if full.feasible:
        assert report.status is SolveStatus.PROVEN
        assert report.objective <= full.objective * (1 + world.problem.gap) + EXACT
        assert report.lower_bound <= full.objective * (1 + 1e-5) + EXACT
        assert all(report.objective <= usd + EXACT for usd in report.baselines.values())


@pytest.mark.parametrize("seed", range(200, 230))
def test_the_bound_of_the_decomposition_alone_holds_with_running_replicas(seed, monkeypatch):
    world = random_world(seed, plenty=8)
    full = optimum(world)
    monkeypatch.setattr(Search, "_choose_singles", lambda _self: None)
    instance = compile_instance(world.problem, PreparedLibrary(world.library))
    search = Search(instance, Effort(lambda: 0.0, math.inf, 60), 0.0)

    search.run(SolverMemory())

    if full.feasible:
        linear = FullProgram(world.problem, world.library, relaxed=True).solve(HIGHS, 60.0, 1e-7)
        assert search.bound <= full.objective * (1 + 1e-5) + EXACT
        assert search.bound >= linear.objective * (1 - 0.02) - EXACT


@pytest.mark.parametrize("seed", range(240, 270))
def test_a_bound_is_claimed_only_where_no_candidate_was_left_out(seed):
    world = random_world(seed, plenty=3)
    full = optimum(world)
    instance = compile_instance(world.problem, PreparedLibrary(world.library))
    search = Search(instance, Effort(lambda: 0.0, math.inf, 3), 0.0, most_columns=2)

    search.run(SolverMemory())

    if full.feasible:
        assert search.bound <= full.objective * (1 + 1e-5) + EXACT


@pytest.mark.parametrize("seed", range(300, 306))
def test_the_same_problem_gives_the_same_plan(seed):
    world = random_world(seed)

    first, second = solved(world), solved(world)

    assert first == second


@pytest.mark.parametrize("seed", range(400, 412))
def test_memory_changes_speed_and_not_the_quality(seed):
    world = random_world(seed, rules=False, plenty=30)
    memory = SolverMemory()
    allocation, _ = solved(world, memory=memory)
    later = replace(
        world,
        problem=replace(
            world.problem,
            running=running_from(allocation),
            rows=tuple(replace(row, amount=row.amount * 1.2) for row in world.problem.rows),
        ),
    )

    warm_allocation, warm = solved(later, memory=memory)
    full = optimum(later)

    check(later.problem, later.library, warm_allocation, warm)
    if full.feasible:
        assert warm.objective <= full.objective * (1 + later.problem.gap) + EXACT


@pytest.mark.parametrize("seed", range(500, 510))
def test_a_plan_that_runs_and_still_fits_is_kept_as_it_is(seed):
    world = random_world(seed, rules=False, plenty=30)
    costly = replace(
        world.problem, running=(), start_cost=dict.fromkeys(CONFIGURATIONS, 0.5), gap=1e-6
    )
    first, before = solve(costly, world.library, deadline=60.0, clock=lambda: 0.0, work_limit=200)
    again = replace(costly, running=running_from(first))

    second, report = solve(again, world.library, deadline=60.0, clock=lambda: 0.0, work_limit=200)

    if before.status is SolveStatus.PROVEN:
        assert report.objective <= before.usd_per_hour + EXACT
        assert all(choice.kept == choice.count for choice in second.choices)


def test_many_replicas_are_planned_within_the_gap():
    world = random_world(7, rules=False, plenty=5000)
    rows = tuple(replace(row, amount=row.amount * 120) for row in world.problem.rows)
    many = replace(world, problem=replace(world.problem, rows=rows, gap=0.01))

    allocation, report = solved(many)

    check(many.problem, many.library, allocation, report)
    assert report.status is SolveStatus.PROVEN
    assert sum(choice.count for choice in allocation.choices) > 100
    assert report.objective <= optimum(many).objective * 1.01


def test_a_solve_limited_by_work_alone_ends_soon_however_much_work_is_allowed():
    world = random_world(9, rules=False, plenty=40, most_nodes=4)
    rows = tuple(replace(row, amount=row.amount * 25) for row in world.problem.rows)
    hard = replace(world, problem=replace(world.problem, rows=rows, gap=0.0, running=()))

    started = time.process_time()
    first = solved(hard, work_limit=1_000_000)
    seconds = time.process_time() - started

    assert first == solved(hard, work_limit=1_000_000)
    assert seconds < 4.0
    assert "template program" in first[1].method


def test_without_any_time_the_answer_is_greedy_or_better_and_feasible():
    world = random_world(3, rules=False, plenty=30)

    allocation, report = solved(world, deadline=0.0)

    check(world.problem, world.library, allocation, report)
    assert report.status in {SolveStatus.PROVEN, SolveStatus.BEST_FOUND}
    assert report.objective <= report.baselines["greedy"] + EXACT


def test_a_replica_may_mix_spot_and_on_demand_machines():
    pair = template("phi", Phase.MIXED, (("L4", 2),), 10.0)
    problem = Problem(
        library="small",
        rows=(DemandRow("phi", Phase.MIXED, Engine.VLLM, 10.0),),
        supplies=(
            supply("use-a", "L4", Market.SPOT, 0.4, 1),
            supply("use-a", "L4", Market.ON_DEMAND, 1.0, 5),
        ),
    )

    allocation, report = solve(problem, library_of([pair]), deadline=9.0, clock=lambda: 0.0)

    assert report.objective == pytest.approx(1.4)
    assert {key.market for key, _ in allocation.choices[0].offerings} == set(Market) - {
        Market.RESERVED
    }


def test_a_replica_never_spans_two_zones():
    pair = template("phi", Phase.MIXED, (("L4", 2),), 10.0)
    problem = Problem(
        library="small",
        rows=(DemandRow("phi", Phase.MIXED, Engine.VLLM, 10.0),),
        supplies=(
            supply("use-a", "L4", Market.ON_DEMAND, 1.0, 1),
            supply("use-b", "L4", Market.ON_DEMAND, 1.0, 1),
        ),
    )

    allocation, report = solve(problem, library_of([pair]), deadline=9.0, clock=lambda: 0.0)

    assert allocation.choices == ()
    assert report.status is SolveStatus.SCALED


def test_a_demand_of_zero_gets_its_minimum_of_replicas_and_no_more():
    single = template("phi", Phase.MIXED, (("L4", 1),), 10.0)
    problem = Problem(
        library="small",
        rows=(DemandRow("phi", Phase.MIXED, Engine.VLLM, 0.0, min_replicas=2),),
        supplies=(supply("use-a", "L4", Market.ON_DEMAND, 1.0, 5),),
    )
    library = library_of([single])

    allocation, _ = solve(problem, library, deadline=9.0, clock=lambda: 0.0)
    idle = replace(problem, rows=(replace(problem.rows[0], min_replicas=0),))
    nothing, _ = solve(idle, library, deadline=9.0, clock=lambda: 0.0)

    assert sum(choice.count for choice in allocation.choices) == 2
    assert nothing.choices == ()


def test_a_report_says_when_pruning_is_not_exact_for_the_rules():
    world = random_world(3, rules=False, plenty=30)
    origin = replace(world.library.origin, pruned=True)
    pruned = replace(world, library=replace(world.library, origin=origin))
    rows = tuple(replace(row, max_replicas=9) for row in world.problem.rows)
    limited = replace(pruned, problem=replace(pruned.problem, rows=rows))

    assert "not exact" not in solved(pruned)[1].library_note
    assert "not exact for these rules" in solved(limited)[1].library_note


def test_a_problem_for_another_library_is_refused():
    world = random_world(3)
    problem = replace(world.problem, library="other")

    with pytest.raises(SolverError, match="is for library other"):
        solve(problem, world.library, deadline=1.0, clock=lambda: 0.0)
