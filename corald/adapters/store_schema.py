"""The tables of the store, how values become rows, and how an older database is brought up to date.

A row is a key and its value as JSON; only what is selected or deleted by has a column of its own.
"""

from __future__ import annotations

import sqlite3
from typing import Final, TypeVar

from pydantic import TypeAdapter

from corald.adapters.records import Reason
from corald.model.events import CapacityObserved, DemandObserved, Offset, PriceObserved, Reject
from corald.model.fleet import Intent, Replica, ReplicaState
from corald.model.state import Changes, Note, Spend, StoredState

T = TypeVar("T")

APPLICATION_ID: Final = 0x636F7261  # "cora", which `file` shows

MIGRATIONS: Final = (
    """
    CREATE TABLE demand (
        source TEXT NOT NULL, model TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (source, model)) STRICT, WITHOUT ROWID;
    CREATE TABLE capacity (
        offering TEXT NOT NULL, source TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (offering, source)) STRICT, WITHOUT ROWID;
    CREATE TABLE prices (
        offering TEXT NOT NULL, source TEXT NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (offering, source)) STRICT, WITHOUT ROWID;
    CREATE TABLE intents (
        id TEXT PRIMARY KEY, ended INTEGER NOT NULL, value BLOB NOT NULL) STRICT;
    CREATE INDEX intents_ended ON intents (ended);
    CREATE TABLE replicas (
        id TEXT PRIMARY KEY, ended INTEGER NOT NULL, value BLOB NOT NULL) STRICT;
    CREATE INDEX replicas_ended ON replicas (ended);
    CREATE TABLE spend (day TEXT PRIMARY KEY, usd REAL NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE offsets (
        topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)) STRICT, WITHOUT ROWID;
    CREATE TABLE audit (id INTEGER PRIMARY KEY, value BLOB NOT NULL) STRICT;
    CREATE TABLE quarantine (
        id INTEGER PRIMARY KEY, reason TEXT NOT NULL, detail TEXT NOT NULL, raw BLOB NOT NULL,
        topic TEXT NOT NULL, partition INTEGER NOT NULL, record_offset INTEGER NOT NULL,
        at REAL NOT NULL) STRICT;
    """,
)
"""The script at index n brings version n to n + 1; a published one is never edited."""

VERSION: Final = len(MIGRATIONS)

KEPT_ENDED: Final = 10_000
KEPT_AUDIT: Final = 100_000
KEPT_QUARANTINE_BYTES: Final = 10 * 1024 * 1024
QUARANTINE_ROW_BYTES: Final = 200
"""What a quarantined record costs beside its own bytes, roughly."""

ADOPTED: Final = ("adopted", "1")
"""The setting whose absence tells a new store, in which tagged machines are adopted."""

DEMAND: Final = TypeAdapter(DemandObserved)
CAPACITY: Final = TypeAdapter(CapacityObserved)
PRICE: Final = TypeAdapter(PriceObserved)
INTENT: Final = TypeAdapter(Intent)
REPLICA: Final = TypeAdapter(Replica)
NOTE: Final = TypeAdapter(Note)

Statement = tuple[str, list[tuple[object, ...]]]
"""SQL and the rows to execute it with."""


def _upsert(table: str, *columns: str) -> str:
    marks = ", ".join("?" * len(columns))
    sets = ", ".join(f"{column} = excluded.{column}" for column in columns)
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO UPDATE SET {sets}"  # noqa: S608 - our own names


