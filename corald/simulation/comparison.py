"""What the named baselines would cost in the same world at the same moment.

A baseline is planned from an empty fleet and without start costs, so at every moment it is as good
as it could ever be: it neither pays for its past nor for changing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from corald.library import Library
from corald.model.events import Event, Solved
from corald.model.plan import Solve
from corald.model.problem import Problem
from corald.runtime.ports import Solving
from corald.solver.baselines import BEST_ONE_GPU, GREEDY, baselines
from corald.solver.instance import compile_instance
from corald.solver.plans import shortfall, usd_per_hour
from corald.solver.tables import PreparedLibrary

COMPARED = (GREEDY, BEST_ONE_GPU)


@dataclass(frozen=True, slots=True)
class BaselineCost:
    """A baseline's plan of one moment."""

    usd_per_hour: float
    serves_all: bool
    """False: it cannot serve all demand with what is for sale; the cost is that of its part."""


def baseline_costs(problem: Problem, library: PreparedLibrary) -> Mapping[str, BaselineCost]:
    """Plan the compared baselines for the demand and supply of `problem`."""
    instance = compile_instance(replace(problem, running=(), start_cost={}), library)
    plans = baselines(instance)
    return {
        name: BaselineCost(
            usd_per_hour(instance, plans[name]), not any(shortfall(instance, plans[name]))
        )
        for name in COMPARED
    }


class ComparingSolving:
    """Solves as `inner` does, and plans the baselines for every problem that was solved."""

    def __init__(self, inner: Solving, library: Library) -> None:
        self._inner = inner
        self._library = PreparedLibrary(library)
        self.costs: Mapping[str, BaselineCost] = {}
        """Of the problem solved last."""

    async def solve(self, request: Solve, *, deadline_seconds: float) -> Event:
        event = await self._inner.solve(request, deadline_seconds=deadline_seconds)
        if isinstance(event, Solved):
            self.costs = baseline_costs(request.problem, self._library)
        return event

    async def close(self) -> None:
        await self._inner.close()
