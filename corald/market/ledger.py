"""The append-only record of every call and effect: the truth that tests judge by.

One JSON object a line when dumped; a test reads it back with `Ledger.read`, without asking the
program under test anything.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from corald.model.fleet import Tags
from corald.model.market import Market, OfferingKey


class Record(StrEnum):
    """What kind of line it is."""

    CALL = "call"
    """A request arrived; `what` is the kind of call."""
    REFUSED = "refused"
    """It was answered with an error; `detail` is the code."""
    EFFECT = "effect"
    """Something became of a machine; `what` is an `Effect`."""
    CONTROL = "control"
    """A test changed the world."""


class Effect(StrEnum):
    """What can become of a machine."""

    LAUNCHED = "launched"
    RUNNING = "running"
    REPRICED = "repriced"
    TAGGED = "tagged"
    NOTICED = "noticed"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    number: int
    at: float
    record: Record
    what: str
    token: str = ""
    request: str = ""
    """Hash of everything in the request but its token."""
    instance: str = ""
    offering: OfferingKey | None = None
    tags: Tags = ()
    usd_per_hour: float = 0.0
    """What the machine costs from here on (launched, repriced)."""
    detail: str = ""

    def to_json(self) -> str:
        fields: dict[str, Any] = {"number": self.number, "at": self.at}
        fields |= {"record": self.record, "what": self.what}
        for name in ("token", "request", "instance", "usd_per_hour", "detail"):
            if value := getattr(self, name):
                fields[name] = value
        if self.offering is not None:
            key = self.offering
            fields["offering"] = [
                key.provider,
                key.region,
                key.zone,
                key.instance_type,
                key.market,
            ]
        if self.tags:
            fields["tags"] = dict(self.tags)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str) -> Entry:
        fields: dict[str, Any] = json.loads(line)
        fields["record"] = Record(fields["record"])
        fields["tags"] = tuple(sorted(fields.get("tags", {}).items()))
        if "offering" in fields:
            provider, region, zone, instance_type, market = fields["offering"]
            fields["offering"] = OfferingKey(provider, region, zone, instance_type, Market(market))
        return cls(**fields)


class Ledger:
    """Entries in order, with the running cost of the machines they tell of.

    A machine costs its price from launch to `terminated`, by the second: boot and shutdown are
    counted too, which is never less than a cloud's bill.
    """

    def __init__(
        self, *, keep: int | None = None, sink: Callable[[str], object] | None = None
    ) -> None:
        self._entries: deque[Entry] = deque(maxlen=keep)
        self._sink = sink
        self._written = 0
        self._rates: dict[str, float] = {}
        self._usd_per_hour = 0.0
        self._usd = 0.0
        self._counted_to = 0.0
        self.peak_usd_per_hour = 0.0

    @classmethod
    def read(cls, lines: Iterable[str]) -> Ledger:
        """Build it again from dumped lines; a last line that was cut short is left out."""
        ledger = cls()
        for line in lines:
            if line.endswith("\n"):
                ledger._append(Entry.from_json(line))
        return ledger

    def write(self, at: float, record: Record, what: str, **fields: Any) -> Entry:  # noqa: ANN401 - the fields of Entry
        """Append an entry; `fields` are those of `Entry`."""
        entry = Entry(self._written + 1, at, record, what, **fields)
        self._append(entry)
        if self._sink is not None:
            self._sink(entry.to_json() + "\n")
        return entry

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, or the newest `keep`."""
        return tuple(self._entries)

    @property
    def usd_per_hour(self) -> float:
        """What all machines cost now."""
        return self._usd_per_hour

    def usd(self, until: float) -> float:
        """What all machines have cost up to `until` (not before the last effect)."""
        return self._usd + self._usd_per_hour * max(0.0, until - self._counted_to) / 3600.0

    def calls(self, what: str = "") -> list[Entry]:
        return [e for e in self._entries if e.record is Record.CALL and what in ("", e.what)]

    def refusals(self, what: str = "") -> list[Entry]:
        return [e for e in self._entries if e.record is Record.REFUSED and what in ("", e.what)]

    def effects(self, what: str = "") -> list[Entry]:
        return [e for e in self._entries if e.record is Record.EFFECT and what in ("", e.what)]

    def machines_by_token(self) -> Mapping[str, tuple[str, ...]]:
        """Which machines each token rented: more than one is a duplicate."""
        found: dict[str, tuple[str, ...]] = {}
        for entry in self.effects(Effect.LAUNCHED):
            found[entry.token] = (*found.get(entry.token, ()), entry.instance)
        return found

    def alive(self) -> tuple[str, ...]:
        """Machines that have not been terminated."""
        return tuple(self._rates)

    def dump(self) -> str:
        """All entries as JSON lines."""
        return "".join(entry.to_json() + "\n" for entry in self._entries)

    def _append(self, entry: Entry) -> None:
        self._written = entry.number
        self._entries.append(entry)
        if entry.record is not Record.EFFECT:
            return
        self._usd = self.usd(entry.at)
        self._counted_to = max(self._counted_to, entry.at)
        if entry.what in (Effect.LAUNCHED, Effect.REPRICED):
            self._rates[entry.instance] = entry.usd_per_hour
        elif entry.what == Effect.TERMINATED:
            self._rates.pop(entry.instance, None)
        else:
            return
        self._usd_per_hour = sum(self._rates.values())
        self.peak_usd_per_hour = max(self.peak_usd_per_hour, self._usd_per_hour)
