"""A concrete plan: which replica takes which nodes from which supplies, and what it costs.

`Stock` hands out nodes while respecting availability and budgets, so a plan made with it is
feasible by construction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from corald.model.problem import Allocation, Choice, OfferingCounts, RowOutcome
from corald.solver.instance import Instance, Row, Uses
from corald.solver.pricing import COVERED, TOLERANCE, Fleet


@dataclass(frozen=True, slots=True, order=True)
class Placed:
    """One new replica: a template in a zone on certain supplies."""

    row: int
    template: int
    zone: int
    uses: Uses


@dataclass(slots=True)
class Plan:
    """Counts of new and of kept replicas."""

    new: Counter[Placed] = field(default_factory=Counter)
    kept: Counter[int] = field(default_factory=Counter)
    """By running item."""

    def copy(self) -> Plan:
        return Plan(self.new.copy(), self.kept.copy())


def objective(instance: Instance, plan: Plan) -> float:
    """Cost with start costs: new nodes at p·(1+K), kept ones at p."""
    new = sum(
        float(instance.new_cost[supply]) * nodes * count
        for placed, count in plan.new.items()
        for supply, nodes in placed.uses
    )
    return new + sum(instance.running[i].usd_per_hour * n for i, n in plan.kept.items())


def usd_per_hour(instance: Instance, plan: Plan) -> float:
    """What the plan's machines cost at present prices."""
    new = sum(
        float(instance.price[supply]) * nodes * count
        for placed, count in plan.new.items()
        for supply, nodes in placed.uses
    )
    return new + sum(instance.running[i].usd_per_hour * n for i, n in plan.kept.items())


def throughput(instance: Instance, plan: Plan) -> list[float]:
    """By row."""
    served = [0.0] * len(instance.rows)
    for placed, count in plan.new.items():
        table = instance.rows[placed.row].table
        if table is not None:
            served[placed.row] += float(table.throughput[placed.template]) * count
    for item, count in plan.kept.items():
        served[instance.running[item].row] += instance.running[item].throughput * count
    return served


def replicas(instance: Instance, plan: Plan) -> list[int]:
    """By row."""
    counts = [0] * len(instance.rows)
    for placed, count in plan.new.items():
        counts[placed.row] += count
    for item, count in plan.kept.items():
        counts[instance.running[item].row] += count
    return counts


def shortfall(instance: Instance, plan: Plan) -> tuple[float, ...]:
    """How much is missing, highest priority first: each the sum of its rows' missing shares.

    A missing minimum of replicas counts like demand. All zeros: the plan serves everything.
    """
    missing: dict[int, float] = {}
    served, counts = throughput(instance, plan), replicas(instance, plan)
    for row in instance.rows:
        demand = row.demand
        share = 0.0
        if served[row.index] < demand.amount * COVERED:
            share = 1.0 - served[row.index] / demand.amount
        if counts[row.index] < demand.min_replicas:
            share += 1.0 - counts[row.index] / demand.min_replicas
        missing[demand.priority] = missing.get(demand.priority, 0.0) + share
    return tuple(round(missing[priority], 9) for priority in sorted(missing, reverse=True))


def score(instance: Instance, plan: Plan) -> tuple[tuple[float, ...], float]:
    """Compare plans of one instance: less missing first, then less cost."""
    return shortfall(instance, plan), objective(instance, plan)


class Stock:
    """What is left to take: nodes by supply, and money under the caps."""

    def __init__(self, instance: Instance, left: Sequence[int] | None = None) -> None:
        self.instance = instance
        self.left: list[int] = instance.available.tolist() if left is None else list(left)
        self.budget = _limit(instance.problem.budget_usd_per_hour)
        self.new_budget = _limit(instance.problem.new_usd_per_hour)
        self.row_budget = [_limit(row.demand.max_usd_per_hour) for row in instance.rows]

    def find_nodes(self, row: int, template: int, zone: int) -> Uses | None:
        """Nodes for one new replica, the cheapest first; None if some lack."""
        instance = self.instance
        table = instance.rows[row].table
        if table is None:
            return None
        offers = instance.groups[instance.rows[row].group].offers[zone]
        uses: list[tuple[int, int]] = []
        for column in table.counts[template].nonzero()[0].tolist():
            need = int(table.counts[template, column])
            for supply in offers[column]:
                part = min(need, self.left[supply])
                if part > 0:
                    uses.append((supply, part))
                    need -= part
            if need > 0:
                return None
        return tuple(sorted(uses))

    def take_nodes(self, row: int, template: int, zone: int) -> Uses | None:
        """Take what `find_nodes` finds; None (and nothing taken) if nodes or money lack."""
        uses = self.find_nodes(row, template, zone)
        return None if uses is None else self.take_uses(row, uses)

    def take_uses(self, row: int, uses: Uses) -> Uses | None:
        """Exactly these nodes for a new replica, or None."""
        usd = self._usd(uses)
        if usd > min(self.budget, self.new_budget, self.row_budget[row]) or any(
            self.left[supply] < nodes for supply, nodes in uses
        ):
            return None
        self.budget -= usd
        self.new_budget -= usd
        self.row_budget[row] -= usd
        for supply, nodes in uses:
            self.left[supply] -= nodes
        return uses

    def can_keep(self, item: int) -> bool:
        """One more running replica fits under the caps; its nodes are its own."""
        running = self.instance.running[item]
        return self._usd(running.uses) <= min(self.budget, self.row_budget[running.row])

    def keep(self, item: int) -> bool:
        """Pay for one running replica; False when a cap forbids it."""
        if not self.can_keep(item):
            return False
        running = self.instance.running[item]
        self.budget -= self._usd(running.uses)
        self.row_budget[running.row] -= self._usd(running.uses)
        return True

    def _usd(self, uses: Uses) -> float:
        return sum(float(self.instance.budget_price[supply]) * n for supply, n in uses)


