"""Exact placement of a node set: which nodes share a stage and how many layers each stage holds.

Compiled, and for the offline stage only. No ILP: the order of stages does not matter and a stage's
rate f(j) never rises with its layers, so a set of stages reaches T iff the most layers they can
hold at T sum to L. The best split gives every further layer to the stage that stays fastest (exact
for max-min of falling functions).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile for threads of their own; the machine code is kept beside the module."""
    return cast("F", numba.njit(nogil=True, cache=True)(function))


class Rates(NamedTuple):
    """T̂ of one table."""

    values: NDArray[np.float64]
    """By tensor parallelism (index; `coral` has one entry), configuration, stages - 1, budget and
    layers. For `vllm` of one group of GPUs, for `coral` of a whole node."""
    work: NDArray[np.float64]
    """The most layers times rate that one group or node can do, by the same without layers."""
    groups: NDArray[np.int64]
    """Stages that a node carries, by tensor parallelism and configuration; 0: it cannot."""


class Partitions(NamedTuple):
    """All ways to divide nodes into stages, without those that equal nodes make alike.

    A node set's pattern has bit i set when its nodes i and i + 1 (in order) are alike.
    """

    labels: NDArray[np.int64]
    """Stage of each node, by partition."""
    starts: NDArray[np.int64]
    """First partition by pattern and stages - 1; the next entry ends it."""


class Placement(NamedTuple):
    """The best found so far; arrays are overwritten in place."""

    layers: NDArray[np.int64]
    choice: NDArray[np.int64]
    """Stages, budget, and the partition (`coral`) or index of tensor parallelism (`vllm`)."""
    rows: NDArray[np.float64]
    """Scratch: f of each distinct stage, by layers."""
    copies: NDArray[np.int64]
    """Scratch: equal stages that each row of `rows` stands for."""


@cache
def partitions(nodes: int) -> Partitions:
    """The partitions for sets of this many nodes, for every pattern of equal nodes."""
    labels: list[tuple[int, ...]] = []
    starts = np.zeros((1 << (nodes - 1), nodes + 1), dtype=np.int64)
    grown = [growth for growth in product(range(nodes), repeat=nodes) if _is_growth(growth)]
    for pattern in range(1 << (nodes - 1)):
        kinds = np.cumsum([0, *(1 - (pattern >> i & 1) for i in range(nodes - 1))])
        for stages in range(1, nodes + 1):
            starts[pattern, stages - 1] = len(labels)
            seen = set()
            for growth in grown:
                if max(growth) + 1 != stages:
                    continue
                blocks = [
                    tuple(kinds[i] for i in range(nodes) if growth[i] == stage)
                    for stage in range(stages)
                ]
                key = tuple(sorted(blocks))
                if key not in seen:
                    seen.add(key)
                    labels.append(growth)
        starts[pattern, nodes] = len(labels)
    return Partitions(np.array(labels, dtype=np.int64), starts)


def _is_growth(labels: tuple[int, ...]) -> bool:
    """Whether stages are numbered in order of their first node: one numbering per partition."""
    highest = -1
    for label in labels:
        if label > highest + 1:
            return False
        highest = max(highest, label)
    return True


def new_placement(most_stages: int, layers: int) -> Placement:
    """Room for the search of one set after another."""
    return Placement(
        layers=np.zeros(most_stages, dtype=np.int64),
        choice=np.zeros(3, dtype=np.int64),
        rows=np.zeros((most_stages, layers + 1)),
        copies=np.ones(most_stages, dtype=np.int64),
    )


