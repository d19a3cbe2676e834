"""Which configurations can stand in one replica, by who sells them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from corald.model.hardware import Catalog


def groups_by_cloud(catalog: Catalog) -> tuple[frozenset[str], ...]:
    """The configurations that each cloud sells: a replica never spans clouds."""
    sold = defaultdict(set)
    for instance_type in catalog.instance_types.values():
        sold[instance_type.cloud].add(instance_type.configuration)
    return tuple(frozenset(sold[cloud]) for cloud in sorted(sold))


def groups_by_region(catalog: Catalog, regions: Collection[str] = ()) -> tuple[frozenset[str], ...]:
    """The configurations sold in one region together, without sets inside other sets.

    Only of `regions` where any of them sells something; else of all.
    """
    sold = defaultdict(set)
    for instance_type in catalog.instance_types.values():
        for price in instance_type.prices:
            sold[instance_type.cloud, price.region].add(instance_type.configuration)
    wanted = [kinds for (_, region), kinds in sold.items() if region in regions]
    return _largest(wanted or sold.values())


def groups_by_zone(catalog: Catalog) -> tuple[frozenset[str], ...]:
    """The configurations sold in one zone together, without sets inside other sets.

    Finer than by cloud: fewer node sets, but a library for these zones only.
    """
    sold = defaultdict(set)
    for instance_type in catalog.instance_types.values():
        for price in instance_type.prices:
            for zone in price.zones:
                sold[instance_type.cloud, zone].add(instance_type.configuration)
    return _largest(sold.values())


def _largest(groups: Iterable[Collection[str]]) -> tuple[frozenset[str], ...]:
    """Distinct groups that lie in no other one, in order."""
    distinct = {frozenset(group) for group in groups}
    largest = (g for g in distinct if not any(g < other for other in distinct))
    return tuple(sorted(largest, key=sorted))
