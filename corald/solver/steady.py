"""Keeping what runs: where changing the fleet saves nothing, or less than is asked for."""

from __future__ import annotations

from corald.solver.greedy import keep_running, repair, trim
from corald.solver.instance import Instance
from corald.solver.plans import Plan, Stock, objective, part_of, score, shortfall
from corald.solver.sequential import one_by_one

SAME = 1e-6
"""Relative; costs that differ by less are equal."""


def stay(instance: Instance) -> Plan:
    """All that runs, with the cheapest that is missing added and what is not needed dropped."""
    running = keep_running(instance)
    if not running.kept:
        return one_by_one(instance)
    completed = one_by_one(instance, start=running)
    trim(instance, completed)
    return min((completed, repair(instance, running)), key=lambda plan: score(instance, plan))


def steady(instance: Instance, best: Plan, staying: Plan, min_saving: float) -> Plan:
    """`staying` if it keeps more and costs at most the share `min_saving` more than `best`.

    Otherwise `best`, in which each row keeps what runs where that costs the same.
    """
    cost = objective(instance, best)
    if any(shortfall(instance, staying)) or _kept(instance, staying) <= _kept(instance, best):
        return best
    if objective(instance, staying) <= cost * (1 + max(min_saving, SAME)) + 1e-9:
        return staying
    for row in instance.rows:
        mine, other = part_of(best, row), part_of(staying, row)
        change = objective(instance, other) - objective(instance, mine)
        if mine != other and change <= SAME * cost:
            changed = Plan(best.new - mine.new + other.new, best.kept - mine.kept + other.kept)
            best = changed if _fits(instance, changed) else best
    return best


def _kept(instance: Instance, plan: Plan) -> float:
    """USD/h of what goes on running, in whole cents."""
    usd = sum(instance.running[item].usd_per_hour * count for item, count in plan.kept.items())
    return round(usd, 2)


def _fits(instance: Instance, plan: Plan) -> bool:
    """Nodes and money suffice for the whole plan."""
    stock = Stock(instance)
    kept = all(stock.keep(item) for item, count in plan.kept.items() for _ in range(count))
    return kept and all(
        stock.take_uses(placed.row, placed.uses) is not None
        for placed, count in plan.new.items()
        for _ in range(count)
    )
