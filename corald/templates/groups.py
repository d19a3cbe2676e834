"""Which configurations can stand in one replica, by who sells them."""

from __future__ import annotations

from collections import defaultdict

from corald.model.hardware import Catalog


def groups_by_cloud(catalog: Catalog) -> tuple[frozenset[str], ...]:
    """The configurations that each cloud sells: a replica never spans clouds."""
    sold = defaultdict(set)
    for instance_type in catalog.instance_types.values():
        sold[instance_type.cloud].add(instance_type.configuration)
    return tuple(frozenset(sold[cloud]) for cloud in sorted(sold))


def groups_by_zone(catalog: Catalog) -> tuple[frozenset[str], ...]:
    """The configurations sold in one zone together, without sets inside other sets.

    Finer than by cloud: fewer node sets, but a library for these zones only.
    """
    sold = defaultdict(set)
    for instance_type in catalog.instance_types.values():
        for price in instance_type.prices:
            for zone in price.zones:
                sold[instance_type.cloud, zone].add(instance_type.configuration)
    distinct = {frozenset(configurations) for configurations in sold.values()}
    return tuple(
        sorted(
            (group for group in distinct if not any(group < other for other in distinct)),
            key=sorted,
        )
    )
