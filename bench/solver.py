"""The online solver on the paper's core setup: time, proven gap, events, and general solvers.

`cold` is a solve without fleets and prices of an earlier one, in a process that has the library at
hand. An event changes a price, sells out a supply or moves the demand of one model by 20 percent,
with the previous plan running.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import common

from corald.config.catalog import load_paper_catalog
from corald.config.paper import PaperSetup, load_paper_setup
from corald.library import Library, read_library, write_library
from corald.model.market import Market, OfferingKey
from corald.model.problem import Allocation, DemandRow, Problem, RunningReplica, SolveReport, Supply
from corald.model.templates import Engine
from corald.simulation.paper import PHASES, build_paper_library
from corald.solver.checker import check
from corald.solver.compare import HIGHS, SCIP, FullProgram
from corald.solver.memory import SolverMemory
from corald.solver.solve import solve
from corald.solver.tables import PreparedLibrary
from corald.templates.build import BuildOptions

START_COST = 0.1
DEADLINE_SECONDS = 60.0
GENERAL_SOLVER_SECONDS = 120.0


@dataclass(frozen=True)
class Size:
    """One instance of the benchmark."""

    name: str
    setup: str
    n_max: int
    available: int
    """Nodes of each supply."""
    gap: float
    events: int


SIZES = {"core": Size("core", "core", n_max=4, available=40, gap=0.005, events=30)}


def library_of(size: Size) -> Library:
    """Build the library of a size, or read the one built before."""
    path = common.CACHE / f"{size.setup}-{size.n_max}.clt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_library(path, build_paper_library(size.setup, BuildOptions(n_max=size.n_max)))
    return read_library(path)


def problem_of(size: Size, library: Library) -> Problem:
    """The setup's demand over the paper's supplies, on demand, nothing running."""
    setup = load_paper_setup(size.setup)
    supplies = tuple(
        Supply(key, configuration, usd, usd, size.available)
        for key, configuration, usd in _offerings(setup)
    )
    return Problem(
        library=library.fingerprint,
        rows=tuple(_rows(setup)),
        supplies=supplies,
        start_cost=dict.fromkeys(setup.configurations, START_COST),
        gap=size.gap,
    )


def _offerings(setup: PaperSetup) -> list[tuple[OfferingKey, str, float]]:
    found = []
    for name, kind in load_paper_catalog().instance_types.items():
        for price in kind.prices:
            if kind.configuration in setup.configurations and price.region in setup.regions:
                for zone in price.zones:
                    key = OfferingKey(kind.cloud, price.region, zone, name, Market.ON_DEMAND)
                    found.append((key, kind.configuration, price.on_demand_usd_per_hour))
    return sorted(found)


def _rows(setup: PaperSetup) -> list[DemandRow]:
    rows = []
    for model, served in setup.models.items():
        tokens = (served.workload.input_tokens_mean, served.workload.output_tokens_mean)
        for phase, mean in zip(PHASES, tokens, strict=True):
            amount = setup.requests_per_second * mean
            rows.append(DemandRow(model, phase, Engine.CORAL, amount))
    return rows


def with_running(problem: Problem, allocation: Allocation) -> Problem:
    """The same problem after the plan was carried out."""
    running = tuple(
        RunningReplica(
            template=choice.template,
            model=choice.model,
            phase=choice.phase,
            zone=choice.zone,
            nodes=choice.nodes,
            offerings=choice.offerings,
            throughput=choice.throughput,
            count=choice.count,
        )
        for choice in allocation.choices
    )
    return replace(problem, running=running)


def event(problem: Problem, rng: random.Random, turn: int) -> Problem:
    """A price moves, a supply sells out beyond what is held, or one model's demand moves."""
    if turn % 3 == 2:
        model = rng.choice(problem.rows).model
        factor = rng.choice([0.8, 1.2])
        rows = tuple(
            replace(row, amount=row.amount * factor) if row.model == model else row
            for row in problem.rows
        )
        return replace(problem, rows=rows)
    index = rng.randrange(len(problem.supplies))
    supply = problem.supplies[index]
    if turn % 3 == 0:
        changed = replace(supply, usd_per_hour=supply.usd_per_hour * rng.uniform(0.7, 1.3))
    else:
        held = sum(
            nodes * item.count
            for item in problem.running
            for offering, nodes in item.offerings
            if offering == supply.offering
        )
        changed = replace(supply, available=held)
    return replace(
        problem, supplies=(*problem.supplies[:index], changed, *problem.supplies[index + 1 :])
    )


