"""Build a template library: every table that is asked for, over one set of configurations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from corald.errors import ConfigError
from corald.library import (
    Library,
    LibraryOrigin,
    TableKey,
    TemplateTable,
    configuration_digest,
    fingerprint_of,
    model_digest,
)
from corald.model.hardware import Catalog
from corald.model.templates import Engine
from corald.templates.calibration import DEFAULT_CALIBRATION, Calibration
from corald.templates.engines import ENGINE_VERSIONS
from corald.templates.rates import BuildRequest, RateModel
from corald.templates.roofline import PERFORMANCE_MODEL

MOST_NODES = 8
"""Partitions are listed in full up to this size (Bell(8) = 4,140)."""
MOST_GROUPS = 62


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How far the search goes."""

    n_max: int = 6
    """Most nodes in a template."""
    rho: float = 12.0
    """Total GPU memory of a template stays below this many times the model's size."""
    epsilon: float = 0.0
    """Drop templates that are within this fraction of a split of themselves; 0 is exact."""
    prune: bool = True
    groups: Sequence[frozenset[str]] = ()
    """Configurations that one cloud sells; a template lies within one group. Empty: one group."""
    calibration: Calibration = DEFAULT_CALIBRATION
    workers: int | None = None
    """Threads; None takes one per processor."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is."""

    table: TableKey
    nodes: int
    """The size of the sets just searched in this table."""
    steps_done: int
    steps: int
    """One step is one size of one table; later sizes take longer."""
    seen: int
    """Node sets looked at so far, in all tables."""
    kept: int


def build_library(
    catalog: Catalog,
    requests: Sequence[BuildRequest],
    options: BuildOptions | None = None,
    *,
    configurations: Iterable[str] | None = None,
    progress: Callable[[BuildProgress], None] | None = None,
) -> Library:
    """Search the templates of all `requests` over the catalogue's (or the given) configurations.

    `progress` is called from the threads of the search, one call at a time.

    Raises:
        ConfigError: A request or option cannot be built; the message says which.
    """
    options = options or BuildOptions()
    names = tuple(sorted(catalog.configurations if configurations is None else configurations))
    _check(catalog, requests, options, names)
    origin = _origin(catalog, requests, options, names)
    counter = _Counter(len(requests) * options.n_max, progress)
    with ThreadPoolExecutor(options.workers or os.cpu_count() or 1) as pool:
        # Large models have the most sets: begun last, one would leave the other threads idle.
        ordered = sorted(requests, key=lambda request: -catalog.models[request.model].weight_gib)
        models = [RateModel(request, catalog, options.calibration) for request in ordered]
        jobs = [pool.submit(_build, model, names, options, counter) for model in models]
        tables = [job.result() for job in jobs]
    tables.sort(key=lambda table: table.key)
    return Library(
        fingerprint=fingerprint_of(origin, [(t.key, t.slo, t.workload) for t in tables]),
        configurations=names,
        tables={table.key: table for table in tables},
        origin=origin,
    )


def _check(
    catalog: Catalog,
    requests: Sequence[BuildRequest],
    options: BuildOptions,
    names: tuple[str, ...],
) -> None:
    if find_spec("numba") is None:
        raise ConfigError("building templates needs numba: install it with `corald[templates]`")
    if not (requests and names):
        raise ConfigError("nothing to build: name at least one model and one configuration")
    for request in requests:
        if request.model not in catalog.models:
            raise ConfigError(f"model {request.model} is not in the catalogue's models.toml")
    for name in names:
        if name not in catalog.configurations:
            raise ConfigError(f"configuration {name} is not in the catalogue's configurations.toml")
    if len({(r.model, r.phase, r.engine) for r in requests}) < len(requests):
        raise ConfigError("the same model, phase and engine is asked for twice in one library")
    _check_options(options)


def _check_options(options: BuildOptions) -> None:
    if not 1 <= options.n_max <= MOST_NODES:
        raise ConfigError(f"n_max is {options.n_max}; it must lie between 1 and {MOST_NODES}")
    if options.epsilon < 0 or options.rho <= 0:
        raise ConfigError("epsilon must not be negative, and rho must be positive")
    if len(options.groups) > MOST_GROUPS:
        raise ConfigError(f"{len(options.groups)} groups of configurations; at most {MOST_GROUPS}")


def _origin(
    catalog: Catalog,
    requests: Sequence[BuildRequest],
    options: BuildOptions,
    names: tuple[str, ...],
) -> LibraryOrigin:
    nodes = [catalog.configurations[name] for name in names]
    models = {request.model for request in requests}
    engines = {request.engine for request in requests}
    groups = options.groups or [frozenset(names)]
    return LibraryOrigin(
        n_max=options.n_max,
        rho=options.rho,
        epsilon=options.epsilon,
        pruned=options.prune,
        groups=tuple(sorted(tuple(sorted(group & set(names))) for group in groups)),
        model_digests={name: model_digest(catalog.models[name]) for name in sorted(models)},
        configuration_digests={
            node.name: configuration_digest(node, catalog.gpus[node.gpu]) for node in nodes
        },
        calibration_digests={node.gpu: options.calibration.digest(node.gpu) for node in nodes},
        engine_versions={str(engine): ENGINE_VERSIONS[engine] for engine in sorted(engines)},
        performance_model=PERFORMANCE_MODEL,
    )


class _Counter:
    """Adds up the reports of all threads."""

    def __init__(self, steps: int, progress: Callable[[BuildProgress], None] | None) -> None:
        self._steps = steps
        self._progress = progress
        self._lock = Lock()
        self._done = self._seen = self._kept = 0

    def add(self, table: TableKey, nodes: int, seen: int, kept: int) -> None:
        with self._lock:
            self._done += 1
            self._seen += seen
            self._kept += kept
            if self._progress is not None:
                self._progress(
                    BuildProgress(table, nodes, self._done, self._steps, self._seen, self._kept)
                )


def _build(
    model: RateModel, names: tuple[str, ...], options: BuildOptions, counter: _Counter
) -> TemplateTable:
    from corald.templates.search import Limits, new_space
    from corald.templates.tables import build_table

    catalog, request = model.catalog, model.request
    nodes = [catalog.configurations[name] for name in names]
    memory = np.array([node.gpus * catalog.gpus[node.gpu].memory_gib for node in nodes])
    limit = options.rho * model.model.weight_gib
    space = new_space(memory, limit, _group_bits(names, options.groups), options.n_max)
    limits = Limits(request.engine is Engine.CORAL, options.prune, options.epsilon)
    key = TableKey(request.model, request.phase, request.engine)
    sizes = iter(range(1, options.n_max + 1))
    return build_table(
        model,
        names,
        space,
        limits,
        lambda seen, kept: counter.add(key, next(sizes), seen, kept),
    )


def _group_bits(names: Sequence[str], groups: Sequence[frozenset[str]]) -> NDArray[np.int64]:
    bits = np.zeros(len(names), dtype=np.int64)
    for bit, group in enumerate(groups or [frozenset(names)]):
        for column, name in enumerate(names):
            if name in group:
                bits[column] |= 1 << bit
    return bits
