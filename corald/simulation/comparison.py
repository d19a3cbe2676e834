"""What simpler ways of choosing would cost in the same world at the same moment.

A baseline is planned from an empty fleet and without start costs, so at every moment it is as good
as it could ever be: it neither pays for its past nor for changing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from corald.library import Library, TableKey
from corald.model.events import Event, Solved
from corald.model.plan import Solve
from corald.model.problem import DemandRow, Problem, SolveStatus
from corald.plugin import Clock
from corald.runtime.ports import Solving
from corald.solver.baselines import BEST_ONE_GPU, GREEDY
from corald.solver.greedy import greedy
from corald.solver.instance import compile_instance
from corald.solver.memory import SolverMemory
from corald.solver.plans import shortfall, usd_per_hour
from corald.solver.solve import solve
from corald.solver.tables import PreparedLibrary

NO_TIME_LIMIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class BaselineCost:
    """A baseline's plan of one moment."""

    usd_per_hour: float
    serves_all: bool
    """False: it cannot serve all demand with what is for sale; the cost is that of its part."""


class Comparison:
    """Plans the baselines of problems over one library."""

    def __init__(self, library: Library, *, work_limit: int) -> None:
        self._library = PreparedLibrary(library)
        self._work_limit = work_limit
        self._memory = SolverMemory()
        self._mixed: dict[TableKey, frozenset[str]] = {}

    def costs(self, problem: Problem) -> Mapping[str, BaselineCost]:
        """Plan each baseline for the demand and supply of `problem`."""
        supplies = tuple(replace(supply, obtainable=None) for supply in problem.supplies)
        empty = replace(
            problem, running=(), supplies=supplies, start_cost={}, new_usd_per_hour=None
        )
        return {GREEDY: self._greedy(empty), BEST_ONE_GPU: self._best_one_gpu(empty)}

    def _greedy(self, problem: Problem) -> BaselineCost:
        instance = compile_instance(problem, self._library)
        plan = greedy(instance)
        return BaselineCost(usd_per_hour(instance, plan), not any(shortfall(instance, plan)))

    def _best_one_gpu(self, problem: Problem) -> BaselineCost:
        """Solve as well as we can, with the templates that mix GPU types left out."""
        rows = tuple(
            replace(row, denied_templates=row.denied_templates | self._mixing(row))
            for row in problem.rows
        )
        _, report = solve(
            replace(problem, rows=rows),
            self._library,
            deadline=NO_TIME_LIMIT_SECONDS,
            clock=lambda: 0.0,
            work_limit=self._work_limit,
            memory=self._memory,
        )
        return BaselineCost(report.usd_per_hour, report.status is not SolveStatus.SCALED)

    def _mixing(self, row: DemandRow) -> frozenset[str]:
        """Name the row's templates that mix GPU types."""
        key = TableKey(row.model, row.phase, row.engine)
        if key not in self._mixed and (table := self._library.table(key)) is not None:
            mixing = np.flatnonzero(~table.one_gpu).tolist()
            self._mixed[key] = frozenset(table.id(index) for index in mixing)
        return self._mixed.get(key, frozenset())


class ComparingSolving:
    """Solves as `inner` does, and now and then plans the baselines for what was solved.

    It begins when every model has demand: before, there is nothing to compare.
    """

    def __init__(
        self, inner: Solving, comparison: Comparison, clock: Clock, *, every_seconds: float
    ) -> None:
        self._inner = inner
        self._comparison = comparison
        self._clock = clock
        self._every_seconds = every_seconds
        self._due_at = float("-inf")
        self.costs: Mapping[str, BaselineCost] = {}
        self.plan_usd_per_hour = 0.0
        """Of the plan that the costs are compared with: the one of the same problem."""

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        event = await self._inner.solve(request, deadline_seconds=deadline_seconds)
        due = self._clock.now() >= self._due_at and all(r.amount > 0 for r in request.problem.rows)
        if isinstance(event, Solved) and due:
            self._due_at = self._clock.now() + self._every_seconds
            self.plan_usd_per_hour = event.report.usd_per_hour
            self.costs = self._comparison.costs(request.problem)
        return event

    async def close(self) -> None:
        await self._inner.close()
