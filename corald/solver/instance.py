"""A Problem over its library, as arrays: what every algorithm of this package works on.

The maths (see docs/reference/allocation.md) names rows d, supplies o, zones z, configurations c.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from corald.errors import SolverError
from corald.library import Library, TableKey
from corald.model.market import OfferingKey, ZoneKey
from corald.model.problem import DemandRow, Problem, RunningReplica
from corald.solver.tables import PreparedLibrary, PreparedTable

Floats = NDArray[np.float64]
Uses = tuple[tuple[int, int], ...]
"""Which supplies a replica's nodes come from: (supply, how many), sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One demand row with the templates that may serve it."""

    index: int
    demand: DemandRow
    group: int
    table: PreparedTable | None
    feasible: NDArray[np.bool_]
    """By template and zone: allowed, and enough nodes exist for one replica."""
    running: tuple[int, ...]
    """Indices of the running items that serve it."""


@dataclass(frozen=True, slots=True)
class Running:
    """Equal replicas that exist, occupying their own supplies."""

    index: int
    row: int
    source: RunningReplica
    uses: Uses
    usd_per_hour: float
    throughput: float
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows that may use the same supplies (a row with its own budget is a group of its own)."""

    usable: NDArray[np.bool_]
    own_budget: float | None
    offers: tuple[tuple[tuple[int, ...], ...], ...]
    """By zone and configuration: usable supplies, cheapest new node first."""
    capacity: NDArray[np.int64]
    """By zone and configuration: nodes of all usable supplies together."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """The whole problem. Per-supply arrays are indexed like `problem.supplies`."""

    problem: Problem
    library: Library
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    running: tuple[Running, ...]
    zones: tuple[ZoneKey, ...]
    configurations: tuple[str, ...]
    zone_of: NDArray[np.int64]
    configuration_of: NDArray[np.int64]
    """-1 when no template can use it."""
    price: Floats
    new_cost: Floats
    """Of a new node: p·(1+K)."""
    budget_price: Floats
    available: NDArray[np.int64]
    """Nodes that can be had new: running replicas hold theirs, which no other replica can use."""
    notes: tuple[str, ...]

    def with_demand(self, amounts: Sequence[float], min_replicas: Sequence[int]) -> Instance:
        """The same instance with other amounts to cover."""
        rows = tuple(
            replace(row, demand=replace(row.demand, amount=amount, min_replicas=least))
            for row, amount, least in zip(self.rows, amounts, min_replicas, strict=True)
        )
        return replace(self, rows=rows)

    @property
    def columns(self) -> int:
        """(template, zone) pairs that may be chosen."""
        return sum(int(row.feasible.sum()) for row in self.rows)


def compile_instance(problem: Problem, prepared: PreparedLibrary) -> Instance:
    """Check the problem and turn it into arrays; a SolverError says what does not fit together."""
    library = prepared.library
    if problem.library != library.fingerprint:
        raise SolverError(
            f"the problem is for library {problem.library}, this is {library.fingerprint}"
        )
    keys = [(row.model, row.phase) for row in problem.rows]
    if len(set(keys)) != len(keys):
        raise SolverError("two demand rows are for the same model and phase")
    supplies = problem.supplies
    zones = tuple(sorted({supply.offering.zone_key for supply in supplies}))
    column = {name: index for index, name in enumerate(library.configurations)}
    price = np.array([supply.usd_per_hour for supply in supplies], dtype=np.float64)
    start = np.array([problem.start_cost.get(supply.configuration, 0.0) for supply in supplies])
    notes: list[str] = []
    instance = Instance(
        problem=problem,
        library=library,
        rows=(),
        groups=(),
        running=_running(problem, notes),
        zones=zones,
        configurations=library.configurations,
        zone_of=np.array([zones.index(s.offering.zone_key) for s in supplies], dtype=np.int64),
        configuration_of=np.array(
            [column.get(supply.configuration, -1) for supply in supplies], dtype=np.int64
        ),
        price=price,
        new_cost=price * (1.0 + start),
        budget_price=np.array([s.budget_usd_per_hour for s in supplies], dtype=np.float64),
        available=_obtainable(problem),
        notes=(),
    )
    return _with_rows(instance, prepared, notes)


def _with_rows(instance: Instance, prepared: PreparedLibrary, notes: list[str]) -> Instance:
    groups: dict[tuple[object, ...], int] = {}
    made: list[Group] = []
    rows: list[Row] = []
    for index, demand in enumerate(instance.problem.rows):
        own = demand.max_usd_per_hour
        identity = (demand.supplies, None if own is None else index)
        if identity not in groups:
            groups[identity] = len(made)
            made.append(_group(instance, demand.supplies, own))
        group = groups[identity]
        table = prepared.table(TableKey(demand.model, demand.phase, demand.engine))
        if table is None:
            notes.append(f"the library has no templates for {demand.model}/{demand.phase}")
        rows.append(
            Row(
                index=index,
                demand=demand,
                group=group,
                table=table,
                feasible=feasible(table, made[group].capacity, demand.denied_templates),
                running=tuple(item.index for item in instance.running if item.row == index),
            )
        )
    return replace(instance, rows=tuple(rows), groups=tuple(made), notes=tuple(notes))


def feasible(
    table: PreparedTable | None,
    capacity: NDArray[np.int64],
    denied: frozenset[str] = frozenset(),
) -> NDArray[np.bool_]:
    """By template and zone: one replica fits into `capacity` (zone x configuration)."""
    zones = len(capacity)
    if table is None:
        return np.zeros((0, zones), dtype=np.bool_)
    fits = np.ones((len(table), zones), dtype=np.bool_)
    for zone in range(zones):
        for column in np.flatnonzero(capacity[zone] < table.largest):
            fits[:, zone] &= table.counts[:, column] <= capacity[zone, column]
    for template_id in denied:
        if (template := table.index_of(template_id)) is not None:
            fits[template] = False
    return fits


def capacity(instance: Instance, group: int, left: NDArray[np.int64]) -> NDArray[np.int64]:
    """By zone and configuration: nodes left in the group's usable supplies together."""
    total = np.zeros((len(instance.zones), len(instance.configurations)), dtype=np.int64)
    usable = instance.groups[group].usable
    np.add.at(total, (instance.zone_of[usable], instance.configuration_of[usable]), left[usable])
    return total


