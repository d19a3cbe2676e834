"""One table of the library: rates, search, and the placements found as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corald.library import Placements, TableKey, TemplateTable
from corald.model.hardware import Configuration
from corald.model.templates import Engine
from corald.templates.placement import Rates, partitions
from corald.templates.rates import BUDGETS, NO_HOP, Hop, RateModel
from corald.templates.roofline import Floats, GpuGroup, valid_tensor_parallel
from corald.templates.search import Found, Limits, Space, new_best, search_size

MOST_STAGES = 16
"""Deepest pipeline of the `vllm` profile; efficiency is measured up to 8."""


@dataclass(frozen=True, slots=True)
class TableRates:
    """T̂ for the search, and what it stands for."""

    rates: Rates
    tps: tuple[int, ...]
    """What the first axis of `vllm` rates means."""
    node_tp: NDArray[np.uint8]
    """Profile `coral`: the TP size behind each rate, by configuration, stages, budget, layers."""


def table_rates(model: RateModel, names: Sequence[str], n_max: int) -> TableRates:
    """T̂ of the named configurations, for the engine that the request names."""
    configurations = [model.catalog.configurations[name] for name in names]
    if model.request.engine is Engine.CORAL:
        return _rates_of_whole_nodes(model, configurations, n_max)
    return _rates_of_groups(model, configurations)


def build_table(
    model: RateModel,
    names: Sequence[str],
    space: Space,
    limits: Limits,
    report: Callable[[int, int], None],
) -> TemplateTable:
    """Search all sets; `report` is called with (sets looked at, templates kept) by size."""
    n_max = space.binomials.shape[1] - 1
    rates = table_rates(model, names, n_max)
    best = new_best(len(names), n_max)
    parts = []
    for size in range(1, n_max + 1):
        found, seen = search_size(size, space, limits, rates.rates, best)
        parts.append(_columns(found, rates, model.request.engine, len(names)))
        report(seen, len(found.throughput))
    request = model.request
    columns = _join(parts)
    return TemplateTable(
        key=TableKey(request.model, request.phase, request.engine),
        slo=request.slo,
        workload=request.workload,
        configurations=tuple(names),
        throughput=columns.throughput,
        counts=columns.counts,
        placements=columns.placements,
        uncalibrated=frozenset(
            name
            for name in names
            if not model.calibration.factors(model.catalog.configurations[name].gpu).calibrated
        ),
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """One way to use a configuration: groups of GPUs of one size, in pipelines of these depths."""

    column: int
    tp: int
    group: GpuGroup
    hop: Hop
    stages: range


def _rates_of_whole_nodes(
    model: RateModel, configurations: Sequence[Configuration], n_max: int
) -> TableRates:
    """A node is cut into equal groups of GPUs that all hold the stage; the best size is taken."""
    uses = []
    for column, node in enumerate(configurations):
        for tp in _tensor_parallel_sizes(model, [node]):
            group = model.group(node, tp)
            uses.append(_Use(column, tp, group, NO_HOP, range(1, 2)))
            uses.append(_Use(column, tp, group, model.network_hop(node), range(2, n_max + 1)))
    values = np.zeros((1, len(configurations), n_max, BUDGETS, model.model.layers + 1))
    node_tp = np.ones(values.shape[1:], dtype=np.uint8)
    for use, stages, of_group in _rates_of(model, uses):
        rates = of_group * (use.group.configuration.gpus // use.tp)
        better = rates > values[0, use.column, stages - 1]
        values[0, use.column, stages - 1][better] = rates[better]
        node_tp[use.column, stages - 1][better] = use.tp
    groups = np.ones(values.shape[:2], dtype=np.int64)
    return TableRates(Rates(values, _work(values), groups), (), node_tp)


def _rates_of_groups(model: RateModel, configurations: Sequence[Configuration]) -> TableRates:
    """A node of n GPUs carries n/t stages; alone it hands over inside, else also by network."""
    tps = _tensor_parallel_sizes(model, configurations)
    shape = (len(tps), len(configurations), MOST_STAGES, BUDGETS, model.model.layers + 1)
    values = np.zeros(shape)
    groups = np.zeros(shape[:2], dtype=np.int64)
    uses = []
    for row, tp in enumerate(tps):
        for column, node in enumerate(configurations):
            own = node.gpus // tp
            if node.gpus % tp or own > MOST_STAGES:
                continue
            groups[row, column] = own
            group = model.group(node, tp)
            inside, network = model.local_hop(node), model.network_hop(node)
            alone = NO_HOP if own == 1 else inside
            uses.append(_Use(column, tp, group, alone, range(own, own + 1)))
            chained = _mean_hop(inside, network, own)
            uses.append(_Use(column, tp, group, chained, range(own + 1, MOST_STAGES + 1)))
    for use, stages, rates in _rates_of(model, uses):
        values[tps.index(use.tp), use.column, stages - 1] = rates
    return TableRates(Rates(values, _work(values), groups), tps, np.zeros((0, 0, 0, 0), np.uint8))


def _rates_of(model: RateModel, uses: Sequence[_Use]) -> Iterator[tuple[_Use, int, Floats]]:
    """T̂ of every use and depth, with stage budgets that all uses of a depth share."""
    for stages in range(1, max(use.stages.stop for use in uses)):
        deep = [use for use in uses if stages in use.stages]
        longest = model.longest_budget([(use.group, use.hop) for use in deep], stages)
        for use in deep:
            yield use, stages, model.rates(use.group, use.hop, stages, longest)


def _tensor_parallel_sizes(
    model: RateModel, configurations: Sequence[Configuration]
) -> tuple[int, ...]:
    """Powers of two that divide a node's GPUs and the model's heads."""
    most = max(configuration.gpus for configuration in configurations)
    sizes = [1 << power for power in range(most.bit_length())]
    return tuple(
        tp
        for tp in sizes
        if valid_tensor_parallel(model.model, tp)
        and any(configuration.gpus % tp == 0 for configuration in configurations)
    )


def _mean_hop(inside: Hop, network: Hop, stages: int) -> Hop:
    """Per stage of a node that carries several: all but the last hand over inside."""
    share = 1 / stages
    return Hop(
        share * network.seconds + (1 - share) * inside.seconds,
        share * network.seconds_per_token + (1 - share) * inside.seconds_per_token,
    )


def _work(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((values * np.arange(values.shape[-1])).max(axis=-1))


@dataclass(frozen=True, slots=True)
class _Columns:
    throughput: NDArray[np.float64]
    counts: NDArray[np.uint8]
    placements: Placements


def _columns(found: Found, rates: TableRates, engine: Engine, configurations: int) -> _Columns:
    """Flatten the placements of one size; templates stay in order of rank."""
    rows, size = found.nodes.shape
    counts = np.zeros((rows, configurations), dtype=np.uint8)
    np.add.at(counts, (np.arange(rows)[:, None], found.nodes), 1)
    stages = found.choice[:, 0]
    used = np.arange(found.layers.shape[1]) < stages[:, None]
    layers = found.layers[used]
    if engine is Engine.CORAL:
        label = partitions(size).labels[found.choice[:, 2]]
        ordinals = np.argsort(label, axis=1, kind="stable")
        members = np.stack([(label == stage).sum(axis=1) for stage in range(found.layers.shape[1])])
        held = np.take_along_axis(found.layers, label, axis=1)
        node_tp = rates.node_tp[found.nodes, stages[:, None] - 1, found.choice[:, 1:2], held]
        tps = np.take_along_axis(node_tp, ordinals, axis=1).ravel()
        flat, lengths = ordinals.ravel(), members.T[used]
    else:
        own = rates.rates.groups[found.choice[:, 2:3], found.nodes]
        flat = np.repeat(np.tile(np.arange(size), rows), own.ravel())
        lengths = np.ones(len(flat), dtype=np.int64)
        tps = np.repeat(np.array(rates.tps)[found.choice[:, 2]], stages)
    placements = Placements(
        stages=stages.astype(np.uint8),
        layers=layers.astype(np.uint16),
        members=lengths.astype(np.uint8),
        ordinals=flat.astype(np.uint8),
        tps=tps.astype(np.uint8),
    )
    return _Columns(found.throughput, counts, placements)


def _join(parts: Sequence[_Columns]) -> _Columns:
    """All sizes together, sorted by counts."""
    counts = np.concatenate([part.counts for part in parts])
    throughput = np.concatenate([part.throughput for part in parts])
    placements = Placements.joined([part.placements for part in parts])
    order = np.lexsort(counts.T[::-1])
    return _Columns(throughput[order], counts[order], placements.taken(order))
