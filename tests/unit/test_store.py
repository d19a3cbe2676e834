"""The SQLite store: durable, exclusive, bounded, and never started over by itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from corald.adapters import store_schema
from corald.adapters.records import Reason
from corald.adapters.store import FILE, SqliteStore
from corald.errors import StateLockedError, StoreError
from corald.model.events import (
    CapacityObserved,
    DemandObserved,
    Offset,
    PriceObserved,
    Reject,
    Stamp,
)
from corald.model.fleet import InstanceState, Intent, IntentState, LaunchRequest, Replica
from corald.model.fleet import ReplicaState as State
from corald.model.market import Market, OfferingKey, ZoneKey
from corald.model.state import Changes, Note, Spend, StoredState
from corald.model.templates import Engine, Phase, ServingTemplate, Stage

T = TypeVar("T")

OFFERING = OfferingKey("aws-main", "us-east-1", "use1-az4", "g6.12xlarge", Market.SPOT)
REQUEST = LaunchRequest(
    "token", "corald-a-0", OFFERING, "ami-1", "#!data", (("corald:cluster", "é\n"),)
)
INTENT = Intent("c.m.r.0.0", "r1", 0, 0, REQUEST, 1.25, 4.6, 1e9 + 0.123456)
TEMPLATE = ServingTemplate(
    "llama-3-70b",
    Phase.MIXED,
    Engine.VLLM,
    (("4xL4", 2),),
    (Stage(40, 4, (0,)), Stage(40, 4, (1,))),
    3.75,
)
REPLICA = Replica("r1", TEMPLATE, OFFERING.zone_key, (OFFERING, OFFERING), (1, 1), 1e9)
FULL = Changes(
    demand=(DemandObserved("e", "/a", "m", 0.1, 7.0, None, 10.0, Stamp(1, 2, 3.5)),),
    capacity=(CapacityObserved("e", "/a", OFFERING, 3, Stamp(0, 0, 1.0)),),
    prices=(PriceObserved("e", "/a", OFFERING, 1.7, Stamp(0, 0, 1.0)),),
    intents=(INTENT, replace(INTENT, id="c.m.r.0.1", instance_state=InstanceState.RUNNING)),
    replicas=(REPLICA, replace(REPLICA, id="r2", state=State.DRAINING, drain_deadline=5.0)),
    spend=(Spend("2026-01-02", 12.5),),
    settings=(("adopted", "1"), ("paused", "false")),
    notes=(
        Note("launch_committed", (("usd", 1.5), ("ok", True), ("n", 3), ("x", None)), audit=True),
        Note("solved"),
    ),
    offsets=(Offset("corald.demand", 0, 17),),
    rejects=(Reject("bad-name", "data.model", b"\x00\xff", "corald.demand", 0, 16, 1e9),),
)


def _with_store(
    directory: Path, work: Callable[[SqliteStore], Awaitable[T]], *, inline: bool = False
) -> T:
    async def opened() -> T:
        store = SqliteStore.open(directory, inline=inline)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(opened())


def _commit(directory: Path, *every: Changes) -> None:
    async def work(store: SqliteStore) -> None:
        for changes in every:
            await store.commit(changes)

    _with_store(directory, work)


def _load(directory: Path) -> StoredState:
    return _with_store(directory, SqliteStore.load)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    umask = os.umask(0)
    yield tmp_path / "var" / "state"
    os.umask(umask)


@pytest.mark.parametrize("inline", [True, False])
def test_everything_committed_is_loaded_after_a_restart(state: Path, *, inline: bool) -> None:
    async def commit(store: SqliteStore) -> None:
        assert (await store.load()).adopting
        await store.commit(FULL)

    async def read(store: SqliteStore) -> None:
        assert await store.load() == StoredState(
            demand=FULL.demand,
            capacity=FULL.capacity,
            prices=FULL.prices,
            intents=FULL.intents,
            replicas=FULL.replicas,
            spend=FULL.spend,
            settings=FULL.settings,
            offsets=FULL.offsets,
            adopting=False,
        )
        assert await store.audit(10) == FULL.notes[:1]
        assert await store.quarantined(10) == FULL.rejects

    _with_store(state, commit, inline=inline)
    _with_store(state, read, inline=inline)


def test_a_later_value_of_a_key_replaces_the_earlier_one(state: Path) -> None:
    newer = replace(FULL.demand[0], request_rate=9.0)
    launched = replace(INTENT, state=IntentState.LAUNCHED, instance="i-1")
    _commit(
        state,
        FULL,
        Changes(demand=(newer,), intents=(launched,), offsets=(Offset("corald.demand", 0, 18),)),
    )
    loaded = _load(state)
    assert loaded.demand == (newer,)
    assert loaded.intents == (launched, FULL.intents[1])
    assert loaded.offsets == (Offset("corald.demand", 0, 18),)


def test_a_retired_source_loses_its_demand_and_may_come_back(state: Path) -> None:
    other = replace(FULL.demand[0], source="/b")
    back = replace(FULL.demand[0], model="m2")
    _commit(state, FULL, Changes(demand=(other,)), Changes(retired_sources=("/a",), demand=(back,)))
    assert set(_load(state).demand) == {other, back}


def test_what_has_ended_is_not_loaded_and_only_the_newest_of_it_are_kept(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_schema, "KEPT_ENDED", 2)
    ended = tuple(replace(INTENT, id=f"i{n}", state=IntentState.GONE) for n in range(5))
    gone = replace(REPLICA, state=State.GONE)
    _commit(state, Changes(intents=(*ended, INTENT), replicas=(gone,)))
    _commit(state, Changes(settings=(("adopted", "1"),)))
    loaded = _load(state)
    assert (loaded.intents, loaded.replicas) == ((INTENT,), ())
    with sqlite3.connect(state / FILE) as database:
        kept = database.execute("SELECT id FROM intents ORDER BY rowid").fetchall()
    database.close()
    assert kept == [("i3",), ("i4",), (INTENT.id,)]


def test_the_audit_log_and_the_quarantine_are_capped_and_keep_the_newest(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_schema, "KEPT_AUDIT", 3)
    monkeypatch.setattr(store_schema, "KEPT_QUARANTINE_BYTES", 100_000)

    async def work(store: SqliteStore) -> None:
        for n in range(400):
            reject = Reject("malformed-json", "", b"x" * 1000, "t", 0, n, 1.0)
            note = Note("drain_started", (("n", n),), audit=True)
            await store.commit(Changes(rejects=(reject,), notes=(note,)))
        assert [note.field("n") for note in await store.audit(9)] == [399, 398, 397]
        kept = await store.quarantined(1000)
        assert 0 < len(kept) * 1200 <= 100_000
        assert [reject.offset for reject in kept[:2]] == [399, 398]

    _with_store(state, work)


def test_routine_notices_do_not_fill_the_quarantine(state: Path) -> None:
    routine = Reject(Reason.IRRELEVANT, "", b"{}", "t", 0, 1, 1.0)

    async def work(store: SqliteStore) -> None:
        await store.commit(Changes(rejects=(routine,), offsets=(Offset("t", 0, 2),)))
        assert await store.quarantined(9) == ()
        assert (await store.load()).offsets == (Offset("t", 0, 2),)

    _with_store(state, work)


def test_a_second_daemon_is_told_who_holds_the_directory(state: Path) -> None:
    async def work(store: SqliteStore) -> None:
        with pytest.raises(StateLockedError, match=f"process {os.getpid()}"):
            SqliteStore.open(state)

    _with_store(state, work)
    assert _load(state).adopting


def _modes(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


def test_files_are_private_whatever_the_umask(state: Path) -> None:
    async def work(store: SqliteStore) -> None:
        await store.commit(FULL)
        await store.backup(state / "backup.db")
        modes = _modes(state)
        assert {FILE, f"{FILE}-wal", "state.lock", "backup.db"} <= set(modes)
        assert set(modes.values()) == {0o600}

    _with_store(state, work)
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    with pytest.raises(StoreError, match="chmod 700"):
        SqliteStore.open(tmp_path)


def test_a_backup_taken_while_open_restores_the_state(state: Path) -> None:
    async def work(store: SqliteStore) -> None:
        await store.commit(FULL)
        await store.backup(state / "backup.db")
        await store.commit(Changes(offsets=(Offset("corald.demand", 0, 99),)))

    _with_store(state, work)
    (state / "backup.db").replace(state / FILE)
    assert _load(state).offsets == FULL.offsets


def _truncate(file: Path) -> None:
    os.truncate(file, 5000)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _scribble_on_the_header(file: Path) -> None:
    file.write_bytes(b"garbage" * 10 + file.read_bytes()[70:])


def _scribble_on_the_pages(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\x13" * (len(content) - 4096))


def _lose_all_but_the_journal(file: Path) -> None:
    file.with_name(f"{FILE}-wal").write_bytes(file.read_bytes())
    file.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _empty,
        _scribble_on_the_header,
        _scribble_on_the_pages,
        _lose_all_but_the_journal,
    ],
)
def test_a_damaged_database_is_refused_and_left_as_it_is(
    state: Path, damage: Callable[[Path], None]
) -> None:
    _commit(state, FULL)
    damage(state / FILE)
    before = {file: file.read_bytes() for file in state.iterdir()}
    with pytest.raises(StoreError, match=r"(?s)cannot be used.*Restore a backup.*adopted"):
        SqliteStore.open(state)
    after = {file: file.read_bytes() for file in state.iterdir()}
    assert {file: after[file] for file in before} == before


def test_a_database_of_a_newer_corald_is_refused(state: Path) -> None:
    _commit(state, FULL)
    database = sqlite3.connect(state / FILE)
    database.execute("PRAGMA user_version = 999")
    database.close()
    with pytest.raises(StoreError, match=r"newer corald \(format 999"):
        SqliteStore.open(state)


def test_a_creation_that_was_cut_short_leaves_nothing_in_the_way(state: Path) -> None:
    state.mkdir(mode=0o700, parents=True)
    (state / f"{FILE}.new").write_bytes(b"half a database")
    assert _load(state).adopting


def test_after_a_failed_write_nothing_is_written_any_more(state: Path) -> None:
    _commit(state, FULL)
    big = Changes(settings=(("big", "x" * 1_000_000),), offsets=(Offset("t", 0, 1),))

    async def work(store: SqliteStore) -> None:
        store._database.execute("PRAGMA max_page_count = 40")  # a full disk, to SQLite
        with pytest.raises(StoreError, match="full"):
            await store.commit(big)
        with pytest.raises(StoreError, match="takes no more changes"):
            await store.commit(Changes(offsets=(Offset("t", 0, 2),)))
        assert (await store.load()).offsets == FULL.offsets

    _with_store(state, work)
    assert _load(state).offsets == FULL.offsets


KILLED_WHILE_WRITING = """
import asyncio, sys
from pathlib import Path
from corald.adapters.store import SqliteStore
from corald.model.events import Offset
from corald.model.state import Changes