def measure(name: str, seed: int) -> dict[str, float | None]:
    """Everything our own solver does at one size; run in a process of its own."""
    size = SIZES[name]
    library = library_of(size)
    problem = problem_of(size, library)
    prepared = PreparedLibrary(library)
    run_once(problem, prepared, None)
    memory = SolverMemory()
    seconds, (allocation, report) = run_once(problem, prepared, memory)
    check(problem, library, allocation, report)
    rng = random.Random(seed)
    times = []
    for turn in range(size.events):
        problem = event(with_running(problem, allocation), rng, turn)
        taken, (allocation, after) = run_once(problem, prepared, memory)
        check(problem, library, allocation, after)
        times.append(taken)
    return {
        "templates": float(len(library)),
        "columns": float(report.columns),
        "cold_seconds": seconds,
        "gap": report.gap,
        "objective": report.objective,
        "usd_per_hour": report.usd_per_hour,
        "event_median_seconds": statistics.median(times),
        "event_p95_seconds": statistics.quantiles(times, n=20)[-1],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **{f"saving_over_{k}": 1 - report.objective / v for k, v in report.baselines.items()},
    }


def run_once(
    problem: Problem, prepared: PreparedLibrary, memory: SolverMemory | None
) -> tuple[float, tuple[Allocation, SolveReport]]:
    """(seconds, answer)."""
    started = time.monotonic()
    answer = solve(
        problem, prepared, deadline=DEADLINE_SECONDS, clock=time.monotonic, memory=memory
    )
    return time.monotonic() - started, answer


def highs_reaches(name: str, cost: float, limit: float) -> dict[str, float | None]:
    """Seconds until HiGHS, on the whole program, has a plan as cheap as ours."""
    started = time.monotonic()
    program = _full_program(name)
    answer = program.solve(HIGHS, limit, gap=1e-6, stop_at=cost * (1 + 1e-6))
    seconds = time.monotonic() - started
    reached = answer.objective is not None and answer.objective <= cost * (1 + 1e-6)
    return {"highs_seconds_to_our_cost": seconds if reached else None}


def general(name: str, solver: str, limit: float) -> dict[str, float | None]:
    """A general solver on the whole program: its best cost and its gap when it ends."""
    program = _full_program(name)
    started = time.monotonic()
    answer = program.solve({"highs": HIGHS, "scip": SCIP}[solver], limit, gap=1e-6)
    cost = answer.objective
    return {
        f"{solver}_objective": cost,
        f"{solver}_gap_at_limit": None if cost is None else max(0.0, 1 - answer.bound / cost),
        f"{solver}_seconds": time.monotonic() - started,
    }


def _full_program(name: str) -> FullProgram:
    library = library_of(SIZES[name])
    return FullProgram(problem_of(SIZES[name], library), library)


def in_own_process(
    function: Callable[..., dict[str, float | None]], *arguments: object
) -> dict[str, float | None]:
    """Call it in a fresh process, so that memory and warm caches are its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def main() -> None:
    """Measure the sizes asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=GENERAL_SOLVER_SECONDS)
    options = parser.parse_args()
    figures: dict[str, float | None] = {}
    for name in options.sizes:
        library_of(SIZES[name])
        ours = in_own_process(measure, name, options.seed)
        ours |= in_own_process(highs_reaches, name, ours["objective"], options.limit)
        for solver in ("highs", "scip"):
            ours |= in_own_process(general, name, solver, options.limit)
        figures |= {f"{name}.{key}": value for key, value in ours.items()}
    common.show(("figure", "value"), list(figures.items()))
    common.finish("solver", options.seed, figures)


if __name__ == "__main__":
    main()
