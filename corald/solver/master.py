"""The master program: a linear program over the fleets generated so far; it yields duals.

min Σ cost·λ  s.t.  Σ_{fleets of d} λ + unserved_d = 1 for every row d, and the supply rows
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ortools.math_opt.python import mathopt

from corald.errors import SolverError
from corald.solver.duals import Duals
from corald.solver.instance import Instance
from corald.solver.pricing import Fleet
from corald.solver.supply import Demanded, SupplyRows


class Master:
    """Grows by columns; each solve starts from the last basis."""

    def __init__(self, instance: Instance, unserved_cost: list[float]) -> None:
        self.instance = instance
        self.model = mathopt.Model()
        self.supply = SupplyRows(instance, self.model, integer=False)
        self.fleets: dict[Fleet, mathopt.Variable] = {}
        self._convexity = [self.model.add_linear_constraint(lb=1.0, ub=1.0) for _ in instance.rows]
        for row, cost in zip(self._convexity, unserved_cost, strict=True):
            unserved = self.model.add_variable(lb=0.0)
            row.set_coefficient(unserved, 1.0)
            self.model.objective.set_linear_coefficient(unserved, cost)
        self._solver = mathopt.IncrementalSolver(self.model, mathopt.SolverType.GLOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._solver.close()

    def add(self, fleet: Fleet) -> bool:
        """Add a column; False when it was there already."""
        if fleet in self.fleets:
            return False
        column = self.model.add_variable(lb=0.0)
        self.fleets[fleet] = column
        self._convexity[fleet.row].set_coefficient(column, 1.0)
        self.supply.add(column, Demanded.by_fleet(self.instance, fleet))
        return True

    def solve(self) -> tuple[float, Duals]:
        """(value, duals)."""
        result = self._solver.solve()
        if not result.has_dual_feasible_solution():
            raise SolverError(f"master program: {result.termination.reason.name}")
        return float(result.objective_value()), self.supply.duals(result)
