"""Enumeration, exact pruning, and what pruning does to the online optimum."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from ortools.sat.python import cp_model

from corald.templates.placement import Rates
from corald.templates.search import Limits, new_best, new_space, search_size


def random_rates(rng, kinds, n_max, layers):
    shape = (1, kinds, n_max, 1, layers + 1)
    values = -np.sort(-rng.integers(1, 200, shape), axis=-1).astype(float)
    speed = rng.integers(1, 5, kinds)[None, :, None, None, None]
    values = values * speed
    values[..., 0] = values[..., 1]
    held = rng.integers(1, layers + 2, shape[:-1])
    values[np.arange(layers + 1) > held[..., None]] = 0
    work = (values * np.arange(layers + 1)).max(axis=-1)
    return Rates(values, work, np.ones((1, kinds), dtype=np.int64))


def search(rates, n_max, *, prune, epsilon=0.0, memory=None, limit=1e9, groups=None):
    """Templates by node set."""
    kinds = rates.values.shape[1]
    memory = np.ones(kinds) if memory is None else memory
    groups = np.ones(kinds, dtype=np.int64) if groups is None else groups
    space = new_space(memory, limit, groups, n_max)
    limits = Limits(shared_stages=True, prune=prune, epsilon=epsilon)
    best = new_best(kinds, n_max)
    templates, looked_at = {}, 0
    for size in range(1, n_max + 1):
        found, seen = search_size(size, space, limits, rates, best)
        looked_at += seen
        for nodes, throughput in zip(found.nodes, found.throughput, strict=True):
            templates[tuple(int(node) for node in nodes)] = float(throughput)
    return templates, looked_at


def splits(nodes):
    for mask in range(1, (1 << len(nodes)) - 1):
        yield (
            tuple(node for i, node in enumerate(nodes) if mask >> i & 1),
            tuple(node for i, node in enumerate(nodes) if not mask >> i & 1),
        )


def pruned_by_hand(full, kinds, n_max, epsilon):
    """The definition, over the throughputs of all sets."""
    value, kept = {}, {}
    for size in range(1, n_max + 1):
        for nodes in combinations_with_replacement(range(kinds), size):
            split = max((value[a] + value[b] for a, b in splits(nodes)), default=0.0)
            whole = full.get(nodes, 0.0)
            if whole > (1 + epsilon) * split * (1 + 1e-9):
                kept[nodes] = whole
                value[nodes] = whole
            else:
                value[nodes] = split
    return kept


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("epsilon", [0.0, 0.05])
def test_the_sets_kept_are_those_that_beat_every_split(seed, epsilon):
    rng = np.random.default_rng(seed)
    rates = random_rates(rng, 3, 4, 6)
    full, _ = search(rates, 4, prune=False)
    kept, _ = search(rates, 4, prune=True, epsilon=epsilon)
    assert kept == pruned_by_hand(full, 3, 4, epsilon)
    assert len(kept) < len(full)


def test_only_sets_within_memory_and_one_group_are_looked_at():
    rates = random_rates(np.random.default_rng(1), 4, 3, 5)
    memory, groups = np.array([1.0, 2.0, 4.0, 3.0]), np.array([1, 3, 2, 2])
    templates, seen = search(rates, 3, prune=False, memory=memory, limit=7.0, groups=groups)
    allowed = [
        nodes
        for size in (1, 2, 3)
        for nodes in combinations_with_replacement(range(4), size)
        if sum(memory[list(nodes)]) < 7 and np.bitwise_and.reduce(groups[list(nodes)])
    ]
    assert seen == len(allowed)
    assert set(templates) <= set(allowed)
    assert any(len(nodes) == 3 for nodes in templates)


def cheapest(templates, world):
    """The online optimum in cents/h: one model, zones with prices and stock, replicas running."""
    model = cp_model.CpModel()
    used = [[[] for _ in zone] for zone in world.stock]
    served, cost = [], []
    for nodes, throughput in templates.items():
        for zone, prices in enumerate(world.prices):
            price = sum(int(prices[node]) for node in nodes)
            running = world.running.get((nodes, zone), 0)
            kept = model.new_int_var(0, running, "")
            new = model.new_int_var(0, 20, "")
            served.append(int(throughput) * (kept + new))
            cost.append(price * (10 * kept + (10 + world.start_tenths) * new))
            for node in nodes:
                used[zone][node].append(kept + new)
    for zone, stock in enumerate(world.stock):
        for node, limit in enumerate(stock):
            model.add(sum(used[zone][node]) <= int(limit))
    model.add(sum(served) >= world.demand)
    model.minimize(sum(cost))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return round(solver.objective_value)


class World:
    """A random market with replicas that run already."""

    def __init__(self, rng, full, kinds):
        self.prices = rng.integers(5, 60, (2, kinds))
        self.stock = rng.integers(1, 7, (2, kinds))
        self.start_tenths = int(rng.integers(0, 10))
        sets = sorted(full)
        picks = rng.choice(len(sets), 2, replace=False)
        self.running = {(sets[pick], int(rng.integers(0, 2))): 1 for pick in picks}
        self.demand = int(rng.integers(1, 4) * max(full.values()))


@pytest.mark.parametrize("seed", range(24))
def test_pruning_leaves_the_online_optimum_unchanged(seed):
    rng = np.random.default_rng(100 + seed)
    rates = random_rates(rng, 3, 3, 5)
    full, _ = search(rates, 3, prune=False)
    kept, _ = search(rates, 3, prune=True)
    world = World(rng, full, 3)
    running = {nodes: full[nodes] for nodes, _ in world.running}
    assert cheapest(kept | running, world) == cheapest(full, world)


def test_the_worlds_of_the_pruning_test_are_mostly_solvable_and_pruned():
    solvable = pruned = 0
    for seed in range(24):
        rng = np.random.default_rng(100 + seed)
        rates = random_rates(rng, 3, 3, 5)
        full, _ = search(rates, 3, prune=False)
        pruned += len(search(rates, 3, prune=True)[0]) < len(full)
        solvable += cheapest(full, World(rng, full, 3)) is not None
    assert solvable > 12
    assert pruned > 15


def test_a_limit_on_replicas_is_where_pruning_stops_being_exact():
    """Two nodes together serve what they serve apart: pruned, yet one replica cannot be two."""
    values = np.full((1, 1, 2, 1, 3), 10.0)
    rates = Rates(values, (values * np.arange(3)).max(axis=-1), np.ones((1, 1), dtype=np.int64))
    full, _ = search(rates, 2, prune=False)
    kept, _ = search(rates, 2, prune=True)
    assert full == {(0,): 10.0, (0, 0): 20.0}
    assert kept == {(0,): 10.0}


@pytest.mark.parametrize("seed", range(6))
def test_epsilon_pruning_costs_no_more_than_the_stated_bound(seed):
    """At demand d the rest costs at most what everything costs at demand (1 + epsilon) d."""
    rng = np.random.default_rng(300 + seed)
    rates = random_rates(rng, 3, 3, 5)
    full, _ = search(rates, 3, prune=False)
    kept, _ = search(rates, 3, prune=True, epsilon=0.1)
    world = World(rng, full, 3)
    world.running = {}
    world.stock[:] = 30
    at_demand = cheapest(kept, world)
    world.demand = int(np.ceil(world.demand * 1.1))
    assert at_demand <= cheapest(full, world)
