"""Pricing of one demand row: the cheapest fleet at given prices, and a bound on every fleet.

Demand is cut into LEVELS levels. Throughputs rounded *up* to levels give a bound that holds for
every fleet; if that cover falls short in truth, throughputs rounded *down* give one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corald.solver.instance import Floats, Instance, Row
from corald.solver.knapsack import Bounded, Cover, Ints, Items, cover, undominated

LEVELS = 1500
MANY_REPLICAS = 60
"""Beyond this a fleet's bulk is filled by the best ratio, and only the tail by levels."""
TAIL_REPLICAS = 25
TOLERANCE = 1e-6
"""Relative; what an integer program may miss a limit or an amount by."""
COVERED = 1.0 - TOLERANCE
Surcharge = tuple[int, int, Floats]
"""(zone, configuration, by number of nodes: what so many cost beyond the price of the cheapest)."""
_UNAVAILABLE = 1e9
_SINGLE_PRECISION = 2e-6
"""Relative error of costs from a product of single-precision numbers."""


@dataclass(frozen=True, slots=True, order=True)
class Fleet:
    """Replicas that cover one demand row: new ones by (template, zone), kept running ones."""

    row: int
    new: tuple[tuple[int, int, int], ...]
    """(template, zone, count)."""
    kept: tuple[tuple[int, int], ...]
    """(running item, count)."""


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """What pricing a row found; `bound` is infinite when nothing covers it."""

    bound: float
    fleet: Fleet | None
    cost: Floats
    """Of one new replica, by template and zone."""
    least: Floats
    """Least cost by level: `least[n]` covers n levels."""
    ratio: float
    """Least cost of a unit of throughput."""


@dataclass(frozen=True, slots=True)
class Still:
    """What of a row is to be covered: all of it, or what other replicas leave over."""

    amount: float
    at_least: int
    at_most: int | None

    @classmethod
    def all_of(cls, row: Row) -> Still:
        return cls(row.demand.amount, row.demand.min_replicas, row.demand.max_replicas)


class RowPricer:
    """Prices one row again and again; what does not depend on prices is computed once."""

    def __init__(
        self,
        instance: Instance,
        row: Row,
        *,
        mask: NDArray[np.bool_] | None = None,
        still: Still | None = None,
    ) -> None:
        self.instance, self.row = instance, row
        self.still = still or Still.all_of(row)
        self.amount = self.still.amount
        self.mask = row.feasible if mask is None else mask
        self.throughput = np.zeros(0) if row.table is None else row.table.throughput
        self.unit = self.amount / LEVELS if self.amount > 0 else 1.0
        self.levels = LEVELS if self.amount > 0 else 0
        self.up = _Steps(self._levels_of(self.throughput, up=True))
        self.down = _Steps(self._levels_of(self.throughput, up=False))

    def _levels_of(self, throughput: Floats, *, up: bool) -> Ints:
        rounded = np.ceil if up else np.floor
        return np.minimum(rounded(throughput / self.unit), self.levels).astype(np.int64)

    def costs(self, prices: Floats, surcharges: Sequence[Surcharge] = ()) -> Floats:
        """Cost of one new replica by template and zone; `prices` by zone and configuration."""
        if self.row.table is None:
            return np.zeros((0, len(self.instance.zones)))
        known = np.where(np.isfinite(prices), prices, _UNAVAILABLE).astype(np.float32)
        cost = (self.row.table.weights @ known.T).astype(np.float64)
        for zone, column, usd in surcharges:
            cost[:, zone] += usd[self.row.table.counts[:, column]]
        cost[~self.mask] = np.inf
        return cost

    def price(
        self,
        prices: Floats,
        running_cost: Sequence[float],
        running_count: Sequence[int],
        surcharges: Sequence[Surcharge] = (),
    ) -> Priced:
        """Find the bound and the best fleet; running costs and counts by running item."""
        cost = self.costs(prices, surcharges)
        cheapest = cost.min(axis=1, initial=np.inf)
        usable = [(r, running_cost[r], running_count[r]) for r in self.row.running]
        fill = _Fill(self, cheapest, usable)
        top = self.cover(self.up, cheapest, usable, up=True)
        least = np.zeros(1) if top.least is None else top.least
        bound = max(top.cost, fill.bound(self.amount)) * (1.0 - _SINGLE_PRECISION)
        fleet = self._fleet(cost, top) if math.isfinite(top.cost) else None
        if fleet is not None and not self.covers(fleet):
            fleet = self._rounded_down(cost, cheapest, usable, fill)
        return Priced(bound, fleet, cost, least, fill.ratio)

    def _rounded_down(
        self,
        cost: Floats,
        cheapest: Floats,
        usable: list[tuple[int, float, int]],
        fill: _Fill,
    ) -> Fleet | None:
        new, kept, tail = fill.bulk(self.amount)
        if tail < self.amount:
            left = [(r, c, count - kept.get(r, 0)) for r, c, count in usable]
            rest = RowPricer(self.instance, self.row, mask=self.mask, still=Still(tail, 0, None))
            below = rest.cover(rest.down, cheapest, left, up=False)
        else:
            below = self.cover(self.down, cheapest, usable, up=False)
        if not math.isfinite(below.cost):
            return None
        return self._fleet(cost, below, new, kept)

    def cover(
        self, steps: _Steps, cheapest: Floats, usable: list[tuple[int, float, int]], *, up: bool
    ) -> Cover:
        """Solve the knapsack with throughputs rounded up or down."""
        bounded = []
        for item, cost, count in usable:
            throughput = np.array([self.instance.running[item].throughput])
            level = int(self._levels_of(throughput, up=up)[0])
            if count > 0 and (level > 0 or self.levels == 0):
                bounded.append(Bounded(level, cost, count, item))
        return cover(
            self.levels,
            steps.items(cheapest, positive=self.levels > 0),
            tuple(bounded),
            at_least=self.still.at_least,
            at_most=self.still.at_most,
        )

    def _fleet(
        self,
        cost: Floats,
        found: Cover,
        bulk: dict[int, int] | None = None,
        kept: dict[int, int] | None = None,
    ) -> Fleet:
        new = dict(bulk or {})
        for template, count in found.taken:
            new[template] = new.get(template, 0) + count
        stay = dict(kept or {})
        for item, count in found.kept:
            stay[item] = stay.get(item, 0) + count
        return Fleet(
            row=self.row.index,
            new=tuple((t, int(cost[t].argmin()), n) for t, n in sorted(new.items())),
            kept=tuple(sorted(stay.items())),
        )

    def covers(self, fleet: Fleet) -> bool:
        """The fleet yields the amount in truth (its count of replicas is not looked at)."""
        return fleet_throughput(self.instance, fleet) >= self.amount * COVERED

    def excess(self, priced: Priced) -> Floats:
        """By template and zone: how much the row's bound rises if one such replica is forced in."""
        if not math.isfinite(priced.bound):
            return priced.cost
        level = self._levels_of(self.throughput, up=True)
        rest = np.maximum(self.amount - self.throughput, 0.0) * min(priced.ratio, 1e18)
        if len(priced.least) == self.levels + 1:
            rest = np.maximum(rest, priced.least[self.levels - level])
        return priced.cost + rest[:, None] * (1.0 - _SINGLE_PRECISION) - priced.bound


