"""The named baselines: what simpler ways of choosing would cost on the same problem.

Each is a plan of the same problem and an incumbent of the search, so the best plan found is dearer
than none of them. A baseline's rule is about what it starts; what runs it may keep, whatever it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from corald.solver.effort import Effort
from corald.solver.greedy import greedy
from corald.solver.instance import Instance
from corald.solver.memory import SolverMemory
from corald.solver.plans import Plan
from corald.solver.search import Search
from corald.solver.sequential import one_by_one
from corald.solver.tables import PreparedTable

GREEDY = "greedy"
BEST_ONE_CONFIGURATION = "best-one-configuration"
BEST_ONE_GPU = "best-one-gpu"
_RULES: Mapping[str, Callable[[PreparedTable], NDArray[np.bool_]]] = {
    BEST_ONE_GPU: lambda table: table.one_gpu,
    BEST_ONE_CONFIGURATION: lambda table: table.one_configuration,
}
"""Which templates a baseline may start; each allows no more than the one before it."""
_GAP = 0.01
"""How near a baseline comes to the best of its kind, unless the work limit ends it before."""
_WORK = 3
"""Units of work for the best plan of a kind."""


def quick_baselines(instance: Instance) -> dict[str, Plan]:
    """Every baseline's plan, row by row; one that cannot serve all demand serves what it can.

    `greedy` buys too much by design. Of the others a better plan may exist where supplies lack.
    """
    plans: dict[str, Plan] = {}
    plan: Plan | None = None
    for name in _RULES:
        rule = rule_of(instance, name)
        if plan is None or not _obeys(rule, plan):
            plan = one_by_one(rule)
        plans[name] = plan
    return {GREEDY: greedy(instance)} | plans


def best_baselines(search: Search, plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """Those of `quick_baselines`, the best of their kind within the gap or a small work limit.

    `search` has ended: its bound holds for a baseline too, and its plan may be one.
    """
    known = [plan for plan in (search.plan, *plans.values()) if plan is not None]
    best = dict(plans)
    for name in _RULES:
        rule = rule_of(search.instance, name)
        if search.plan is None or not _obeys(rule, search.plan):
            search = _restricted(search, rule, known)
        if search.plan is not None:
            best[name] = search.plan
            known.append(search.plan)
        elif math.isinf(search.bound):
            break  # what no template of a kind can serve, no template of a narrower kind can
    return best


def _restricted(wider: Search, rule: Instance, known: Iterable[Plan]) -> Search:
    effort = Effort(wider.effort.clock, wider.effort.ends_at, _WORK)
    search = Search(rule, effort, max(wider.gap, _GAP), bound=wider.bound)
    for plan in known:
        if _obeys(rule, plan):
            search.offer(plan)
    if not search.proven and not effort.over:
        memory = SolverMemory()
        memory.remember(wider.instance, wider.duals, list(wider.fleets))
        search.run(memory)
    return search


def _obeys(rule: Instance, plan: Plan) -> bool:
    """No replica is started that the rule forbids."""
    return all(rule.rows[p.row].feasible[p.template, p.zone] for p in plan.new)


def rule_of(instance: Instance, name: str) -> Instance:
    """The instance in which replicas that break the baseline's rule cannot be started."""
    rows = [
        row
        if row.table is None
        else replace(row, feasible=row.feasible & _RULES[name](row.table)[:, None])
        for row in instance.rows
    ]
    return replace(instance, rows=tuple(rows))
