"""The one place that speaks to OR-Tools for integer programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from ortools.math_opt.python import mathopt

from corald.solver.effort import Effort

MOST_ITERATIONS = 5000
"""Of the simplex method in one linear program, under a work limit."""


@dataclass(frozen=True, slots=True)
class MipAnswer:
    """Values by variable (None: nothing found), and the proven bound of the model given."""

    values: dict[mathopt.Variable, float] | None
    bound: float

    def count(self, variable: mathopt.Variable) -> int:
        return 0 if self.values is None else round(self.values[variable])


def solve_mip(model: mathopt.Model, effort: Effort, *, gap: float, share: float = 1.0) -> MipAnswer:
    """Solve with SCIP, within `share` of the time left; it is single-threaded and repeatable."""
    seconds = effort.left * share
    if seconds <= 0:
        return MipAnswer(None, -math.inf)
    params = mathopt.SolveParameters(
        time_limit=timedelta(seconds=seconds) if math.isfinite(seconds) else None,
        node_limit=effort.nodes(model.get_num_variables()),
        relative_gap_tolerance=gap,
        random_seed=0,
        threads=1,
    )
    if effort.work_limit is not None:
        _brake(params)
    result = mathopt.solve(model, mathopt.SolverType.GSCIP, params=params)
    bound = result.dual_bound()
    if result.termination.reason is mathopt.TerminationReason.INFEASIBLE:
        bound = math.inf
    if not result.has_primal_feasible_solution():
        return MipAnswer(None, bound)
    return MipAnswer(result.variable_values(), bound)


def _brake(params: mathopt.SolveParameters) -> None:
    """Bound the work of a node too, since a limit of nodes alone leaves the first one free."""
    params.gscip.int_params["presolving/maxrestarts"] = 0
    params.gscip.int_params["branching/relpscost/sbiterofs"] = 1000
    params.gscip.long_params["lp/iterlim"] = MOST_ITERATIONS
    params.gscip.long_params["lp/rootiterlim"] = MOST_ITERATIONS


def costs_at_least(model: mathopt.Model, bound: float) -> None:
    """Tell the model a bound of its objective that was proven elsewhere.

    It cuts no plan off, and lets the search end as soon as a plan is close to that bound.
    """
    row = model.add_linear_constraint(lb=bound * (1 - 1e-9))
    for term in model.objective.linear_terms():
        row.set_coefficient(term.variable, term.coefficient)
