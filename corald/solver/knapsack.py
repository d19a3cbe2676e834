"""The covering knapsack of one demand row, by dynamic programming over throughput levels.

Given a number of levels N, *items* that may be taken any number of times and *bounded* items that
exist only so often, find the cheapest multiset whose levels sum to at least N, with at least or at
most so many pieces. Pure numbers: nothing here knows templates or prices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SMALL = 24
"""Items of fewer levels are added one by one: blocks as short as they are would be too many."""
_ROUNDING = 1e-12
"""Relative; what is cheaper by less is equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items by rising level and cost; dominated ones (a dearer one for no more) are left out."""

    level: Ints
    cost: Floats
    label: Ints


@dataclass(frozen=True, slots=True)
class Bounded:
    """`count` equal pieces."""

    level: int
    cost: float
    count: int
    label: int


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """The cheapest cover: `cost` is infinite when there is none."""

    cost: float
    taken: tuple[tuple[int, int], ...] = ()
    """(label, count) of items."""
    kept: tuple[tuple[int, int], ...] = ()
    """(label, count) of bounded items."""
    least: Floats | None = None
    """Least cost by level 0..N, with any number of pieces."""

    @property
    def pieces(self) -> int:
        return sum(count for _, count in self.taken + self.kept)


def cover(
    levels: int,
    items: Items,
    bounded: tuple[Bounded, ...] = (),
    *,
    at_least: int = 0,
    at_most: int | None = None,
) -> Cover:
    """Solve it; the count of pieces becomes a dimension only when the free optimum breaks it."""
    free = _Table(levels, items, bounded, layers=0, exact=False).best(0)
    if free.pieces >= at_least and (at_most is None or free.pieces <= at_most):
        return free
    if at_most is None:
        counted = _Table(levels, items, bounded, layers=at_least, exact=False).best(at_least)
    else:
        table = _Table(levels, items, bounded, layers=at_most, exact=True)
        final = table.cost[at_least : at_most + 1, levels]
        counted = table.best(at_least + int(np.argmin(final))) if len(final) else Cover(np.inf)
    return Cover(counted.cost, counted.taken, counted.kept, free.least)


class _Table:
    """`cost[j, n]`: least cost of at least n levels with (exactly or at least) j pieces."""

    def __init__(
        self, levels: int, items: Items, bounded: tuple[Bounded, ...], *, layers: int, exact: bool
    ) -> None:
        self.items, self.exact = items, exact
        self.pieces = [piece for item in bounded for piece in _binary(item, layers, exact=exact)]
        self.taken: list[NDArray[np.bool_]] = []
        self.cost = np.full((layers + 1, levels + 1), np.inf)
        self.cost[0, 0] = 0.0
        self.pick = np.full(self.cost.shape, -1, dtype=np.int64)
        for piece in self.pieces:
            self._add_piece(piece)
        if len(items.level):
            if not exact and levels:
                self._add_freely()
            for layer in range(1, layers + 1):
                self._add_one(layer)

    def _add_piece(self, piece: Bounded) -> None:
        """Take or leave `piece.count` pieces at once (a 0/1 item)."""
        before = self._before(np.arange(self.cost.shape[1]), piece.level * piece.count)
        shifted = np.full(self.cost.shape, np.inf)
        for layer in range(len(self.cost)):
            source = layer - piece.count
            if source >= 0 or not self.exact:
                shifted[layer] = self.cost[max(source, 0), before] + piece.cost * piece.count
        take = shifted < self.cost
        self.cost = np.where(take, shifted, self.cost)
        self.taken.append(take)

    def _add_freely(self) -> None:
        """Any number of items in layer 0: small ones one by one, then the others together."""
        small = int(np.searchsorted(self.items.level, SMALL))
        for item in range(small):
            self._add_any(item)
        if small < len(self.items.level):
            self._add_all(small)

    def _add_any(self, item: int) -> None:
        """Any number of one item.

        k more of level l and cost c turn cost[n - k·l] into cost[n] at k·c, so the best at n is a
        running minimum of cost[n - k·l] - k·c along k: along the columns of a table of width l.
        """
        level, price = int(self.items.level[item]), self.items.cost[item]
        cost = self.cost[0]
        table = np.full((-(-len(cost) // level) + 1, level), np.inf)
        flat = table.reshape(-1)
        flat[:level] = cost[0]
        flat[level : level + len(cost)] = cost
        paid = price * np.arange(len(table))[:, None]
        table -= paid
        np.minimum.accumulate(table, axis=0, out=table)
        table += paid
        found = flat[level : level + len(cost)]
        better = found < cost - _ROUNDING * price
        cost[better] = found[better]
        self.pick[0, better] = item

    def _add_all(self, first: int) -> None:
        """Any number of the items from `first`, in blocks as long as the smallest level."""
        cost, pick = self.cost[0], self.pick[0]
        levels, costs = self.items.level[first:], self.items.cost[first:]
        step = int(levels[0])
        for start in range(1, len(cost), step):
            n = np.arange(start, min(start + step, len(cost)))
            candidates = cost[self._before(n[:, None], levels)] + costs
            best = candidates.argmin(axis=1)
            least = candidates[np.arange(len(n)), best]
            better = least < cost[n]
            cost[n[better]] = least[better]
            pick[n[better]] = best[better] + first

    def _add_one(self, layer: int) -> None:
        """One item more than in the layer below."""
        below, n = self.cost[layer - 1], np.arange(self.cost.shape[1])
        candidates = below[self._before(n[:, None], self.items.level)] + self.items.cost
        best = candidates.argmin(axis=1)
        least = candidates[n, best]
        better = least < self.cost[layer]
        self.cost[layer, better] = least[better]
        self.pick[layer, better] = best[better]

    @staticmethod
    def _before(n: Ints, level: int | Ints) -> Ints:
        before: Ints = np.maximum(n - level, 0)
        return before

    def best(self, layer: int) -> Cover:
        """Walk back from the last level."""
        n = self.cost.shape[1] - 1
        cost = float(self.cost[layer, n])
        least = self.cost[0] if not self.exact else None
        if not np.isfinite(cost):
            return Cover(np.inf, least=least)
        taken: Counter[int] = Counter()
        kept: Counter[int] = Counter()
        while (item := int(self.pick[layer, n])) >= 0:
            taken[int(self.items.label[item])] += 1
            n = max(n - int(self.items.level[item]), 0)
            layer = max(layer - 1, 0)
        for piece, take in zip(reversed(self.pieces), reversed(self.taken), strict=True):
            if take[layer, n]:
                kept[piece.label] += piece.count
                n = max(n - piece.level * piece.count, 0)
                layer = max(layer - piece.count, 0)
        return Cover(cost, tuple(sorted(taken.items())), tuple(sorted(kept.items())), least)


def _binary(item: Bounded, layers: int, *, exact: bool) -> list[Bounded]:
    """Split a bounded item into 0/1 items of 1, 2, 4, ... pieces that make every count."""
    left = min(item.count, layers) if exact else item.count
    pieces = []
    size = 1
    while left > 0:
        size = min(size, left)
        pieces.append(Bounded(item.level, item.cost, size, item.label))
        left -= size
        size *= 2
    return pieces


def undominated(level: Ints, cost: Floats, label: Ints) -> Items:
    """Keep items cheaper than every item of a higher level; `level` rises strictly."""
    suffix = np.minimum.accumulate(cost[::-1])[::-1]
    later = np.append(suffix[1:], np.inf)
    keep = (cost < later) & np.isfinite(cost)
    return Items(level[keep], cost[keep], label[keep])
