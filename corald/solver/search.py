"""The decomposition: prices on shared supplies, fleets by row, then integer programs.

Each round prices every row at the same duals; that gives a lower bound of the whole problem and
new fleets for the master program, whose duals price the next round. The plan itself comes from
incumbents that are feasible by construction: heuristics, then two integer programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from corald.solver.duals import Duals
from corald.solver.effort import Effort
from corald.solver.instance import Floats, Instance
from corald.solver.master import Master
from corald.solver.memory import SolverMemory
from corald.solver.plans import Plan, fleets_of, objective, realize, shortfall
from corald.solver.pricing import Fleet, Priced, RowPricer
from corald.solver.primal import SinglesProgram, best_of_fleets, select_singles
from corald.solver.sequential import one_by_one

SMOOTHING = 0.5
UNSERVED = 100.0
"""Cost of leaving a row unserved in the master, in units of the row's own bound."""


@dataclass(slots=True)
class Search:
    """One run on one instance; `plan` and `bound` are valid at any moment."""

    instance: Instance
    effort: Effort
    gap: float
    most_columns: int | None = None
    """Of the program over single templates; None: as many as the effort allows."""
    plan: Plan | None = None
    cost: float = math.inf
    bound: float = 0.0
    """Lower bound of the objective."""
    duals: Duals = field(init=False)
    """Those of the best bound."""
    priced: list[Priced] = field(default_factory=list)
    """The rows at `duals`."""
    fleets: dict[Fleet, None] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    pricers: list[RowPricer] = field(init=False)

    def __post_init__(self) -> None:
        self.pricers = [RowPricer(self.instance, row) for row in self.instance.rows]
        self.duals = Duals.zero(self.instance)

    @property
    def proven(self) -> bool:
        """The plan is within the wanted gap."""
        return math.isfinite(self.cost) and (self.cost - self.bound <= self.gap * self.cost + 1e-9)

    @property
    def servable(self) -> bool:
        """Each row alone can be covered."""
        return all(math.isfinite(priced.bound) for priced in self.priced)

    def offer(self, plan: Plan) -> bool:
        """Take a plan that serves everything and is cheaper than the best so far."""
        if any(shortfall(self.instance, plan)):
            return False
        cost = objective(self.instance, plan)
        if cost >= self.cost - 1e-9:
            return False
        self.plan, self.cost = plan, cost
        for fleet in fleets_of(self.instance, plan):
            self.fleets[fleet] = None
        return True

    def settle(self, plan: Plan) -> None:
        """Take a plan that serves everything whatever it costs; the bound stays."""
        self.plan, self.cost = plan, objective(self.instance, plan)

    def run(self, memory: SolverMemory) -> None:
        """Bound, generate, then search for plans, until proven or out of effort."""
        start, known = memory.recall(self.instance)
        self.fleets |= dict.fromkeys(known)
        self._price(Duals.zero(self.instance))
        if not self.servable:
            return
        if not self.proven and start.supply.any():
            self._price(start)
        if not self.proven:
            self._generate()
        for step in (self._dive, self._choose_fleets, self._choose_singles):
            if not self.proven and not self.effort.over:
                step()
        memory.remember(self.instance, self.duals, list(self.fleets))

    def excesses(self) -> list[Floats]:
        """By row: how much the bound rises if a template is forced in (template x zone)."""
        return [
            pricer.excess(priced) for pricer, priced in zip(self.pricers, self.priced, strict=True)
        ]

    def _price(self, duals: Duals) -> bool:
        """Price all rows; True when a new fleet was found."""
        running_cost = duals.running_costs(self.instance)
        counts = [item.count for item in self.instance.running]
        priced = [
            pricer.price(duals.node_prices(self.instance, row), running_cost, counts)
            for row, pricer in enumerate(self.pricers)
        ]
        bound = duals.relaxed(self.instance) + sum(row.bound for row in priced)
        if bound > self.bound or not self.priced:
            self.bound, self.duals, self.priced = max(self.bound, bound), duals, priced
        found = [row.fleet for row in priced if row.fleet is not None]
        before = len(self.fleets)
        self.fleets |= dict.fromkeys(found)
        if len(found) == len(priced):
            self.offer(realize(self.instance, found))
        return len(self.fleets) > before

    def _generate(self) -> None:
        """Column generation with smoothed duals."""
        costs = [UNSERVED * max(row.bound, 1e-3) for row in self.priced]
        with Master(self.instance, costs) as master:
            share = SMOOTHING
            for _ in range(self.effort.rounds):
                for fleet in self.fleets:
                    master.add(fleet)
                value, duals = master.solve()
                if value - self.bound <= self.gap / 4 * value:
                    break
                found = self._price(self.duals.towards(duals, share))
                if self.proven or self.effort.over or (not found and share == 1.0):
                    break
                share = SMOOTHING if found else 1.0
            self.steps.append("fleets")

    def _dive(self) -> None:
        """Plans row by row at the best duals, each time beginning with another row."""
        for first in range(min(self.effort.dives, len(self.instance.rows))):
            plan = one_by_one(self.instance, duals=self.duals, first=first)
            self.offer(plan)
            for fleet in fleets_of(self.instance, plan):
                if self.pricers[fleet.row].covers(fleet):
                    self.fleets[fleet] = None
            if self.proven or self.effort.over:
                break
        self.steps.append("dives")

    def _choose_fleets(self) -> None:
        plan = best_of_fleets(
            self.instance, self.fleets, self.effort, gap=self.gap, bound=self.bound
        )
        if plan is not None:
            self.offer(plan)
        self.steps.append("fleet program")

    def _choose_singles(self) -> None:
        """An integer program over single templates; if nothing better was left out, a bound too."""
        most = self.effort.columns if self.most_columns is None else self.most_columns
        singles = select_singles(self.excesses(), self.fleets, self.cost - self.bound, most)
        program = SinglesProgram(self.instance, singles)
        program.cover_all()
        plan, bound = program.solve(self.effort, gap=self.gap, bound=self.bound)
        before = self.bound
        if plan is not None:
            self.offer(plan)
        if self.cost - before <= singles.excess:
            self.bound = max(before, min(self.cost, bound))
        self.steps.append("template program")
