"""Integer programs that turn generated fleets and good single templates into plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.math_opt.python import mathopt

from corald.solver.effort import Effort
from corald.solver.instance import Floats, Instance
from corald.solver.mip import MipAnswer, costs_at_least, solve_mip
from corald.solver.plans import Plan, Stock, realize
from corald.solver.pricing import Fleet
from corald.solver.supply import Demanded, SupplyRows

FLEETS_SHARE = 0.3
SINGLES_SHARE = 0.9
"""Of the time left."""


Column = tuple[int, int, int]
"""(row, template, zone)."""


@dataclass(frozen=True, slots=True)
class Singles:
    """The candidates of a restricted program."""

    columns: tuple[Column, ...]
    excess: float
    """Every candidate whose excess is at most this is among them."""


def best_of_fleets(
    instance: Instance, fleets: Iterable[Fleet], effort: Effort, *, gap: float, bound: float
) -> Plan | None:
    """Choose one fleet for each row, knowing that no plan costs less than `bound`."""
    model = mathopt.Model()
    supply = SupplyRows(instance, model, integer=True)
    choose = [model.add_linear_constraint(lb=1.0, ub=1.0) for _ in instance.rows]
    chosen: dict[Fleet, mathopt.Variable] = {}
    for fleet in sorted(fleets):
        chosen[fleet] = model.add_binary_variable()
        choose[fleet.row].set_coefficient(chosen[fleet], 1.0)
        supply.add(chosen[fleet], Demanded.by_fleet(instance, fleet))
    costs_at_least(model, bound)
    answer = solve_mip(model, effort, gap=gap, share=FLEETS_SHARE)
    if answer.values is None:
        return None
    picked = [fleet for fleet, variable in chosen.items() if answer.count(variable)]
    return _realize(instance, picked, supply, answer)


def select_singles(
    excess: Sequence[Floats], fleets: Iterable[Fleet], room: float, most: int
) -> Singles:
    """The candidates that raise the bound least when forced in, and those of the fleets.

    A candidate whose excess is above `room` (best known cost - bound) is in no better plan, so
    when `Singles.excess` ≥ `room` the restricted program loses nothing.
    """
    columns = {(f.row, t, z) for f in fleets for t, z, _ in f.new}
    within = [part[np.isfinite(part) & (part <= room)] for part in excess]
    flat = np.concatenate([np.zeros(0), *within])
    if len(flat) > most:
        room = float(np.nextafter(np.partition(flat, most)[most], -np.inf))
    for row, part in enumerate(excess):
        near = np.isfinite(part) & (part <= room)
        columns |= {(row, int(t), int(z)) for t, z in np.argwhere(near)}
    return Singles(tuple(sorted(columns)), room)


def select_for_service(
    instance: Instance,
    excess: Sequence[Floats],
    costs: Sequence[Floats],
    fleets: Iterable[Fleet],
    most: int,
) -> Singles:
    """Candidates to serve as much as possible: by row the best, and each zone's frontier."""
    columns = {(f.row, t, z) for f in fleets for t, z, _ in f.new}
    share = most // max(1, len(instance.rows))
    for row, (part, cost) in enumerate(zip(excess, costs, strict=True)):
        best = np.argsort(part, axis=None, kind="stable")[:share]
        columns |= {
            (row, int(t), int(z))
            for t, z in zip(*np.unravel_index(best, part.shape), strict=True)
            if np.isfinite(part[t, z])
        }
        for zone in range(cost.shape[1]):
            later = np.append(np.minimum.accumulate(cost[::-1, zone])[::-1][1:], np.inf)
            frontier = np.flatnonzero(cost[:, zone] < later)
            columns |= {(row, int(t), zone) for t in frontier}
    return Singles(tuple(sorted(columns)), -np.inf)


class SinglesProgram:
    """An integer program over single templates: one variable for a (row, template, zone)."""

    def __init__(self, instance: Instance, singles: Singles) -> None:
        self.instance = instance
        self.model = mathopt.Model()
        self.supply = SupplyRows(instance, self.model, integer=True)
        self.new: dict[Column, mathopt.Variable] = {}
        self.kept: list[mathopt.Variable] = []
        self.covers: list[dict[mathopt.Variable, float]] = [{} for _ in instance.rows]
        for row, template, zone in singles.columns:
            self._add_new(row, template, zone)
        for item in instance.running:
            variable = self.model.add_integer_variable(lb=0.0, ub=float(item.count))
            self.kept.append(variable)
            self.supply.add(variable, Demanded(item.row, (), ((item.index, 1),)))
            self.covers[item.row][variable] = item.throughput
        for limited in instance.rows:
            most = limited.demand.max_replicas
            if most is not None:
                limit = self.model.add_linear_constraint(ub=float(most))
                for variable in self.covers[limited.index]:
                    limit.set_coefficient(variable, 1.0)

    def _add_new(self, row: int, template: int, zone: int) -> None:
        variable = self.model.add_integer_variable(lb=0.0)
        self.new[row, template, zone] = variable
        fleet = Fleet(row, ((template, zone, 1),), ())
        self.supply.add(variable, Demanded.by_fleet(self.instance, fleet))
        table = self.instance.rows[row].table
        if table is not None:
            self.covers[row][variable] = float(table.throughput[template])

    def cover_all(self) -> None:
        """Require every row's amount and minimum, in shares of the amount."""
        for row in self.instance.rows:
            demand = row.demand
            if demand.amount > 0:
                cover = self.model.add_linear_constraint(lb=1.0)
                for variable, throughput in self.covers[row.index].items():
                    cover.set_coefficient(variable, throughput / demand.amount)
            if demand.min_replicas > 0:
                least = self.model.add_linear_constraint(lb=float(demand.min_replicas))
                for variable in self.covers[row.index]:
                    least.set_coefficient(variable, 1.0)

    def solve(self, effort: Effort, *, gap: float, bound: float) -> tuple[Plan | None, float]:
        """(plan, proven bound of this program), knowing that no plan costs less than `bound`."""
        costs_at_least(self.model, bound)
        answer = solve_mip(self.model, effort, gap=gap, share=SINGLES_SHARE)
        if answer.values is None:
            return None, answer.bound
        return self.plan(answer), answer.bound

    def plan(self, answer: MipAnswer) -> Plan:
        """Read the counts and hand out the supplies that the answer chose."""
        new: list[list[tuple[int, int, int]]] = [[] for _ in self.instance.rows]
        for (row, template, zone), variable in self.new.items():
            if count := answer.count(variable):
                new[row].append((template, zone, count))
        kept: list[list[tuple[int, int]]] = [[] for _ in self.instance.rows]
        for item, variable in zip(self.instance.running, self.kept, strict=True):
            if count := answer.count(variable):
                kept[item.row].append((item.index, count))
        fleets = [
            Fleet(row.index, tuple(new[row.index]), tuple(kept[row.index]))
            for row in self.instance.rows
        ]
        return _realize(self.instance, fleets, self.supply, answer)


def _realize(
    instance: Instance, fleets: Sequence[Fleet], supply: SupplyRows, answer: MipAnswer
) -> Plan:
    """Hand out nodes group by group, each from what the answer took for that group."""
    plan = Plan()
    for group in range(len(instance.groups)):
        left = np.zeros(len(instance.available), dtype=np.int64)
        for (owner, index), variable in supply.taken.items():
            if owner == group:
                left[index] = answer.count(variable)
        members = [f for f in fleets if instance.rows[f.row].group == group]
        part = realize(instance, members, Stock(instance, left.tolist()))
        plan.new += part.new
        plan.kept += part.kept
    return plan
