"""The part that master and primal models share: which supply each node comes from.

Variables x[g, o] ≥ 0 (nodes of group g taken from supply o), and rows

    need[g, z, c]:  Σ nodes of (z, c) in chosen replicas of group g - Σ_{o of (z, c)} x[g, o] ≤ 0
    available[o]:   Σ_g x[g, o] ≤ nodes of o that can be had new
    budget, row budgets:  Σ b_o · (new and kept nodes) ≤ limit;  new budget: Σ b_o x[g, o] ≤ limit

so replicas need not be multiplied by the ways to mix offerings in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from ortools.math_opt.python import mathopt

from corald.solver.duals import Duals
from corald.solver.instance import Instance
from corald.solver.pricing import Fleet


@dataclass(frozen=True, slots=True)
class Demanded:
    """What one unit of a column takes: nodes by (zone, configuration), kept items; its row."""

    row: int
    nodes: tuple[tuple[int, int, int], ...]
    """(zone, configuration, nodes)."""
    kept: tuple[tuple[int, int], ...]
    """(running item, count)."""

    @classmethod
    def by_fleet(cls, instance: Instance, fleet: Fleet) -> Demanded:
        table = instance.rows[fleet.row].table
        nodes: dict[tuple[int, int], int] = {}
        for template, zone, count in fleet.new:
            if table is not None:
                for column in table.counts[template].nonzero()[0].tolist():
                    need = int(table.counts[template, column]) * count
                    nodes[zone, column] = nodes.get((zone, column), 0) + need
        return cls(fleet.row, tuple((z, c, n) for (z, c), n in sorted(nodes.items())), fleet.kept)


class SupplyRows:
    """Adds the shared rows to a model, and columns to these rows."""

    def __init__(self, instance: Instance, model: mathopt.Model, *, integer: bool) -> None:
        self.instance, self.model, self.integer = instance, model, integer
        self.available: dict[int, mathopt.LinearConstraint] = {}
        """Of the supplies that some column may take nodes from."""
        self.budget = self._cap(instance.problem.budget_usd_per_hour)
        self.new_budget = self._cap(instance.problem.new_usd_per_hour)
        self.row_budget = [self._cap(row.demand.max_usd_per_hour) for row in instance.rows]
        self._need: dict[tuple[int, int, int], mathopt.LinearConstraint] = {}
        self.taken: dict[tuple[int, int], mathopt.Variable] = {}

    def _cap(self, limit: float | None) -> mathopt.LinearConstraint | None:
        return None if limit is None else self.model.add_linear_constraint(ub=limit)

    def add(self, column: mathopt.Variable, demanded: Demanded) -> None:
        """Enter a column; its own cost is that of the kept replicas only."""
        group = self.instance.rows[demanded.row].group
        for zone, configuration, nodes in demanded.nodes:
            need = self._need_row(group, demanded.row, zone, configuration)
            need.set_coefficient(column, float(nodes))
        uses: dict[int, int] = {}
        cost = 0.0
        for item, count in demanded.kept:
            cost += self.instance.running[item].usd_per_hour * count
            for supply, nodes in self.instance.running[item].uses:
                uses[supply] = uses.get(supply, 0) + nodes * count
        self._pay(column, uses, (self.budget, self.row_budget[demanded.row]))
        self.model.objective.set_linear_coefficient(column, cost)

    def _need_row(
        self, group: int, row: int, zone: int, configuration: int
    ) -> mathopt.LinearConstraint:
        key = (group, zone, configuration)
        if key not in self._need:
            self._need[key] = self.model.add_linear_constraint(ub=0.0)
            for supply in self.instance.groups[group].offers[zone][configuration]:
                self._take(group, row, supply, self._need[key])
        return self._need[key]

    def _take(self, group: int, row: int, supply: int, need: mathopt.LinearConstraint) -> None:
        # In a linear program a bound would take the dual value away from the row `available`.
        ub = float(self.instance.available[supply]) if self.integer else math.inf
        taken = self.model.add_variable(lb=0.0, ub=ub, is_integer=self.integer)
        self.taken[group, supply] = taken
        need.set_coefficient(taken, -1.0)
        if supply not in self.available:
            most = float(self.instance.available[supply])
            self.available[supply] = self.model.add_linear_constraint(ub=most)
        self.available[supply].set_coefficient(taken, 1.0)
        self._pay(taken, {supply: 1}, (self.budget, self.new_budget, self.row_budget[row]))
        cost = float(self.instance.new_cost[supply])
        self.model.objective.set_linear_coefficient(taken, cost)

    def _pay(
        self,
        column: mathopt.Variable,
        uses: Mapping[int, int],
        caps: Iterable[mathopt.LinearConstraint | None],
    ) -> None:
        """Enter a column's money in the caps; a row with its own cap has a group of its own."""
        usd = sum(float(self.instance.budget_price[s]) * nodes for s, nodes in uses.items())
        for cap in caps:
            if cap is not None and usd:
                cap.set_coefficient(column, usd)

    def duals(self, result: mathopt.SolveResult) -> Duals:
        """The rows' duals in a solved linear program, clipped to ≤ 0."""
        value = result.dual_values()

        def dual(cap: mathopt.LinearConstraint | None) -> float:
            return 0.0 if cap is None else min(0.0, value[cap])

        supply = np.zeros(len(self.instance.available))
        for index, row in self.available.items():
            supply[index] = dual(row)
        return Duals(
            supply=supply,
            budget=dual(self.budget),
            new_budget=dual(self.new_budget),
            row_budget=np.array([dual(cap) for cap in self.row_budget], dtype=np.float64),
        )
