"""The answer when the solver gives none: needs neither the worker nor OR-Tools."""

from __future__ import annotations

from corald.model.problem import Allocation, Problem, SolveReport, SolveStatus
from corald.solver.baselines import GREEDY
from corald.solver.greedy import greedy, keep_running, rebase, repair
from corald.solver.instance import compile_instance
from corald.solver.plans import (
    Plan,
    objective,
    outcomes,
    score,
    shortfall,
    to_allocation,
    usd_per_hour,
)
from corald.solver.tables import PreparedLibrary


def fall_back(
    problem: Problem, prepared: PreparedLibrary, last: Allocation | None, reason: str
) -> tuple[Allocation, SolveReport]:
    """The better (less missing, then cheaper) of greedy, what runs, and the last plan.

    The last two are first cut down to what the problem still allows, then completed greedily.
    """
    instance = compile_instance(problem, prepared)
    baseline = greedy(instance)
    plans: dict[str, Plan] = {
        "what runs, completed": repair(instance, keep_running(instance)),
        GREEDY: baseline,
    }
    if last is not None:
        plans["last plan, completed"] = repair(instance, rebase(instance, last))
    name, plan = min(plans.items(), key=lambda entry: score(instance, entry[1]))
    served = not any(shortfall(instance, baseline))
    report = SolveReport(
        status=SolveStatus.FALLBACK,
        objective=objective(instance, plan),
        usd_per_hour=usd_per_hour(instance, plan),
        lower_bound=None,
        seconds=0.0,
        columns=instance.columns,
        method=name,
        library_note=f"library {problem.library[:12]}, nothing proven",
        rows=outcomes(instance, plan),
        baselines={GREEDY: objective(instance, baseline)} if served else {},
        messages=(f"fallback: {reason}", *instance.notes),
    )
    return to_allocation(instance, plan), report
