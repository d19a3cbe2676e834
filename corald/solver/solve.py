"""`solve`: the online stage from a Problem to an Allocation and what is known about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from corald.library import Library
from corald.model.problem import Allocation, Problem, SolveReport, SolveStatus
from corald.solver.baselines import best_baselines, quick_baselines
from corald.solver.effort import Effort
from corald.solver.instance import Instance, compile_instance
from corald.solver.memory import SolverMemory
from corald.solver.plans import (
    Plan,
    objective,
    outcomes,
    replicas,
    score,
    shortfall,
    throughput,
    to_allocation,
    usd_per_hour,
)
from corald.solver.primal import select_for_service
from corald.solver.scarcity import ServiceProgram
from corald.solver.search import Search
from corald.solver.sequential import one_by_one
from corald.solver.steady import SAME, stay, steady
from corald.solver.tables import PreparedLibrary

RESERVE = 0.1
"""Share of the time that is left for writing the answer down."""


def solve(
    problem: Problem,
    library: Library | PreparedLibrary,
    *,
    deadline: float,
    clock: Callable[[], float],
    work_limit: int | None = None,
    memory: SolverMemory | None = None,
    compare: bool = True,
) -> tuple[Allocation, SolveReport]:
    """Find the cheapest allocation within `deadline` seconds of `clock`, and prove how good it is.

    With a clock that stands still and a `work_limit` the answer depends on the input alone.
    Without `compare` the baselines are quick plans, which better ones of their kind may beat.
    A `PreparedLibrary` saves sorting the tables anew; `memory` carries fleets and prices over.
    """
    started = clock()
    effort = Effort(clock, started + deadline * (1 - RESERVE), work_limit)
    prepared = library if isinstance(library, PreparedLibrary) else PreparedLibrary(library)
    instance = compile_instance(problem, prepared)
    memory = memory or SolverMemory()
    named = quick_baselines(instance)
    plans = [stay(instance), *named.values()]
    if instance.running:
        plans.append(one_by_one(instance))
    search = Search(instance, effort, problem.gap)
    for plan in plans:
        search.offer(plan)
    search.run(memory)
    scaled = search.plan is None
    if scaled:
        search = _scaled(search, plans, memory)
    elif compare:
        named = best_baselines(search, named)
        for plan in named.values():
            search.offer(plan)
    notes = _settle(search, plans[0])
    status = SolveStatus.PROVEN if search.proven else SolveStatus.BEST_FOUND
    return _answer(
        search, named, SolveStatus.SCALED if scaled else status, notes, clock() - started
    )


def _settle(search: Search, staying: Plan) -> tuple[str, ...]:
    """Take the plan that keeps what runs where changing saves too little, and say so."""
    if search.plan is None:
        return ()
    found, least = search.cost, search.instance.problem.min_saving
    search.settle(steady(search.instance, search.plan, staying, least))
    if search.cost <= found * (1 + SAME) + 1e-9:
        return ()
    saving = 1 - found / search.cost
    return (f"what runs is kept: changing it would save {saving:.2%}, less than {least:.2%}",)


def _scaled(search: Search, plans: list[Plan], memory: SolverMemory) -> Search:
    """Serve what can be served, then serve just that at the least cost."""
    instance = search.instance
    excess = search.excesses()
    costs = [priced.cost for priced in search.priced]
    singles = select_for_service(instance, excess, costs, search.fleets, search.effort.columns)
    best = ServiceProgram(instance, singles).serve(search.effort)
    if best is None:
        best = min(plans, key=lambda plan: score(instance, plan))
    served = throughput(instance, best)
    counts = replicas(instance, best)
    amounts = [
        min(row.demand.amount, amount) for row, amount in zip(instance.rows, served, strict=True)
    ]
    least = [
        min(row.demand.min_replicas, count)
        for row, count in zip(instance.rows, counts, strict=True)
    ]
    smaller = instance.with_demand(amounts, least)
    again = Search(smaller, search.effort, search.gap)
    for plan in (best, *plans):
        again.offer(plan)
    again.run(memory)
    again.steps[:0] = [*search.steps, "service program"]
    return again


def _answer(
    search: Search,
    named: Mapping[str, Plan],
    status: SolveStatus,
    notes: Sequence[str],
    seconds: float,
) -> tuple[Allocation, SolveReport]:
    instance = search.instance
    plan = search.plan or Plan()
    short = {name for name, p in named.items() if any(shortfall(instance, p))}
    report = SolveReport(
        status=status,
        objective=objective(instance, plan),
        usd_per_hour=usd_per_hour(instance, plan),
        lower_bound=search.bound if math.isfinite(search.bound) else None,
        seconds=seconds,
        columns=instance.columns,
        method=" + ".join(["decomposition", *search.steps]),
        library_note=library_note(instance),
        rows=outcomes(instance, plan),
        baselines={name: objective(instance, p) for name, p in named.items() if name not in short},
        messages=(
            *instance.notes,
            *notes,
            *(f"baseline {name} cannot serve this demand" for name in sorted(short)),
        ),
    )
    return to_allocation(instance, plan), report


def library_note(instance: Instance) -> str:
    """Which library the proof speaks of, and whether pruning lost nothing under the rules."""
    origin = instance.library.origin
    note = f"library {instance.problem.library[:12]}, node sets of at most {origin.n_max}"
    if not origin.pruned:
        return f"{note}, not pruned"
    exact = origin.epsilon == 0 and all(r.demand.max_replicas is None for r in instance.rows)
    return f"{note}, pruned" + ("" if exact else ", not exact for these rules")
