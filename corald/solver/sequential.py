"""Rows planned one after another, each at its cheapest on what the rows before it left over."""

from __future__ import annotations

import numpy as np

from corald.solver.duals import Duals
from corald.solver.instance import Floats, Instance, Row, capacity, feasible
from corald.solver.plans import (
    Placed,
    Plan,
    Stock,
    part_of,
    realize,
    replicas,
    stock_after,
    throughput,
)
from corald.solver.pricing import COVERED, Fleet, RowPricer, Still, Surcharge

_PASSES = 12
"""By row; the last takes the fleet whatever it costs."""
_DEARER = 1e-4
"""Relative; what a replica may cost beyond the price it was chosen at."""


def one_by_one(
    instance: Instance,
    *,
    duals: Duals | None = None,
    first: int = 0,
    start: Plan | None = None,
) -> Plan:
    """Rows in order of priority, priced with `duals`; what `start` has stays.

    Among rows of one priority, row `first` and those after it come first.
    """
    duals = duals or Duals.zero(instance)
    plan = Plan() if start is None else start.copy()
    stock = stock_after(instance, plan)
    size = len(instance.rows)
    for row in sorted(instance.rows, key=lambda r: (-r.demand.priority, (r.index - first) % size)):
        _plan_row(instance, row, duals, stock, plan)
    return plan


def _plan_row(instance: Instance, row: Row, duals: Duals, stock: Stock, plan: Plan) -> None:
    """Take of the cheapest fleet what can be had at its price, and plan the rest anew."""
    part = part_of(plan, row)
    still = _without(Still.all_of(row), instance, row, part)
    counts = [item.count - plan.kept[item.index] for item in instance.running]
    running_costs = duals.running_costs(instance)
    reduced = duals.supply_prices(instance, row.index)
    for turn in range(_PASSES):
        if still.amount <= row.demand.amount * (1 - COVERED) and still.at_least <= 0:
            return
        left = np.array(stock.left)
        mask = feasible(row.table, capacity(instance, row.group, left)) & row.feasible
        prices = duals.node_prices(instance, row.index, left)
        surcharges = _surcharges(instance, row, stock, prices, reduced)
        pricer = RowPricer(instance, row, mask=mask, still=still)
        priced = pricer.price(prices, running_costs, counts, surcharges)
        if priced.fleet is None:
            return
        limit = priced.cost * (1 + _DEARER) if turn < _PASSES - 1 else None
        part = _take(instance, priced.fleet, stock, reduced, limit)
        plan.new += part.new
        plan.kept += part.kept
        for item, count in part.kept.items():
            counts[item] -= count
        if not part.new and not part.kept:
            return
        still = _without(still, instance, row, part)


def _without(still: Still, instance: Instance, row: Row, part: Plan) -> Still:
    """What is to be covered beside these replicas of the row."""
    count = replicas(instance, part)[row.index]
    return Still(
        max(0.0, still.amount - throughput(instance, part)[row.index]),
        max(0, still.at_least - count),
        None if still.at_most is None else still.at_most - count,
    )


def _take(
    instance: Instance, fleet: Fleet, stock: Stock, reduced: Floats, limit: Floats | None
) -> Plan:
    """Replicas of the fleet, as long as none costs more than its `limit` (template x zone)."""
    plan = realize(instance, [Fleet(fleet.row, (), fleet.kept)], stock)
    for template, zone, count in fleet.new:
        for _ in range(count):
            uses = stock.find_nodes(fleet.row, template, zone)
            if uses is None:
                break
            usd = sum(float(reduced[supply]) * nodes for supply, nodes in uses)
            if limit is not None and usd > limit[template, zone]:
                break
            if stock.take_uses(fleet.row, uses) is None:
                break
            plan.new[Placed(fleet.row, template, zone, uses)] += 1
    return plan


def _surcharges(
    instance: Instance, row: Row, stock: Stock, prices: Floats, reduced: Floats
) -> list[Surcharge]:
    """Where the cheapest supply has too few nodes left for some replica: what the others cost."""
    found: list[Surcharge] = []
    if row.table is None:
        return found
    for column, most in enumerate(row.table.largest.tolist()):
        for zone, offers in enumerate(instance.groups[row.group].offers):
            free = [supply for supply in offers[column] if stock.left[supply] > 0]
            if len(free) > 1 and stock.left[free[0]] < most:
                nodes = np.repeat(reduced[free], [min(stock.left[s], most) for s in free])[:most]
                usd = np.full(most + 1, np.inf)
                usd[: len(nodes) + 1] = np.append(0.0, np.cumsum(nodes - prices[zone, column]))
                found.append((zone, column, usd))
    return found
