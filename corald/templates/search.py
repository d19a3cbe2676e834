"""Enumeration of node sets with exact pruning in the same pass; compiled, for the offline stage.

Sets are taken by size. W(U) is the most that a split of U into two smaller sets serves, V(U) the
most that U serves whole or split; a set is kept only if it serves more than W(U). All splits of a
set are smaller sets within the same limits, so one array of V by size and rank is enough.
"""

from __future__ import annotations

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from corald.templates.placement import (
    Partitions,
    Placement,
    Rates,
    compiled,
    new_placement,
    partitions,
    place_with_own_stages,
    place_with_shared_stages,
)

ROUNDING = 1e-9
"""A set must beat its best split by this fraction: less is rounding of the same sum."""


class Space(NamedTuple):
    """Which node sets there are."""

    memory: NDArray[np.float64]
    """GiB of all GPUs of a node, by configuration."""
    memory_limit: float
    """A set's total stays below it."""
    groups: NDArray[np.int64]
    """Bit mask by configuration: a set is looked at if its nodes have a bit in common."""
    binomials: NDArray[np.int64]


class Limits(NamedTuple):
    """What is asked of a set to be kept."""

    shared_stages: bool
    """Profile `coral`; otherwise `vllm`."""
    prune: bool
    epsilon: float


class Found(NamedTuple):
    """The sets of one size that are kept, in order of rank."""

    nodes: NDArray[np.uint8]
    """Configuration of each node, rising."""
    throughput: NDArray[np.float64]
    choice: NDArray[np.int64]
    """As `Placement.choice`."""
    layers: NDArray[np.int64]


class Best(NamedTuple):
    """V by size and rank."""

    values: NDArray[np.float64]
    starts: NDArray[np.int64]
    """First entry of each size."""


def sets_of(configurations: int, nodes: int) -> int:
    """How many multisets of this many nodes there are, before any limit."""
    return comb(configurations + nodes - 1, nodes)


def new_space(
    memory: NDArray[np.float64], memory_limit: float, groups: NDArray[np.int64], n_max: int
) -> Space:
    """The space of sets of up to `n_max` nodes."""
    size = len(memory) + n_max
    rows = [[comb(n, k) for k in range(n_max + 1)] for n in range(size)]
    return Space(memory, memory_limit, groups, np.array(rows, dtype=np.int64))


def new_best(configurations: int, n_max: int) -> Best:
    """V of no set yet."""
    sizes = [0] + [sets_of(configurations, nodes) for nodes in range(1, n_max + 1)]
    starts = np.concatenate(([0, 0], np.cumsum(sizes[1:]))).astype(np.int64)
    return Best(np.zeros(int(starts[-1])), starts)


def search_size(
    size: int, space: Space, limits: Limits, rates: Rates, best: Best
) -> tuple[Found, int]:
    """All sets of one size; smaller sizes must have been searched. Also how many were looked at."""
    layers = rates.values.shape[4] - 1
    place = new_placement(max(rates.values.shape[2], size), layers)
    found, seen = _search_size(size, space, limits, rates, partitions(size), best, place)
    return found, int(seen)


@compiled
def _search_size(
    size: int,
    space: Space,
    limits: Limits,
    rates: Rates,
    parts: Partitions,
    best: Best,
    place: Placement,
) -> tuple[Found, int]:
    nodes = np.zeros(size, dtype=np.int64)
    found = _room(64, size, len(place.layers))
    kept = seen = rank = 0
    while True:
        if _within(nodes, space):
            seen += 1
            split = _best_split(nodes, space, best) if limits.prune else 0.0
            floor = split * (1 + limits.epsilon) * (1 + ROUNDING)
            if limits.shared_stages:
                throughput = place_with_shared_stages(nodes, floor, rates, parts, place)
            else:
                throughput = place_with_own_stages(nodes, floor, rates, place)
            best.values[best.starts[size] + rank] = max(throughput, split)
            if throughput > 0.0:
                if kept == len(found.throughput):
                    found = _grown(found)
                found.nodes[kept] = nodes
                found.throughput[kept] = throughput
                found.choice[kept] = place.choice
                found.layers[kept] = place.layers
                kept += 1
        rank += 1
        if not _advance(nodes, len(space.memory)):
            break
    return (
        Found(
            found.nodes[:kept], found.throughput[:kept], found.choice[:kept], found.layers[:kept]
        ),
        seen,
    )


@compiled
def _advance(nodes: NDArray[np.int64], configurations: int) -> bool:
    """The next multiset in order of rank, in place; False after the last."""
    for i in range(len(nodes)):
        limit = nodes[i + 1] if i + 1 < len(nodes) else configurations - 1
        if nodes[i] < limit:
            nodes[i] += 1
            nodes[:i] = 0
            return True
    return False


@compiled
def _within(nodes: NDArray[np.int64], space: Space) -> bool:
    memory = 0.0
    common = np.int64(-1)
    for node in nodes:
        memory += space.memory[node]
        common &= space.groups[node]
    return memory < space.memory_limit and common != 0


@compiled
def _best_split(nodes: NDArray[np.int64], space: Space, best: Best) -> float:
    """W: the most over all divisions into two sets (the last node is in the second)."""
    most = 0.0
    for mask in range(1, 1 << (len(nodes) - 1)):
        ranks, sizes = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
        for i in range(len(nodes)):
            side = 1 - (mask >> i & 1)
            ranks[side] += space.binomials[nodes[i] + sizes[side], sizes[side] + 1]
            sizes[side] += 1
        served = best.values[best.starts[sizes[0]] + ranks[0]]
        served += best.values[best.starts[sizes[1]] + ranks[1]]
        most = max(most, served)
    return most


@compiled
def _room(rows: int, size: int, stages: int) -> Found:
    return Found(
        np.zeros((rows, size), dtype=np.uint8),
        np.zeros(rows),
        np.zeros((rows, 3), dtype=np.int64),
        np.zeros((rows, stages), dtype=np.int64),
    )


@compiled
def _grown(found: Found) -> Found:
    rows = len(found.throughput)
    larger = _room(2 * rows, found.nodes.shape[1], found.layers.shape[1])
    larger.nodes[:rows] = found.nodes
    larger.throughput[:rows] = found.throughput
    larger.choice[:rows] = found.choice
    larger.layers[:rows] = found.layers
    return larger
