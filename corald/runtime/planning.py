"""One plan without acting on it: read the clouds, solve, and say what would change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corald.core.engine import Engine
from corald.core.status import plan_rows
from corald.model.events import Event, FleetObserved, OfferingsObserved, Solved, SolveFailed
from corald.model.plan import PlanRow, Solve
from corald.model.problem import SolveReport
from corald.plugin import Clock, Provider
from corald.runtime.ports import Solving


@dataclass(frozen=True, slots=True)
class PlannedOnce:
    """A plan, or why there is none."""

    rows: tuple[PlanRow, ...]
    report: SolveReport | None
    waiting: str


async def plan_once(
    engine: Engine,
    *,
    providers: Mapping[str, Provider],
    solving: Solving,
    clock: Clock,
    events: Iterable[Event] = (),
) -> PlannedOnce:
    """Show what the engine would do now; only reads reach the clouds, nothing is stored.

    Raises:
        ProviderError: a cloud could not be read.
    """
    for name, provider in providers.items():
        offerings, quotas = await provider.offerings(), await provider.quotas()
        engine.apply(
            OfferingsObserved(name, tuple(offerings), tuple(quotas), clock.now()), clock.now()
        )
        asked_at = clock.now()
        listing = await provider.list_instances()
        engine.apply(FleetObserved(name, listing, asked_at), clock.now())
    for event in events:
        engine.apply(event, clock.now())
    solves = [i for i in engine.decide(clock.now()) if isinstance(i, Solve)]
    if not solves:
        return PlannedOnce((), None, engine.state.waiting)
    deadline = engine.state.policies.rules.solver_deadline_seconds
    answer = await solving.solve(solves[0], deadline_seconds=deadline)
    if isinstance(answer, SolveFailed):
        return PlannedOnce((), None, answer.message)
    if isinstance(answer, Solved):
        engine.apply(answer, clock.now())
    return PlannedOnce(plan_rows(engine.state), engine.state.report, "")