_RETIRE = "DELETE FROM demand WHERE source = ?"
_DEMAND = _upsert("demand", "source", "model", "value")
_CAPACITY = _upsert("capacity", "offering", "source", "value")
_PRICES = _upsert("prices", "offering", "source", "value")
_INTENTS = _upsert("intents", "id", "ended", "value")
_REPLICAS = _upsert("replicas", "id", "ended", "value")
_SPEND = _upsert("spend", "day", "usd")
_SETTINGS = _upsert("settings", "name", "value")
_OFFSETS = _upsert("offsets", "topic", "partition", "next_offset")
_AUDIT = "INSERT INTO audit (value) VALUES (?)"
_QUARANTINE = """
    INSERT INTO quarantine (reason, detail, raw, topic, partition, record_offset, at)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""


def statements(changes: Changes) -> list[Statement]:
    """What to execute for these changes, in order; sources are retired before demand is written."""
    every: tuple[Statement, ...] = (
        (_RETIRE, [(source,) for source in changes.retired_sources]),
        (_DEMAND, [(d.source, d.model, DEMAND.dump_json(d)) for d in changes.demand]),
        (_CAPACITY, [(str(c.offering), c.source, CAPACITY.dump_json(c)) for c in changes.capacity]),
        (_PRICES, [(str(p.offering), p.source, PRICE.dump_json(p)) for p in changes.prices]),
        (_INTENTS, [(i.id, i.state.ended, INTENT.dump_json(i)) for i in changes.intents]),
        (
            _REPLICAS,
            [(r.id, r.state is ReplicaState.GONE, REPLICA.dump_json(r)) for r in changes.replicas],
        ),
        (_SPEND, [(spend.day, spend.usd) for spend in changes.spend]),
        (_SETTINGS, list(changes.settings)),
        (_OFFSETS, [(o.topic, o.partition, o.next_offset) for o in changes.offsets]),
        (_AUDIT, [(NOTE.dump_json(note),) for note in changes.notes if note.audit]),
        (
            _QUARANTINE,
            [
                (r.reason, r.detail, r.raw, r.topic, r.partition, r.offset, r.at)
                for r in changes.rejects
                if kept(r)
            ],
        ),
    )
    return [(sql, rows) for sql, rows in every if rows]


def kept(reject: Reject) -> bool:
    """Whether the quarantine keeps it: routine notices would push out what needs a look."""
    return reject.reason != Reason.IRRELEVANT


def stored_state(database: sqlite3.Connection) -> StoredState:
    """Read everything a restart begins with."""
    settings = tuple(database.execute("SELECT name, value FROM settings ORDER BY name"))
    return StoredState(
        demand=_values(database, DEMAND, "SELECT value FROM demand"),
        capacity=_values(database, CAPACITY, "SELECT value FROM capacity"),
        prices=_values(database, PRICE, "SELECT value FROM prices"),
        intents=_values(database, INTENT, "SELECT value FROM intents WHERE ended = 0"),
        replicas=_values(database, REPLICA, "SELECT value FROM replicas WHERE ended = 0"),
        spend=tuple(Spend(*row) for row in database.execute("SELECT day, usd FROM spend")),
        settings=settings,
        offsets=tuple(
            Offset(*row)
            for row in database.execute("SELECT topic, partition, next_offset FROM offsets")
        ),
        adopting=ADOPTED not in settings,
    )


def audit_notes(database: sqlite3.Connection, limit: int) -> tuple[Note, ...]:
    """The newest audit notes, newest first."""
    return _values(database, NOTE, "SELECT value FROM audit ORDER BY id DESC LIMIT ?", limit)


def quarantined(database: sqlite3.Connection, limit: int) -> tuple[Reject, ...]:
    """The newest refused records, newest first."""
    rows = database.execute(
        "SELECT reason, detail, raw, topic, partition, record_offset, at"
        " FROM quarantine ORDER BY id DESC LIMIT ?",
        (limit,),
    )
    return tuple(Reject(*row) for row in rows)


def _values(
    database: sqlite3.Connection, adapter: TypeAdapter[T], sql: str, *parameters: object
) -> tuple[T, ...]:
    return tuple(adapter.validate_json(value) for (value,) in database.execute(sql, parameters))


def trim_ended(database: sqlite3.Connection) -> None:
    """Forget the oldest ended intents and replicas beyond the number kept."""
    for table in ("intents", "replicas"):
        database.execute(
            f"DELETE FROM {table} WHERE ended = 1 AND rowid <= (SELECT rowid FROM {table}"  # noqa: S608 - our own names
            " WHERE ended = 1 ORDER BY rowid DESC LIMIT 1 OFFSET ?)",
            (KEPT_ENDED,),
        )


def trim_audit(database: sqlite3.Connection) -> None:
    """Forget the oldest audit notes beyond the number kept."""
    database.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (KEPT_AUDIT,))


def trim_quarantine(database: sqlite3.Connection, size: int) -> int:
    """Forget the oldest refused records until the rest fits; answers with the size left."""
    while size > KEPT_QUARANTINE_BYTES:
        gone = database.execute(
            "DELETE FROM quarantine WHERE id IN (SELECT id FROM quarantine ORDER BY id LIMIT 100)"
            " RETURNING length(raw)"
        ).fetchall()
        if not gone:
            return 0
        size -= sum(length + QUARANTINE_ROW_BYTES for (length,) in gone)
    return size


def quarantine_size(database: sqlite3.Connection) -> int:
    """What the quarantine takes, in bytes."""
    ((size,),) = database.execute(
        "SELECT coalesce(sum(length(raw) + ?), 0) FROM quarantine", (QUARANTINE_ROW_BYTES,)
    )
    return int(size)