def _group(instance: Instance, allowed: tuple[int, ...] | None, own_budget: float | None) -> Group:
    size = len(instance.price)
    usable = np.zeros(size, dtype=np.bool_)
    usable[list(range(size) if allowed is None else allowed)] = True
    usable &= (instance.configuration_of >= 0) & (instance.available > 0)
    shape = (len(instance.zones), len(instance.configurations))
    offers: dict[tuple[int, int], list[int]] = defaultdict(list)
    capacity = np.zeros(shape, dtype=np.int64)
    for supply in sorted(
        np.flatnonzero(usable).tolist(),
        key=lambda s: (instance.new_cost[s], instance.problem.supplies[s].offering),
    ):
        place = (int(instance.zone_of[supply]), int(instance.configuration_of[supply]))
        offers[place].append(supply)
        capacity[place] += instance.available[supply]
    return Group(
        usable=usable,
        own_budget=own_budget,
        offers=tuple(
            tuple(tuple(offers[zone, column]) for column in range(shape[1]))
            for zone in range(shape[0])
        ),
        capacity=capacity,
    )


def _obtainable(problem: Problem) -> NDArray[np.int64]:
    held = _held(problem)
    free = [supply.available - held[supply.offering] for supply in problem.supplies]
    return np.array(
        [
            max(0, left if supply.obtainable is None else min(left, supply.obtainable))
            for supply, left in zip(problem.supplies, free, strict=True)
        ],
        dtype=np.int64,
    )


def _held(problem: Problem) -> Counter[OfferingKey]:
    held: Counter[OfferingKey] = Counter()
    for item in problem.running:
        for offering, nodes in item.offerings:
            held[offering] += nodes * item.count
    return held


def _running(problem: Problem, notes: list[str]) -> tuple[Running, ...]:
    """Running replicas that may stay: their row exists and it may use their supplies."""
    supply_of = {supply.offering: index for index, supply in enumerate(problem.supplies)}
    row_of = {(row.model, row.phase): index for index, row in enumerate(problem.rows)}
    items: list[Running] = []
    left = Counter({supply.offering: supply.available for supply in problem.supplies})
    for source in problem.running:
        row = row_of.get((source.model, source.phase))
        count = min([source.count, *(left[o] // nodes for o, nodes in source.offerings)])
        if row is None or count <= 0:
            continue
        left.subtract({offering: nodes * count for offering, nodes in source.offerings})
        uses = [(supply_of.get(offering), count) for offering, count in source.offerings]
        allowed = problem.rows[row].supplies
        known = tuple(sorted((s, count) for s, count in uses if s is not None))
        if len(known) != len(uses) or (allowed and not {s for s, _ in known} <= set(allowed)):
            notes.append(
                f"{count} running replicas of {source.template} in {source.zone} "
                "are on supplies that their demand may not use"
            )
            continue
        items.append(
            Running(
                index=len(items),
                row=row,
                source=source,
                uses=known,
                usd_per_hour=sum(problem.supplies[s].usd_per_hour * n for s, n in known),
                throughput=source.throughput,
                count=count,
            )
        )
    return tuple(items)
