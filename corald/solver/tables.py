"""Template tables as pricing wants them: sorted by throughput, ready for one matrix product.

A prepared table depends on the library alone, so it is made once and serves every solve.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corald.library import Library, TableKey, TemplateTable

_DECORATION = re.compile(r"^\d+x|-(slow|fast)$")


def gpu_of(configuration: str) -> str:
    """The GPU in a configuration's name (`4xL4-slow` is of `L4`), as the catalogue names them."""
    return _DECORATION.sub("", configuration)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedTable:
    """Templates of one (model, phase, engine) that yield anything, by rising throughput.

    A *template index* in this package is a row here, not a row of the library's table.
    """

    source: TemplateTable
    order: NDArray[np.int64]
    """Row of the library's table, by template index."""
    throughput: NDArray[np.float64]
    counts: NDArray[np.uint8]
    weights: NDArray[np.float32]
    """`counts` as the matrix product wants them."""
    largest: NDArray[np.uint8]
    """Most nodes of each configuration in any template."""
    one_configuration: NDArray[np.bool_]
    one_gpu: NDArray[np.bool_]

    @classmethod
    def of(cls, table: TemplateTable) -> PreparedTable:
        order = np.argsort(table.throughput, kind="stable")
        order = order[table.throughput[order] > 0]
        counts = np.ascontiguousarray(table.counts[order])
        return cls(
            source=table,
            order=order,
            throughput=table.throughput[order],
            counts=counts,
            weights=counts.astype(np.float32),
            largest=counts.max(axis=0, initial=0),
            one_configuration=(counts > 0).sum(axis=1) == 1,
            one_gpu=_of_one_gpu(counts, table.configurations),
        )

    def __len__(self) -> int:
        return len(self.throughput)

    def id(self, template: int) -> str:
        return self.source.id(int(self.order[template]))

    def index_of(self, template_id: str) -> int | None:
        """The template index of an id, or None when it is unknown or yields nothing."""
        row = self.source.index_of(template_id)
        if row is None:
            return None
        found = np.flatnonzero(self.order == row)
        return int(found[0]) if len(found) else None


class PreparedLibrary:
    """Prepares each table of a library when it is first asked for."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._tables: dict[TableKey, PreparedTable] = {}

    def table(self, key: TableKey) -> PreparedTable | None:
        """The table of `key`; None when the library has none."""
        source = self.library.tables.get(key)
        if source is None:
            return None
        if key not in self._tables:
            self._tables[key] = PreparedTable.of(source)
        return self._tables[key]


def _of_one_gpu(counts: NDArray[np.uint8], configurations: Sequence[str]) -> NDArray[np.bool_]:
    gpus = [gpu_of(name) for name in configurations]
    used = np.zeros(len(counts), dtype=np.int64)
    for gpu in sorted(set(gpus)):
        columns = [index for index, name in enumerate(gpus) if name == gpu]
        used += counts[:, columns].any(axis=1)
    single: NDArray[np.bool_] = used == 1
    return single