@compiled
def place_with_shared_stages(
    nodes: NDArray[np.int64],
    floor: float,
    rates: Rates,
    parts: Partitions,
    place: Placement,
) -> float:
    """Profile `coral`: the best throughput above `floor`, or 0; `place` then says how."""
    count = len(nodes)
    layers = rates.values.shape[4] - 1
    pattern = 0
    for i in range(count - 1):
        if nodes[i] == nodes[i + 1]:
            pattern |= 1 << i
    best = floor
    for stages in range(1, min(count, layers) + 1):
        for budget in range(rates.values.shape[3]):
            work = 0.0
            for node in nodes:
                work += rates.work[0, node, stages - 1, budget]
            if work <= best * layers:
                continue
            start, end = parts.starts[pattern, stages - 1], parts.starts[pattern, stages]
            for part in range(start, end):
                label = parts.labels[part]
                if not _reaches(nodes, label, stages, budget, rates.values[0], best):
                    continue
                place.rows[:stages] = 0.0
                for i in range(count):
                    place.rows[label[i]] += rates.values[0, nodes[i], stages - 1, budget]
                place.copies[:stages] = 1
                best = _split_layers(place, stages, layers)
                place.choice[0], place.choice[1], place.choice[2] = stages, budget, part
    return best if best > floor else 0.0


@compiled
def _reaches(
    nodes: NDArray[np.int64],
    label: NDArray[np.int64],
    stages: int,
    budget: int,
    values: NDArray[np.float64],
    floor: float,
) -> bool:
    """Whether the stages can hold all layers at a throughput above `floor`."""
    layers = values.shape[3] - 1
    held = 0
    for stage in range(stages):
        low, high = 0, layers
        while low < high:
            middle = (low + high + 1) // 2
            rate = 0.0
            for i in range(len(nodes)):
                if label[i] == stage:
                    rate += values[nodes[i], stages - 1, budget, middle]
            if rate > floor:
                low = middle
            else:
                high = middle - 1
        if low == 0:
            return False
        held += low
    return bool(held >= layers)


@compiled
def place_with_own_stages(
    nodes: NDArray[np.int64], floor: float, rates: Rates, place: Placement
) -> float:
    """Profile `vllm`: the best throughput above `floor`, or 0; `place` then says how."""
    layers = rates.values.shape[4] - 1
    best = floor
    for tp in range(rates.values.shape[0]):
        stages = 0
        for node in nodes:
            if rates.groups[tp, node] == 0:
                stages = layers + 1
            stages += rates.groups[tp, node]
        if stages > min(layers, rates.values.shape[2]):
            continue
        for budget in range(rates.values.shape[3]):
            work = 0.0
            for node in nodes:
                work += rates.groups[tp, node] * rates.work[tp, node, stages - 1, budget]
            if work <= best * layers:
                continue
            for i in range(len(nodes)):
                place.rows[i] = rates.values[tp, nodes[i], stages - 1, budget]
                place.copies[i] = rates.groups[tp, nodes[i]]
            if not _hold(place, len(nodes), layers, best):
                continue
            best = _split_layers(place, len(nodes), layers)
            place.choice[0], place.choice[1], place.choice[2] = stages, budget, tp
    return best if best > floor else 0.0


@compiled
def _hold(place: Placement, rows: int, layers: int, floor: float) -> bool:
    """Whether the stages can hold all layers at a throughput above `floor`."""
    held = 0
    for row in range(rows):
        low, high = 0, layers
        while low < high:
            middle = (low + high + 1) // 2
            if place.rows[row, middle] > floor:
                low = middle
            else:
                high = middle - 1
        if low == 0:
            return False
        held += low * place.copies[row]
    return bool(held >= layers)


@compiled
def _split_layers(place: Placement, rows: int, layers: int) -> float:
    """Write the max-min split of all layers to `place.layers`, stage by stage; its throughput."""
    row_of = np.zeros(len(place.layers), dtype=np.int64)
    stages = 0
    for row in range(rows):
        for _ in range(place.copies[row]):
            row_of[stages] = row
            place.layers[stages] = 1
            stages += 1
    for _ in range(layers - stages):
        fastest, rate = 0, -1.0
        for stage in range(stages):
            further = place.rows[row_of[stage], place.layers[stage] + 1]
            if further > rate:
                fastest, rate = stage, further
        place.layers[fastest] += 1
    throughput = np.inf
    for stage in range(stages):
        throughput = min(throughput, place.rows[row_of[stage], place.layers[stage]])
    return throughput
