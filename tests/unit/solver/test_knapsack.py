from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corald.solver.knapsack import Bounded, cover, undominated

PIECES = st.tuples(st.integers(1, 6), st.integers(1, 20))


def items_of(pieces):
    least = {}
    for level, cost in pieces:
        least[level] = min(cost, least.get(level, cost))
    levels = np.array(sorted(least), dtype=np.int64)
    costs = np.array([float(least[level]) for level in sorted(least)])
    return undominated(levels, costs, np.arange(len(levels)))


def exhaustive(levels, pieces, bounded, at_least, at_most):
    most = levels + at_least + 1
    choices = [
        *((level, cost, range(most + 1)) for level, cost in pieces),
        *((item.level, item.cost, range(item.count + 1)) for item in bounded),
    ]
    best = np.inf
    for counts in itertools.product(*(counts for _, _, counts in choices)):
        reach = sum(n * level for n, (level, _, _) in zip(counts, choices, strict=True))
        if reach >= levels and at_least <= sum(counts) <= (at_most or 10**9):
            cost = sum(n * cost for n, (_, cost, _) in zip(counts, choices, strict=True))
            best = min(best, cost)
    return best


@given(
    st.integers(0, 7),
    st.lists(PIECES, max_size=2),
    st.lists(st.tuples(PIECES, st.integers(1, 3)), max_size=2),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(3, 5)),
)
def test_the_cheapest_cover_equals_the_best_of_all_multisets(
    levels, pieces, running, at_least, at_most
):
    bounded = tuple(
        Bounded(level, float(cost), count, label)
        for label, ((level, cost), count) in enumerate(running)
    )

    found = cover(levels, items_of(pieces), bounded, at_least=at_least, at_most=at_most)

    assert found.cost == exhaustive(levels, pieces, bounded, at_least, at_most)


@given(
    st.integers(1, 30),
    st.lists(PIECES, min_size=1, max_size=4),
    st.lists(st.tuples(PIECES, st.integers(1, 5)), max_size=3),
    st.integers(0, 4),
)
def test_the_cover_it_names_costs_and_reaches_what_it_says(levels, pieces, running, at_least):
    items = items_of(pieces)
    bounded = tuple(
        Bounded(level, float(cost), count, label)
        for label, ((level, cost), count) in enumerate(running)
    )

    found = cover(levels, items, bounded, at_least=at_least)

    by_label = {int(label): i for i, label in enumerate(items.label)}
    cost = sum(n * items.cost[by_label[label]] for label, n in found.taken)
    reach = sum(n * int(items.level[by_label[label]]) for label, n in found.taken)
    for label, count in found.kept:
        assert count <= bounded[label].count
        cost += count * bounded[label].cost
        reach += count * bounded[label].level
    assert cost == pytest.approx(found.cost)
    assert reach >= levels
    assert found.pieces >= at_least


def test_an_item_that_costs_more_for_no_more_is_left_out():
    kept = undominated(np.array([1, 2, 3]), np.array([4.0, 2.0, 5.0]), np.array([7, 8, 9]))

    assert kept.label.tolist() == [8, 9]


def test_what_cannot_be_covered_costs_infinitely_much():
    lone = Bounded(3, 1.0, 1, 0)

    assert cover(4, items_of([]), (lone,)).cost == np.inf
    assert cover(9, items_of([(2, 1)]), at_most=4).cost == np.inf
