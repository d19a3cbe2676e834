"""The template library in memory: columns of numbers, and templates made from them on demand.

Nothing here searches or reads files; the solver works on the columns, people on the templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from corald.errors import LibraryError
from corald.model.templates import (
    Engine,
    Nodes,
    Phase,
    ServingTemplate,
    Slo,
    Stage,
    Workload,
    shape_of,
)

MAX_NODES = 255
"""Of one configuration in a template, by the width of the count column."""


@dataclass(frozen=True, slots=True, order=True)
class TableKey:
    """What a table of templates is for."""

    model: str
    phase: Phase
    engine: Engine

    def __str__(self) -> str:
        return f"{self.model}/{self.phase}/{self.engine}"


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """The stages of all templates of a table, flattened in order of template, stage and node."""

    stages: NDArray[np.uint8]
    """Stages of each template."""
    layers: NDArray[np.uint16]
    """Of each stage."""
    members: NDArray[np.uint8]
    """Nodes of each stage."""
    ordinals: NDArray[np.uint8]
    """Of each node of each stage, within its template."""
    tps: NDArray[np.uint8]
    """Tensor parallelism of each node of each stage."""
    stage_starts: NDArray[np.int64] = field(init=False, repr=False)
    member_starts: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage_starts", _starts(self.stages))
        object.__setattr__(self, "member_starts", _starts(self.members))
        sizes = (self.stage_starts[-1], self.stage_starts[-1], self.member_starts[-1])
        if sizes != (len(self.layers), len(self.members), len(self.ordinals)):
            raise LibraryError("placement columns of a template table do not fit together")

    @classmethod
    def of(cls, placements: Sequence[tuple[Stage, ...]]) -> Placements:
        """Flatten the stages of templates, given in order."""
        stages = [stage for placement in placements for stage in placement]
        return cls(
            stages=np.array([len(placement) for placement in placements], dtype=np.uint8),
            layers=np.array([stage.layers for stage in stages], dtype=np.uint16),
            members=np.array([len(stage.node_ordinals) for stage in stages], dtype=np.uint8),
            ordinals=np.array([o for s in stages for o in s.node_ordinals], dtype=np.uint8),
            tps=np.array([tp for s in stages for tp in s.tps], dtype=np.uint8),
        )

    @classmethod
    def joined(cls, parts: Sequence[Placements]) -> Placements:
        """The templates of all parts, one part after another."""
        names = ("stages", "layers", "members", "ordinals", "tps")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def taken(self, order: NDArray[np.int64]) -> Placements:
        """The templates at these rows, in this order."""
        stages = _spans(self.stage_starts, order)
        nodes = _spans(self.member_starts, stages)
        return Placements(
            stages=self.stages[order],
            layers=self.layers[stages],
            members=self.members[stages],
            ordinals=self.ordinals[nodes],
            tps=self.tps[nodes],
        )

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, index: int) -> tuple[Stage, ...]:
        return tuple(
            self._stage(row)
            for row in range(int(self.stage_starts[index]), int(self.stage_starts[index + 1]))
        )

    def _stage(self, row: int) -> Stage:
        first, last = int(self.member_starts[row]), int(self.member_starts[row + 1])
        tps = tuple(int(tp) for tp in self.tps[first:last])
        return Stage(
            layers=int(self.layers[row]),
            tp=max(tps),
            node_ordinals=tuple(int(ordinal) for ordinal in self.ordinals[first:last]),
            node_tps=() if len(set(tps)) == 1 else tps,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TemplateTable:
    """All templates of one (model, phase, engine); rows are sorted by `counts`, which is unique.

    The columns are read-only: they are shared by everybody who holds the library.
    """

    key: TableKey
    slo: Slo
    workload: Workload
    configurations: tuple[str, ...]
    """The columns of `counts`, sorted by name; the same in every table of a library."""
    throughput: NDArray[np.float64]
    """Per replica, in the unit of the phase."""
    counts: NDArray[np.uint8]
    """Nodes by template and configuration."""
    placements: Placements
    uncalibrated: frozenset[str] = frozenset()
    """Configurations whose speed is backed by no measurement."""
    ordering: NDArray[np.bytes_] = field(init=False, repr=False)
    """Rows of `counts` as byte strings, for the binary search; shares their memory."""

    def __post_init__(self) -> None:
        rows = len(self.throughput)
        if self.counts.shape != (rows, len(self.configurations)) or len(self.placements) != rows:
            raise LibraryError(f"columns of template table {self.key} do not fit together")
        counts = np.ascontiguousarray(self.counts, dtype=np.uint8)
        for column in (self.throughput, counts):
            column.flags.writeable = False
        object.__setattr__(self, "counts", counts)
        ordering = counts.reshape(-1).view(f"S{len(self.configurations)}")
        if np.any(ordering[1:] <= ordering[:-1]):
            raise LibraryError(f"rows of template table {self.key} are not sorted and unique")
        object.__setattr__(self, "ordering", ordering)

    @classmethod
    def of(
        cls,
        templates: Sequence[ServingTemplate],
        *,
        configurations: Sequence[str],
        slo: Slo,
        workload: Workload,
        uncalibrated: Iterable[str] = (),
    ) -> TemplateTable:
        """Make the table of templates of one key (at least one; `configurations` may hold more)."""
        columns = tuple(sorted(configurations))
        column = {name: index for index, name in enumerate(columns)}
        counts = np.zeros((len(templates), len(columns)), dtype=np.uint8)
        for row, template in enumerate(templates):
            for name, count in template.nodes:
                counts[row, column[name]] = count
        order = np.lexsort(counts.T[::-1])
        ordered = [templates[row] for row in order]
        return cls(
            key=TableKey(templates[0].model, templates[0].phase, templates[0].engine),
            slo=slo,
            workload=workload,
            configurations=columns,
            throughput=np.array([template.throughput for template in ordered], dtype=np.float64),
            counts=counts[order],
            placements=Placements.of([template.stages for template in ordered]),
            uncalibrated=frozenset(uncalibrated),
        )

    def __len__(self) -> int:
        return len(self.throughput)

    def nodes(self, index: int) -> Nodes:
        """The node multiset of one row."""
        row = self.counts[index]
        return tuple((self.configurations[column], int(row[column])) for column in row.nonzero()[0])

    def shape(self, index: int) -> str:
        """The node multiset of one row, for people: `1xA10G+2xL4`."""
        return shape_of(self.nodes(index))

    def id(self, index: int) -> str:
        """The template id of one row, without making the template."""
        return f"{self.key}/{self.shape(index)}"

    def template(self, index: int) -> ServingTemplate:
        """One row as a value."""
        nodes = self.nodes(index)
        return ServingTemplate(
            model=self.key.model,
            phase=self.key.phase,
            engine=self.key.engine,
            nodes=nodes,
            stages=self.placements[index],
            throughput=float(self.throughput[index]),
            uncalibrated=any(name in self.uncalibrated for name, _ in nodes),
        )

    def index_of(self, template_id: str) -> int | None:
        """The row of a template id, or None when this table does not hold it."""
        prefix, _, shape = template_id.rpartition("/")
        row = self._row_of(shape) if prefix == str(self.key) else None
        if row is None or not len(self):
            return None
        index = int(np.searchsorted(self.ordering, row))
        found = index < len(self) and self.ordering[index] == row
        return index if found and self.shape(index) == shape else None

    def _row_of(self, shape: str) -> bytes | None:
        counts = bytearray(len(self.configurations))
        for part in shape.split("+"):
            count, _, name = part.partition("x")
            if name not in self.configurations or not count.isdecimal() or int(count) > MAX_NODES:
                return None
            counts[self.configurations.index(name)] = int(count)
        return bytes(counts).rstrip(b"\0")


@dataclass(frozen=True, slots=True)
class LibraryOrigin:
    """What a library was made from; together it decides the fingerprint. Prices play no part."""

    n_max: int
    """Most nodes in a template."""
    rho: float
    """Total GPU memory of a template stays below this many times the model's size."""
    epsilon: float
    """Splits that come within this fraction replace a template; 0 keeps the optimum exact."""
    pruned: bool
    """False: every node set that serves is in the library."""
    groups: tuple[tuple[str, ...], ...]
    """Configurations that may stand in one template together."""
    model_digests: Mapping[str, str]
    configuration_digests: Mapping[str, str]
    """Of each configuration with its GPU."""
    calibration_digests: Mapping[str, str]
    """Of the efficiency factors of each GPU."""
    engine_versions: Mapping[str, str]
    performance_model: str
    """Version of the formulas."""


