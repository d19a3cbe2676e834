"""The greedy answer: fast, always feasible, without any solver; the fallback and a baseline.

Row by row (highest priority first) it buys what yields the most throughput per USD among what is
still obtainable. It needs neither OR-Tools nor a worker, so the daemon itself can run it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corald.model.problem import Allocation, Choice
from corald.solver.instance import Floats, Instance, Row
from corald.solver.plans import Placed, Plan, Stock, stock_after
from corald.solver.pricing import COVERED

SOLD_OUT = 1e12


def greedy(instance: Instance) -> Plan:
    """The paper's `Homo`: replicas of one configuration each, most goodput per USD first.

    It buys the best ratio until the demand is covered, however small the rest, so it overbuys.
    """
    plan = Plan()
    stock = Stock(instance)
    for row in _by_priority(instance):
        mask = row.feasible
        if row.table is not None:
            mask = mask & row.table.one_configuration[:, None]
        _buy(instance, row, mask, plan, stock)
    return plan


def repair(instance: Instance, start: Plan) -> Plan:
    """Complete a partial plan greedily with any template, then drop what is not needed."""
    plan = start.copy()
    stock = stock_after(instance, plan)
    for row in _by_priority(instance):
        _buy(instance, row, row.feasible, plan, stock)
    trim(instance, plan)
    return plan


def keep_running(instance: Instance) -> Plan:
    """All running replicas that supplies, caps and `max_replicas` still allow."""
    plan = Plan()
    stock = Stock(instance)
    for row in _by_priority(instance):
        room = row.demand.max_replicas
        for item in sorted(row.running, key=lambda i: (_usd_per_unit(instance, i), i)):
            for _ in range(instance.running[item].count):
                if room == 0 or not stock.keep(item):
                    break
                plan.kept[item] += 1
                room = None if room is None else room - 1
    return plan


def rebase(instance: Instance, allocation: Allocation) -> Plan:
    """What of an earlier allocation still holds: running replicas first, then new ones."""
    row_of = {(row.demand.model, row.demand.phase): row for row in instance.rows}
    plan = Plan()
    stock = Stock(instance)
    room = [row.demand.max_replicas for row in instance.rows]
    wanted: list[tuple[Row, Choice, int]] = []
    for choice in allocation.choices:
        row = row_of.get((choice.model, choice.phase))
        if row is not None:
            kept = _keep(instance, row, choice, plan, stock, room)
            wanted.append((row, choice, choice.count - kept))
    for row, choice, count in wanted:
        _start(instance, row, replace(choice, count=count), plan, stock, room)
    return plan


def _keep(
    instance: Instance,
    row: Row,
    choice: Choice,
    plan: Plan,
    stock: Stock,
    room: list[int | None],
) -> int:
    """Keep running replicas that are what the choice asks for; how many."""
    kept = 0
    for item in row.running:
        source = instance.running[item].source
        same = (source.template, source.zone, source.offerings) == (
            choice.template,
            choice.zone,
            choice.offerings,
        )
        while (
            same
            and kept < choice.count
            and plan.kept[item] < instance.running[item].count
            and room[row.index] != 0
            and stock.keep(item)
        ):
            plan.kept[item] += 1
            kept += 1
            _use_room(room, row)
    return kept


def _start(
    instance: Instance,
    row: Row,
    choice: Choice,
    plan: Plan,
    stock: Stock,
    room: list[int | None],
) -> None:
    template = None if row.table is None else row.table.index_of(choice.template)
    if template is None or choice.zone not in instance.zones:
        return
    zone = instance.zones.index(choice.zone)
    for _ in range(choice.count if row.feasible[template, zone] else 0):
        if room[row.index] == 0:
            return
        uses = stock.take_nodes(row.index, template, zone)
        if uses is None:
            return
        plan.new[Placed(row.index, template, zone, uses)] += 1
        _use_room(room, row)


def _use_room(room: list[int | None], row: Row) -> None:
    left = room[row.index]
    room[row.index] = None if left is None else left - 1


def _by_priority(instance: Instance) -> list[Row]:
    return sorted(instance.rows, key=lambda row: (-row.demand.priority, row.index))


def _usd_per_unit(instance: Instance, item: int) -> float:
    running = instance.running[item]
    return running.usd_per_hour / running.throughput if running.throughput > 0 else math.inf


def _buy(instance: Instance, row: Row, mask: NDArray[np.bool_], plan: Plan, stock: Stock) -> None:
    """Add replicas of one row until it is covered or nothing more can be had."""
    missing, count = _missing(instance, row, plan)
    demand = row.demand
    market = _Market(instance, row, mask.copy(), stock)
    while missing > demand.amount * (1 - COVERED) or count < demand.min_replicas:
        if demand.max_replicas is not None and count >= demand.max_replicas:
            return
        kept = _best_running(instance, row, plan, stock)
        new, ratio = market.best(by_ratio=missing > 0)
        if kept is not None and _usd_per_unit(instance, kept) <= ratio:
            stock.keep(kept)
            plan.kept[kept] += 1
            missing -= instance.running[kept].throughput
        elif new is not None and row.table is not None:
            uses = stock.take_nodes(row.index, *new)
            if uses is None:
                market.mask[new] = False
                market.changed()
                continue
            plan.new[Placed(row.index, *new, uses)] += 1
            missing -= float(row.table.throughput[new[0]])
            if any(stock.left[supply] == 0 for supply, _ in uses):
                market.changed()
        else:
            return
        count += 1


class _Market:
    """The best new replica of one row at what is left; remembered until something sells out."""

    def __init__(self, instance: Instance, row: Row, mask: NDArray[np.bool_], stock: Stock) -> None:
        self.instance, self.row, self.mask, self.stock = instance, row, mask, stock
        self._known: dict[bool, tuple[tuple[int, int] | None, float]] = {}

    def changed(self) -> None:
        """Forget the best: a supply sold out, or a template did not fit."""
        self._known.clear()

    def best(self, *, by_ratio: bool) -> tuple[tuple[int, int] | None, float]:
        """((template, zone), USD per unit of throughput), by that ratio or by plain cost."""
        if by_ratio not in self._known:
            self._known[by_ratio] = self._search(by_ratio=by_ratio)
        return self._known[by_ratio]

    def _search(self, *, by_ratio: bool) -> tuple[tuple[int, int] | None, float]:
        table = self.row.table
        if table is None or not self.mask.any():
            return None, math.inf
        prices = self._prices()
        cost = table.weights @ np.where(np.isfinite(prices), prices, SOLD_OUT).T
        cost[~self.mask | (cost >= SOLD_OUT)] = np.inf
        ratio = cost / table.throughput[:, None]
        judged = ratio if by_ratio else cost
        template, zone = divmod(int(judged.argmin()), judged.shape[1])
        if not np.isfinite(judged[template, zone]):
            return None, math.inf
        return (template, zone), float(ratio[template, zone])

    def _prices(self) -> Floats:
        """By zone and configuration: the cheapest usable supply with nodes left."""
        left, cost = self.stock.left, self.instance.new_cost
        offers = self.instance.groups[self.row.group].offers
        prices = np.full((len(self.instance.zones), len(self.instance.configurations)), np.inf)
        for zone, by_configuration in enumerate(offers):
            for column, supplies in enumerate(by_configuration):
                prices[zone, column] = next((cost[s] for s in supplies if left[s] > 0), np.inf)
        return prices


def _missing(instance: Instance, row: Row, plan: Plan) -> tuple[float, int]:
    entries = _entries(instance, row, plan)
    covered = sum(size * counter[key] for _, size, counter, key in entries)
    return row.demand.amount - covered, sum(counter[key] for _, _, counter, key in entries)


def _entries(
    instance: Instance, row: Row, plan: Plan
) -> list[tuple[float, float, Counter[Any], Any]]:
    """(USD/h, throughput, counter, key) of the replicas of one row, kept ones last."""
    entries: list[tuple[float, float, Counter[Any], Any]] = []
    for placed in sorted(plan.new):
        if placed.row == row.index and row.table is not None:
            usd = sum(float(instance.new_cost[s]) * n for s, n in placed.uses)
            size = float(row.table.throughput[placed.template])
            entries.append((usd, size, plan.new, placed))
    for item in row.running:
        running = instance.running[item]
        entries.append((running.usd_per_hour, running.throughput, plan.kept, item))
    return entries


def _best_running(instance: Instance, row: Row, plan: Plan, stock: Stock) -> int | None:
    free = [
        item
        for item in row.running
        if plan.kept[item] < instance.running[item].count and stock.can_keep(item)
    ]
    return min(free, key=lambda item: (_usd_per_unit(instance, item), item), default=None)


def trim(instance: Instance, plan: Plan) -> None:
    """Drop replicas, the dearest first, that neither coverage nor the minimum needs."""
    for row in instance.rows:
        missing, count = _missing(instance, row, plan)
        spare = row.demand.amount * (1 - COVERED) - missing
        entries = sorted(_entries(instance, row, plan), key=lambda entry: -entry[0])
        for _, size, counter, key in entries:
            while counter[key] > 0 and spare >= size and count > row.demand.min_replicas:
                counter[key] -= 1
                spare -= size
                count -= 1
    plan.new, plan.kept = +plan.new, +plan.kept
