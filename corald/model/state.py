"""What is durable: the rows of the store, and the changes that one transaction makes to them."""

from __future__ import annotations

from dataclasses import dataclass

from corald.model.events import CapacityObserved, DemandObserved, Offset, PriceObserved, Reject
from corald.model.fleet import Intent, Replica


@dataclass(frozen=True, slots=True)
class Note:
    """One thing the engine did or decided: a log line, an audit line, a count.

    `event` is a frozen name (`launch_committed`, `drain_started`, ...); `fields` are plain values.
    """

    event: str
    fields: tuple[tuple[str, str | int | float | bool | None], ...] = ()
    audit: bool = False
    at: float = 0.0

    def field(self, name: str) -> str | int | float | bool | None:
        return dict(self.fields).get(name)


@dataclass(frozen=True, slots=True)
class Spend:
    """Money accrued on one UTC day."""

    day: str
    usd: float


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows to write in one transaction; later values of a key replace earlier ones."""

    demand: tuple[DemandObserved, ...] = ()
    retired_sources: tuple[str, ...] = ()
    capacity: tuple[CapacityObserved, ...] = ()
    prices: tuple[PriceObserved, ...] = ()
    intents: tuple[Intent, ...] = ()
    replicas: tuple[Replica, ...] = ()
    spend: tuple[Spend, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    """Small facts by name: `paused`, `sequence`, ..."""
    notes: tuple[Note, ...] = ()
    """Those with `audit` set are stored."""
    offsets: tuple[Offset, ...] = ()
    rejects: tuple[Reject, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing has to be written: notes count only when they are audited."""
        rows = (getattr(self, name) for name in self.__slots__ if name != "notes")
        return not any(rows) and not any(note.audit for note in self.notes)


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything a restart begins with; ended intents and gone replicas are left out."""

    demand: tuple[DemandObserved, ...] = ()
    capacity: tuple[CapacityObserved, ...] = ()
    prices: tuple[PriceObserved, ...] = ()
    intents: tuple[Intent, ...] = ()
    replicas: tuple[Replica, ...] = ()
    spend: tuple[Spend, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    offsets: tuple[Offset, ...] = ()
    adopting: bool = False
    """True when the store was empty: tagged machines are adopted, none is terminated."""