@dataclass(frozen=True, slots=True)
class Library:
    """The templates of several models, phases and engines over one set of configurations."""

    fingerprint: str
    configurations: tuple[str, ...]
    tables: Mapping[TableKey, TemplateTable]
    origin: LibraryOrigin

    def table(self, model: str, phase: Phase, engine: Engine) -> TemplateTable:
        """The table of one (model, phase, engine); an error names those that exist."""
        key = TableKey(model, phase, engine)
        if (table := self.tables.get(key)) is not None:
            return table
        known = ", ".join(str(key) for key in sorted(self.tables)) or "nothing"
        raise LibraryError(
            f"template library {self.fingerprint} has no table {key}; it has: {known}. "
            f"Build one that includes it with `corald templates build`."
        )

    def template(self, template_id: str) -> ServingTemplate | None:
        """The template of this id, or None."""
        for key, table in self.tables.items():
            if template_id.startswith(f"{key}/"):
                index = table.index_of(template_id)
                return None if index is None else table.template(index)
        return None

    def template_ids(self, model: str, phase: Phase, engine: Engine) -> tuple[str, ...]:
        """Every id of one table; empty when there is no such table."""
        table = self.tables.get(TableKey(model, phase, engine))
        return () if table is None else tuple(table.id(i) for i in range(len(table)))

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables.values())


def _starts(lengths: NDArray[np.uint8]) -> NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _spans(starts: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entries of all `rows`, one row after another, where row r is starts[r]:starts[r + 1]."""
    lengths = starts[rows + 1] - starts[rows]
    ends = np.cumsum(lengths)
    shift = np.repeat(starts[rows] - (ends - lengths), lengths)
    return np.asarray(np.arange(int(lengths.sum())) + shift)
