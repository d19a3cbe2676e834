"""The whole problem as one integer program: the cross-check, written apart from the search.

It reads Problem and Library directly and shares no code with the decomposition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from ortools.math_opt.python import mathopt

from corald.library import Library, TableKey
from corald.model.market import ZoneKey
from corald.model.problem import DemandRow, Problem, Supply

HIGHS = mathopt.SolverType.HIGHS
SCIP = mathopt.SolverType.GSCIP


@dataclass(frozen=True, slots=True)
class FullAnswer:
    """What a general solver says about the full program; `objective` is None without a plan."""

    feasible: bool | None
    """False: proven infeasible; None: not known within the limit."""
    objective: float | None
    bound: float
    columns: int


class FullProgram:
    """One integer variable for every (row, template, zone), supply and running replica."""

    def __init__(self, problem: Problem, library: Library, *, relaxed: bool = False) -> None:
        self.problem, self.library = problem, library
        self.model = mathopt.Model()
        self.columns = 0
        self._integer = not relaxed
        self._money: dict[mathopt.Variable, float] = {}
        self._new_money: dict[mathopt.Variable, float] = {}
        self._obtainable = [
            self.model.add_linear_constraint(ub=self._can_be_new(supply))
            for supply in problem.supplies
        ]
        for row in problem.rows:
            self._add_row(row)
        if problem.budget_usd_per_hour is not None:
            self._cap(self._money, problem.budget_usd_per_hour)
        if problem.new_usd_per_hour is not None:
            self._cap(self._new_money, problem.new_usd_per_hour)

    def _can_be_new(self, supply: Supply) -> float:
        held = sum(
            nodes * item.count
            for item in self.problem.running
            for offering, nodes in item.offerings
            if offering == supply.offering
        )
        most = math.inf if supply.obtainable is None else supply.obtainable
        return float(max(0, min(supply.available - held, most)))

    def solve(
        self,
        solver: mathopt.SolverType,
        seconds: float,
        gap: float,
        *,
        stop_at: float | None = None,
    ) -> FullAnswer:
        """Run a general solver on it; HiGHS ends with a plan of at most `stop_at`, if given."""
        params = mathopt.SolveParameters(
            time_limit=timedelta(seconds=seconds), relative_gap_tolerance=gap
        )
        if stop_at is not None:
            params.highs.double_options["objective_target"] = stop_at
        result = mathopt.solve(self.model, solver, params=params)
        reason = result.termination.reason
        found = result.has_primal_feasible_solution()
        impossible = reason is mathopt.TerminationReason.INFEASIBLE
        return FullAnswer(
            feasible=True if found else False if impossible else None,
            objective=result.objective_value() if found else None,
            bound=math.inf if impossible else result.dual_bound(),
            columns=self.columns,
        )

    def _cap(self, money: dict[mathopt.Variable, float], limit: float) -> None:
        cap = self.model.add_linear_constraint(ub=limit)
        for variable, usd in money.items():
            cap.set_coefficient(variable, usd)

    def _add_row(self, row: DemandRow) -> None:
        """The row's own nodes by supply, its new replicas, the running ones, and its limits."""
        money: dict[mathopt.Variable, float] = {}
        supplied: dict[tuple[ZoneKey, str], list[mathopt.Variable]] = defaultdict(list)
        for index, supply in enumerate(self.problem.supplies):
            if supply.available > 0 and (row.supplies is None or index in row.supplies):
                nodes = self.model.add_variable(
                    lb=0, ub=float(supply.available), is_integer=self._integer
                )
                factor = 1 + self.problem.start_cost.get(supply.configuration, 0.0)
                self.model.objective.set_linear_coefficient(nodes, supply.usd_per_hour * factor)
                self._obtainable[index].set_coefficient(nodes, 1)
                money[nodes] = supply.budget_usd_per_hour
                supplied[supply.offering.zone_key, supply.configuration].append(nodes)
        replicas = self._add_templates(row, supplied)
        self._new_money |= money
        replicas |= self._add_running(row, money)
        self._money |= money
        cover = self.model.add_linear_constraint(lb=row.amount)
        count = self.model.add_linear_constraint(
            lb=float(row.min_replicas),
            ub=math.inf if row.max_replicas is None else float(row.max_replicas),
        )
        for variable, throughput in replicas.items():
            cover.set_coefficient(variable, throughput)
            count.set_coefficient(variable, 1)
        if row.max_usd_per_hour is not None:
            self._cap(money, row.max_usd_per_hour)

    def _add_templates(
        self, row: DemandRow, supplied: dict[tuple[ZoneKey, str], list[mathopt.Variable]]
    ) -> dict[mathopt.Variable, float]:
        table = self.library.tables.get(TableKey(row.model, row.phase, row.engine))
        if table is None:
            return {}
        needs: dict[tuple[ZoneKey, str], mathopt.LinearConstraint] = {}
        for place, variables in supplied.items():
            needs[place] = self.model.add_linear_constraint(ub=0)
            for variable in variables:
                needs[place].set_coefficient(variable, -1)
        made: dict[mathopt.Variable, float] = {}
        zones = sorted({zone for zone, _ in supplied})
        for index in range(len(table)):
            if table.throughput[index] <= 0 or table.id(index) in row.denied_templates:
                continue
            nodes = table.nodes(index)
            for zone in zones:
                if all((zone, name) in supplied for name, _ in nodes):
                    variable = self.model.add_variable(lb=0, is_integer=self._integer)
                    self.columns += 1
                    made[variable] = float(table.throughput[index])
                    for name, count in nodes:
                        needs[zone, name].set_coefficient(variable, count)
        return made

    def _add_running(
        self, row: DemandRow, money: dict[mathopt.Variable, float]
    ) -> dict[mathopt.Variable, float]:
        index_of = {supply.offering: i for i, supply in enumerate(self.problem.supplies)}
        made: dict[mathopt.Variable, float] = {}
        for item in self.problem.running:
            places = [(index_of.get(offering, -1), n) for offering, n in item.offerings]
            allowed = row.supplies is None or {i for i, _ in places} <= set(row.supplies)
            if (item.model, item.phase) != (row.model, row.phase) or not allowed:
                continue
            if any(index < 0 for index, _ in places):
                continue
            kept = self.model.add_variable(lb=0, ub=float(item.count), is_integer=self._integer)
            supplies = [(self.problem.supplies[i], n) for i, n in places]
            cost = sum(supply.usd_per_hour * n for supply, n in supplies)
            self.model.objective.set_linear_coefficient(kept, cost)
            money[kept] = sum(supply.budget_usd_per_hour * n for supply, n in supplies)
            made[kept] = item.throughput
        return made