async def main():
    store = SqliteStore.open(Path(sys.argv[1]))
    for n in range(1, 1_000_000):
        offsets = tuple(Offset(topic, 0, n) for topic in ("a", "b"))
        await store.commit(Changes(offsets=offsets, settings=(("n", str(n)),)))
        print(n, flush=True)

asyncio.run(main())
"""


def test_a_commit_that_returned_outlives_kill_9_and_is_whole(state: Path) -> None:
    for _ in range(3):
        command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(state)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen = [int(process.stdout.readline()) for _ in range(20)][-1]
            process.kill()
            seen = max([seen, *map(int, process.stdout.read().split())])
        loaded = _load(state)
        offsets = {offset.next_offset for offset in loaded.offsets}
        assert offsets == {int(dict(loaded.settings)["n"])}
        assert max(offsets) >= seen


def test_the_newest_of_500_sources_is_written_in_one_quick_commit(state: Path) -> None:
    sample = FULL.demand[0]
    demand = tuple(replace(sample, source=f"/gateway/{n}") for n in range(500))

    async def work(store: SqliteStore) -> float:
        await store.commit(Changes(demand=demand))
        started = time.monotonic()
        for _ in range(20):
            await store.commit(Changes(demand=demand))
        return (time.monotonic() - started) / 20

    assert _with_store(state, work) < 0.1  # about 7 ms; a fsync each row would take seconds


def test_rows_of_every_zone_stay_apart(state: Path) -> None:
    elsewhere = replace(OFFERING, zone="use1-az6")
    prices = tuple(
        PriceObserved("e", "/a", key, usd, Stamp(0, 0, 1.0))
        for key, usd in ((OFFERING, 1.0), (elsewhere, 2.0))
    )
    _commit(state, Changes(prices=prices))
    assert {price.offering.zone_key for price in _load(state).prices} == {
        OFFERING.zone_key,
        ZoneKey("aws-main", "us-east-1", "use1-az6"),
    }
