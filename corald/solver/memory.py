"""What one solve leaves for the next: fleets and prices of the same library."""

from __future__ import annotations

from dataclasses import dataclass, field

from corald.library import TableKey
from corald.model.market import OfferingKey, ZoneKey
from corald.solver.duals import Duals
from corald.solver.instance import Instance, Row
from corald.solver.pricing import COVERED, Fleet, fleet_throughput

FLEETS_KEPT = 60
"""By row; older ones are forgotten."""

Shape = tuple[tuple[int, ZoneKey, int], ...]
"""(template index, zone, count): a fleet without the difference between new and running."""


@dataclass(slots=True)
class SolverMemory:
    """Only speeds up: a solve is as right, and as well proven, without it."""

    library: str = ""
    fleets: dict[TableKey, list[Shape]] = field(default_factory=dict)
    prices: dict[OfferingKey, float] = field(default_factory=dict)

    def recall(self, instance: Instance) -> tuple[Duals, list[Fleet]]:
        """Start prices, and the fleets that still cover their row."""
        if self.library != instance.problem.library:
            self.fleets.clear()
            self.prices.clear()
        fleets = []
        for row in instance.rows:
            for shape in self.fleets.get(_key(row), []):
                fleet = _fleet(instance, row, shape)
                if fleet is not None:
                    fleets.append(fleet)
        return Duals.remembered(instance, self.prices), fleets

    def remember(self, instance: Instance, duals: Duals, fleets: list[Fleet]) -> None:
        """Keep the prices and the newest fleets."""
        self.library = instance.problem.library
        for supply, price in zip(instance.problem.supplies, duals.supply, strict=True):
            self.prices[supply.offering] = float(price)
        for row in instance.rows:
            own = [_shape(instance, row, fleet) for fleet in fleets if fleet.row == row.index]
            known = dict.fromkeys(reversed([shape for shape in own if shape is not None]))
            self.fleets[_key(row)] = list(known)[:FLEETS_KEPT][::-1]


def _key(row: Row) -> TableKey:
    return TableKey(row.demand.model, row.demand.phase, row.demand.engine)


def _shape(instance: Instance, row: Row, fleet: Fleet) -> Shape | None:
    """None when it holds a running replica whose template the library does not know."""
    counts: dict[tuple[int, ZoneKey], int] = {}
    for template, zone, count in fleet.new:
        place = (template, instance.zones[zone])
        counts[place] = counts.get(place, 0) + count
    for item, count in fleet.kept:
        source = instance.running[item].source
        known = None if row.table is None else row.table.index_of(source.template)
        if known is None:
            return None
        counts[known, source.zone] = counts.get((known, source.zone), 0) + count
    return tuple((t, zone, n) for (t, zone), n in sorted(counts.items()))


def _fleet(instance: Instance, row: Row, shape: Shape) -> Fleet | None:
    """The fleet now, keeping running replicas where it can; None when it no longer serves."""
    new: list[tuple[int, int, int]] = []
    kept: list[tuple[int, int]] = []
    for template, zone_key, count in shape:
        left = count
        name = "" if row.table is None else row.table.id(template)
        for item in row.running:
            source = instance.running[item].source
            if source.zone == zone_key and source.template == name:
                stay = min(left, source.count)
                left -= stay
                kept.extend([(item, stay)] if stay else [])
        if left:
            if zone_key not in instance.zones:
                return None
            zone = instance.zones.index(zone_key)
            if not row.feasible[template, zone]:
                return None
            new.append((template, zone, left))
    fleet = Fleet(row.index, tuple(sorted(new)), tuple(sorted(kept)))
    replicas = sum(n for *_, n in fleet.new) + sum(n for _, n in fleet.kept)
    demand = row.demand
    enough = fleet_throughput(instance, fleet) >= demand.amount * COVERED
    most = replicas if demand.max_replicas is None else demand.max_replicas
    return fleet if enough and demand.min_replicas <= replicas <= most else None
