"""The named baselines: what simpler ways of choosing would cost on the same problem.

Each is a plan of the same problem, so the solver takes the best of them as its first incumbent.
Rows are planned one after another, each exactly (by the covering knapsack) on what the rows before
it left over; that is the optimum over its templates as long as nothing is scarce.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from corald.solver.duals import Duals
from corald.solver.greedy import greedy
from corald.solver.instance import Instance, Row, capacity, feasible
from corald.solver.plans import Plan, Stock, realize, replicas, throughput
from corald.solver.pricing import COVERED, RowPricer, Still

GREEDY = "greedy"
BEST_ONE_CONFIGURATION = "best-one-configuration"
BEST_ONE_GPU = "best-one-gpu"
_ATTEMPTS = 8


def baselines(instance: Instance) -> dict[str, Plan]:
    """Every named baseline's plan; one that cannot serve all demand serves what it can."""
    return {
        GREEDY: greedy(instance),
        BEST_ONE_CONFIGURATION: best_one_configuration(instance),
        BEST_ONE_GPU: best_one_gpu(instance),
    }


def best_one_configuration(instance: Instance) -> Plan:
    """The best plan whose replicas are each of one configuration."""
    return one_by_one(
        instance,
        [None if row.table is None else row.table.one_configuration for row in instance.rows],
    )


def best_one_gpu(instance: Instance) -> Plan:
    """The best plan whose replicas are each of one GPU type."""
    return one_by_one(
        instance, [None if row.table is None else row.table.one_gpu for row in instance.rows]
    )


def one_by_one(
    instance: Instance,
    allowed: list[NDArray[np.bool_] | None] | None = None,
    *,
    duals: Duals | None = None,
    first: int = 0,
) -> Plan:
    """Rows in order of priority, each at its cheapest on what is left, priced with `duals`.

    `allowed` restricts new replicas by row and template; None allows all. Among rows of one
    priority, row `first` and those after it come first.
    """
    duals = duals or Duals.zero(instance)
    stock = Stock(instance)
    plan = Plan()
    size = len(instance.rows)
    for row in sorted(instance.rows, key=lambda r: (-r.demand.priority, (r.index - first) % size)):
        mine = None if allowed is None else allowed[row.index]
        _plan_row(instance, row, mine, duals, stock, plan)
    return plan


def _plan_row(
    instance: Instance,
    row: Row,
    allowed: NDArray[np.bool_] | None,
    duals: Duals,
    stock: Stock,
    plan: Plan,
) -> None:
    """Take the cheapest fleet; where supplies give out, cover the rest with what is left."""
    still = Still.all_of(row)
    counts = [item.count for item in instance.running]
    running_costs = duals.running_costs(instance)
    for _ in range(_ATTEMPTS):
        left = np.array(stock.left)
        mask = feasible(row.table, capacity(instance, row.group, left)) & row.feasible
        if allowed is not None:
            mask &= allowed[:, None]
        pricer = RowPricer(instance, row, mask=mask, still=still)
        fleet = pricer.price(
            duals.node_prices(instance, row.index, left), running_costs, counts
        ).fleet
        if fleet is None:
            return
        part = realize(instance, [fleet], stock)
        plan.new += part.new
        plan.kept += part.kept
        for item, count in fleet.kept:
            counts[item] -= count
        taken = replicas(instance, part)[row.index]
        still = Still(
            max(0.0, still.amount - throughput(instance, part)[row.index]),
            max(0, still.at_least - taken),
            None if still.at_most is None else still.at_most - taken,
        )
        if not taken or (still.amount <= row.demand.amount * (1 - COVERED) and not still.at_least):
            return