class _Steps:
    """Where each level begins in the templates, which are sorted by throughput."""

    def __init__(self, level: Ints) -> None:
        starts = np.flatnonzero(np.diff(level, prepend=-1))
        self.starts, self.level = starts, level[starts]
        self.ends = np.append(starts[1:], len(level))

    def items(self, cheapest: Floats, *, positive: bool) -> Items:
        """The cheapest template of each level, without the dominated; level 0 only on demand."""
        if not len(self.starts):
            return Items(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
        cost = np.minimum.reduceat(cheapest, self.starts)
        if positive:
            cost = np.where(self.level > 0, cost, np.inf)
        kept = undominated(self.level, cost, np.arange(len(cost)))
        label = [
            self.starts[step] + int(cheapest[self.starts[step] : self.ends[step]].argmin())
            for step in kept.label
        ]
        return Items(kept.level, kept.cost, np.array(label, dtype=np.int64))


class _Fill:
    """Cover fractionally, best cost per throughput first: the linear bound, and a fleet's bulk."""

    def __init__(
        self, pricer: RowPricer, cheapest: Floats, usable: list[tuple[int, float, int]]
    ) -> None:
        self.pricer = pricer
        running = pricer.instance.running
        ratios = np.full(len(cheapest), np.inf)
        np.divide(cheapest, pricer.throughput, out=ratios, where=np.isfinite(cheapest))
        self.best = int(ratios.argmin()) if len(ratios) else -1
        new_ratio = float(ratios[self.best]) if len(ratios) else np.inf
        known = sorted(
            (cost / running[item].throughput, item, count)
            for item, cost, count in usable
            if count > 0 and running[item].throughput > 0
        )
        self.new_ratio = new_ratio
        self.running = [entry for entry in known if entry[0] <= new_ratio]
        self.ratio = min(new_ratio, known[0][0] if known else np.inf)

    def bound(self, amount: float) -> float:
        """The least cost of covering `amount` when replicas may be cut in pieces."""
        total = 0.0
        for ratio, item, count in self.running:
            part = min(amount, count * self.pricer.instance.running[item].throughput)
            total += ratio * part
            amount -= part
        return total + (amount * self.new_ratio if amount > 0 else 0.0)

    def bulk(self, amount: float) -> tuple[dict[int, int], dict[int, int], float]:
        """Whole replicas by best ratio until only a tail is left: (new, kept, tail)."""
        still = self.pricer.still
        running = self.pricer.instance.running
        kept: dict[int, int] = {}
        if not math.isfinite(self.new_ratio) or still.at_most is not None:
            return {}, {}, amount
        size = float(self.pricer.throughput[self.best])
        if amount / size <= MANY_REPLICAS or still.at_least > TAIL_REPLICAS:
            return {}, {}, amount
        for _, item, count in self.running:
            stay = min(count, int((amount - TAIL_REPLICAS * size) / running[item].throughput))
            if stay > 0:
                kept[item] = stay
                amount -= stay * running[item].throughput
        new = max(0, int(amount / size) - TAIL_REPLICAS)
        return ({self.best: new} if new else {}), kept, amount - new * size


def fleet_throughput(instance: Instance, fleet: Fleet) -> float:
    """What the fleet yields in truth, without rounding to levels."""
    table = instance.rows[fleet.row].table
    new = 0.0 if table is None else sum(table.throughput[t] * n for t, _, n in fleet.new)
    return float(new + sum(instance.running[item].throughput * n for item, n in fleet.kept))