def _limit(cap: float | None) -> float:
    return math.inf if cap is None else cap * (1 + TOLERANCE)


def stock_after(instance: Instance, plan: Plan) -> Stock:
    """What is left when the plan's replicas have their nodes."""
    stock = Stock(instance)
    for item, count in plan.kept.items():
        for _ in range(count):
            stock.keep(item)
    for placed, count in plan.new.items():
        for _ in range(count):
            stock.take_uses(placed.row, placed.uses)
    return stock


def realize(instance: Instance, fleets: Sequence[Fleet], stock: Stock | None = None) -> Plan:
    """Give the fleets' replicas nodes; a replica for which nodes or money lack is left out."""
    stock = stock or Stock(instance)
    plan = Plan()
    for fleet in fleets:
        for item, count in fleet.kept:
            for _ in range(count):
                plan.kept[item] += stock.keep(item)
    plan.kept = +plan.kept
    tightest = sorted(fleets, key=lambda fleet: (_choices(instance, fleet), fleet.row))
    for fleet in tightest:
        for template, zone, count in fleet.new:
            for _ in range(count):
                uses = stock.take_nodes(fleet.row, template, zone)
                if uses is not None:
                    plan.new[Placed(fleet.row, template, zone, uses)] += 1
    return plan


def _choices(instance: Instance, fleet: Fleet) -> int:
    return int(instance.groups[instance.rows[fleet.row].group].usable.sum())


def part_of(plan: Plan, row: Row) -> Plan:
    """The replicas that serve one row."""
    return Plan(
        Counter({placed: n for placed, n in plan.new.items() if placed.row == row.index}),
        Counter({item: n for item, n in plan.kept.items() if item in row.running and n > 0}),
    )


def fleets_of(instance: Instance, plan: Plan) -> list[Fleet]:
    """The plan by row, without the choice of supplies."""
    new: list[Counter[tuple[int, int]]] = [Counter() for _ in instance.rows]
    for placed, count in plan.new.items():
        new[placed.row][placed.template, placed.zone] += count
    return [
        Fleet(
            row=row.index,
            new=tuple((t, z, n) for (t, z), n in sorted(new[row.index].items())),
            kept=tuple((i, plan.kept[i]) for i in row.running if plan.kept[i] > 0),
        )
        for row in instance.rows
    ]


def to_allocation(instance: Instance, plan: Plan) -> Allocation:
    """The plan in the words of the model, in a fixed order."""
    counts: dict[Choice, list[int]] = {}
    for placed, count in plan.new.items():
        row = instance.rows[placed.row]
        if row.table is not None:
            choice = Choice(
                template=row.table.id(placed.template),
                model=row.demand.model,
                phase=row.demand.phase,
                zone=instance.zones[placed.zone],
                nodes=row.table.source.nodes(int(row.table.order[placed.template])),
                offerings=_offerings(instance, placed.uses),
                throughput=float(row.table.throughput[placed.template]),
                count=1,
            )
            counts.setdefault(choice, [0, 0])[0] += count
    for item, count in plan.kept.items():
        source = instance.running[item].source
        choice = Choice(
            template=source.template,
            model=source.model,
            phase=source.phase,
            zone=source.zone,
            nodes=source.nodes,
            offerings=_offerings(instance, instance.running[item].uses),
            throughput=source.throughput,
            count=1,
        )
        entry = counts.setdefault(choice, [0, 0])
        entry[0] += count
        entry[1] += count
    choices = [
        Choice(
            template=c.template,
            model=c.model,
            phase=c.phase,
            zone=c.zone,
            nodes=c.nodes,
            offerings=c.offerings,
            throughput=c.throughput,
            count=count,
            kept=kept,
        )
        for c, (count, kept) in counts.items()
        if count > 0
    ]
    return Allocation(
        tuple(sorted(choices, key=lambda c: (c.model, c.phase, c.zone, c.template, c.offerings)))
    )


def _offerings(instance: Instance, uses: Uses) -> OfferingCounts:
    supplies = instance.problem.supplies
    return tuple(sorted((supplies[supply].offering, nodes) for supply, nodes in uses))


def outcomes(instance: Instance, plan: Plan) -> tuple[RowOutcome, ...]:
    """What each row of the original problem gets."""
    served = throughput(instance, plan)
    return tuple(
        RowOutcome(demand.model, demand.phase, demand.amount, amount)
        for demand, amount in zip(instance.problem.rows, served, strict=True)
    )
