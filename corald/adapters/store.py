"""The store: SQLite in a state directory, one fsynced transaction per commit.

It fails static: after a commit that failed it refuses every further one, as SQLite after one EIO
would go on as if nothing had happened; and it never starts over a database that it cannot read.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from pydantic import ValidationError

from corald.adapters import store_schema as schema
from corald.adapters.state_lock import StateLock
from corald.errors import StoreError
from corald.model.events import Reject
from corald.model.state import Changes, Note, StoredState

P = ParamSpec("P")
T = TypeVar("T")

FILE = "corald.db"
TRIM_EVERY_COMMITS = 1000


class SqliteStore:
    """Implements `corald.runtime.ports.Store`; `open` it, `close` it."""

    def __init__(
        self, database: sqlite3.Connection, lock: StateLock, executor: ThreadPoolExecutor | None
    ) -> None:
        self._database = database
        self._lock = lock
        self._executor = executor
        self._refusal = ""
        self._commits = 0
        self._quarantine_size = schema.quarantine_size(database)

    @classmethod
    def open(cls, directory: Path, *, inline: bool = False, fsync: bool = True) -> Self:
        """Lock the directory, check the database, and bring it up to date or make a new one.

        `inline` works in the calling thread and `fsync=False` survives a crash of the process only:
        both are for simulations.

        Raises:
            StateLockedError: another daemon holds the directory.
            StoreError: the directory or database cannot be used; nothing was changed.
        """
        _prepare(directory)
        lock = StateLock(directory)
        try:
            database = _open(directory / FILE, fsync=fsync)
            executor = None if inline else ThreadPoolExecutor(1, thread_name_prefix="store")
            return cls(database, lock, executor)
        except BaseException:
            lock.release()
            raise

    async def load(self) -> StoredState:
        """Read everything a restart begins with."""
        return await self._call(self._read, schema.stored_state)

    async def commit(self, changes: Changes) -> None:
        """Write all of `changes`, or nothing, and return when it is on disk.

        A cancelled commit may still be written.
        """
        await self._call(self._commit, changes)

    async def audit(self, limit: int) -> Sequence[Note]:
        """The newest audit notes, newest first."""
        return await self._call(self._read, lambda db: schema.audit_notes(db, limit))

    async def quarantined(self, limit: int) -> Sequence[Reject]:
        """The newest refused records, newest first."""
        return await self._call(self._read, lambda db: schema.quarantined(db, limit))

    async def backup(self, target: Path) -> None:
        """Copy the database, as of now, to a file that is replaced as a whole."""
        await self._call(self._backup, target)

    async def close(self) -> None:
        """Close the database and release the directory."""
        await self._call(self._database.close)
        if self._executor is not None:
            self._executor.shutdown()
        self._lock.release()

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._executor is None:
            return function(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def _commit(self, changes: Changes) -> None:
        if self._refusal:
            raise StoreError(self._refusal)
        statements = schema.statements(changes)
        if not statements:
            return
        try:
            with _transaction(self._database):
                for sql, rows in statements:
                    self._database.executemany(sql, rows)
                self._trim(changes)
        except sqlite3.Error as error:
            self._refusal = (
                f"the store failed to write and takes no more changes: {error};"
                " see to the disk, then restart corald"
            )
            raise StoreError(self._refusal) from error

    def _trim(self, changes: Changes) -> None:
        if any(note.audit for note in changes.notes):
            schema.trim_audit(self._database)
        self._quarantine_size += sum(
            len(reject.raw) + schema.QUARANTINE_ROW_BYTES
            for reject in changes.rejects
            if schema.kept(reject)
        )
        self._quarantine_size = schema.trim_quarantine(self._database, self._quarantine_size)
        if self._commits % TRIM_EVERY_COMMITS == 0:
            schema.trim_ended(self._database)
        self._commits += 1

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return query(self._database)
        except (sqlite3.Error, ValidationError) as error:
            raise StoreError(f"cannot read the store: {error}") from error

    def _backup(self, target: Path) -> None:
        try:
            with _replacing(target) as new, _connected(new) as copy:
                self._database.backup(copy)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot back up the store to {target}: {error}") from error


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode & 0o777
    except OSError as error:
        raise StoreError(f"cannot use the state directory {directory}: {error}") from error
    if mode & 0o022:
        raise StoreError(
            f"others may write to the state directory {directory} (mode {mode:o}):"
            f" chmod 700 {directory}"
        )


def _open(file: Path, *, fsync: bool) -> sqlite3.Connection:
    try:
        if not file.exists():
            _create(file)
        database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            _check(database, file)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'OFF'}")
            database.execute("PRAGMA journal_size_limit = 16777216")
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise StoreError(_damaged(file, str(error))) from error
    return database


def _create(file: Path) -> None:
    """Make the database aside and rename it, so that a half-made one is never taken for it."""
    if any(file.with_name(f"{FILE}{tail}").exists() for tail in ("-wal", "-journal")):
        raise StoreError(_damaged(file, "it is gone but its journal is still there"))
    with _replacing(file) as new, _connected(new) as database:
        database.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        _migrate(database, 0)


def _check(database: sqlite3.Connection, file: Path) -> None:
    ((application,),) = database.execute("PRAGMA application_id")
    ((version,),) = database.execute("PRAGMA user_version")
    if application != schema.APPLICATION_ID:
        raise StoreError(_damaged(file, "it is empty or not a database of corald"))
    if version > schema.VERSION:
        raise StoreError(
            f"{file} was written by a newer corald (format {version}, this one knows"
            f" {schema.VERSION}): install that version again"
        )
    findings = [text for (text,) in database.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        raise StoreError(_damaged(file, "; ".join(findings)))
    _migrate(database, version)


def _migrate(database: sqlite3.Connection, version: int) -> None:
    for number, script in enumerate(schema.MIGRATIONS[version:], version + 1):
        database.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT")


def _damaged(file: Path, detail: str) -> str:
    return (
        f"the store {file} cannot be used: {detail}. Nothing was changed. Restore a backup over it;"
        f" or move it and its -wal and -shm files away: then every machine tagged as ours is"
        " adopted and none is terminated"
    )


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def _connected(file: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(file, isolation_level=None)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """An empty private file that takes the target's place, durably, when the block succeeds."""
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600))
    yield new
    _fsync(new)
    new.replace(target)
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
