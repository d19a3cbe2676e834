from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from ortools.sat.python import cp_model

from corald.templates.placement import (
    Rates,
    new_placement,
    partitions,
    place_with_own_stages,
    place_with_shared_stages,
)


def falling(rng, shape, top=1000):
    """Whole rates that never rise with layers; entry 0 repeats 1; some nodes hold nothing."""
    values = -np.sort(-rng.integers(0, top, shape), axis=-1).astype(float)
    values[..., 0] = values[..., 1]
    held = rng.integers(0, shape[-1] + 2, shape[:-1])
    values[np.arange(shape[-1]) > held[..., None]] = 0
    return values


def rates_of(values, groups):
    return Rates(values, (values * np.arange(values.shape[-1])).max(axis=-1), groups)


def best_by_ilp(nodes, values, layers):
    """The paper's program for every number of stages and target, solved by CP-SAT."""
    best = 0
    for stages in range(1, min(len(nodes), layers) + 1):
        for target in range(values.shape[2]):
            model = cp_model.CpModel()
            count = range(1, layers + 1)
            x = [[model.new_bool_var("") for _ in count] for _ in range(stages)]
            y = [[model.new_bool_var("") for _ in nodes] for _ in range(stages)]
            throughput = model.new_int_var(0, 1000 * len(nodes), "T")
            for stage in range(stages):
                model.add_exactly_one(x[stage])
                terms = []
                for j, k in product(count, range(len(nodes))):
                    both = model.new_bool_var("")
                    model.add_implication(both, x[stage][j - 1])
                    model.add_implication(both, y[stage][k])
                    terms.append(int(values[nodes[k], stages - 1, target, j]) * both)
                model.add(throughput <= sum(terms))
            for k in range(len(nodes)):
                model.add_exactly_one(y[stage][k] for stage in range(stages))
            model.add(sum(j * x[s][j - 1] for s in range(stages) for j in count) == layers)
            model.maximize(throughput)
            solver = cp_model.CpSolver()
            solver.parameters.num_workers = 1
            if solver.solve(model) == cp_model.OPTIMAL:
                best = max(best, round(solver.objective_value))
    return best


@pytest.mark.parametrize("seed", range(70))
def test_a_placement_with_shared_stages_is_as_good_as_the_papers_ilp(seed):
    rng = np.random.default_rng(seed)
    layers, kinds, size = int(rng.integers(2, 8)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
    values = falling(rng, (1, kinds, size, 2, layers + 1))
    nodes = np.sort(rng.integers(0, kinds, size))
    place = new_placement(size, layers)
    rates = rates_of(values, np.ones((1, kinds), dtype=np.int64))
    found = place_with_shared_stages(nodes, 0.0, rates, partitions(size), place)
    assert found == best_by_ilp(nodes, values[0], layers)
    if found:
        check_shared(nodes, values[0], layers, place, found)


def check_shared(nodes, values, layers, place, found):
    """The placement itself yields what it claims."""
    stages, target, part = place.choice
    label = partitions(len(nodes)).labels[part]
    assert sorted(set(label)) == list(range(stages))
    assert place.layers[:stages].sum() == layers
    assert place.layers[:stages].min() >= 1
    rates = [
        sum(
            values[node, stages - 1, target, place.layers[stage]]
            for node, at in zip(nodes, label, strict=True)
            if at == stage
        )
        for stage in range(stages)
    ]
    assert min(rates) == found


def splits(layers, stages):
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in splits(layers - first, stages - 1):
            yield (first, *rest)


def best_by_trying_all(nodes, values, groups, layers):
    best = 0.0
    for tp in range(len(values)):
        if any(groups[tp, node] == 0 for node in nodes):
            continue
        kinds = [node for node in nodes for _ in range(groups[tp, node])]
        if len(kinds) > min(layers, values.shape[2]):
            continue
        for target in range(values.shape[3]):
            for split in splits(layers, len(kinds)):
                rates = [
                    values[tp, kind, len(kinds) - 1, target, j]
                    for kind, j in zip(kinds, split, strict=True)
                ]
                best = max(best, min(rates))
    return best


@pytest.mark.parametrize("seed", range(70))
def test_a_placement_with_own_stages_is_as_good_as_trying_all_layer_splits(seed):
    rng = np.random.default_rng(seed)
    layers, kinds, size = int(rng.integers(3, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    values = falling(rng, (2, kinds, 6, 2, layers + 1))
    groups = rng.integers(0, 3, (2, kinds))
    nodes = np.sort(rng.integers(0, kinds, size))
    place = new_placement(6, layers)
    found = place_with_own_stages(nodes, 0.0, rates_of(values, groups), place)
    assert found == best_by_trying_all(nodes, values, groups, layers)
    if found:
        stages, target, tp = place.choice
        kinds_of_stages = [node for node in nodes for _ in range(groups[tp, node])]
        assert len(kinds_of_stages) == stages
        assert place.layers[:stages].sum() == layers
        rates = [
            values[tp, kind, stages - 1, target, place.layers[stage]]
            for stage, kind in enumerate(kinds_of_stages)
        ]
        assert min(rates) == found


def test_only_a_placement_above_the_floor_is_an_answer():
    rng = np.random.default_rng(5)
    values = falling(rng, (1, 2, 3, 1, 7), top=10)
    values[values == 0] = 1
    rates = rates_of(values, np.ones((1, 2), dtype=np.int64))
    nodes, place = np.array([0, 1, 1]), new_placement(3, 6)
    best = place_with_shared_stages(nodes, 0.0, rates, partitions(3), place)
    assert place_with_shared_stages(nodes, best - 0.5, rates, partitions(3), place) == best
    assert place_with_shared_stages(nodes, best, rates, partitions(3), place) == 0
    own = place_with_own_stages(nodes, 0.0, rates, place)
    assert place_with_own_stages(nodes, own - 0.5, rates, place) == own
    assert place_with_own_stages(nodes, own, rates, place) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_partition_is_listed_once_up_to_swapping_equal_nodes(size):
    listed = partitions(size)
    for nodes in combinations_with_replacement(range(size), size):
        pattern = sum(1 << i for i in range(size - 1) if nodes[i] == nodes[i + 1])
        expected = set()
        for labels in product(range(size), repeat=size):
            blocks = [
                tuple(nodes[i] for i in range(size) if labels[i] == stage) for stage in set(labels)
            ]
            expected.add(tuple(sorted(blocks)))
        found = []
        for stages in range(1, size + 1):
            start, end = listed.starts[pattern, stages - 1], listed.starts[pattern, stages]
            for labels in listed.labels[start:end]:
                assert sorted(set(labels)) == list(range(stages))
                blocks = [
                    tuple(nodes[i] for i in range(size) if labels[i] == stage)
                    for stage in range(stages)
                ]
                found.append(tuple(sorted(blocks)))
        assert len(found) == len(set(found))
        assert set(found) == expected
