"""The JSON-lines source."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from corald.adapters import jsonlines
from corald.adapters.jsonlines import JsonLinesSource
from corald.model.events import Batch, ConsumerHealth, DemandObserved, Offset


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonlines, "POLL_SECONDS", 0.01)


def _line(number: int) -> bytes:
    event = {
        "specversion": "1.0",
        "id": f"e-{number}",
        "source": "/test",
        "type": "io.corald.demand.v1",
        "data": {
            "model": "m",
            "request_rate": number,
            "input_tokens": 1,
            "output_tokens": 1,
            "window_seconds": 1,
        },
    }
    return json.dumps(event).encode() + b"\n"


class Reader:
    """Runs a source and keeps what it delivers."""

    def __init__(self, path: Path, *stored: Offset) -> None:
        self.source = JsonLinesSource(path, stored=lambda: stored)
        self.batches: list[Batch] = []

    async def deliver(self, batch: Batch) -> None:
        self.batches.append(batch)

    @property
    def rates(self) -> list[float]:
        events = [event for batch in self.batches for event in batch.events]
        return [event.request_rate for event in events if isinstance(event, DemandObserved)]

    @property
    def health(self) -> list[bool]:
        events = [event for batch in self.batches for event in batch.events]
        return [event.healthy for event in events if isinstance(event, ConsumerHealth)]

    @property
    def offsets(self) -> dict[str, int]:
        return {o.topic: o.next_offset for batch in self.batches for o in batch.offsets}

    def read(self, *steps: Callable[[], object]) -> Reader:
        """Let the source run until all is read, then after each step again."""

        async def running() -> None:
            task = asyncio.create_task(self.source.run(self.deliver))
            for step in (lambda: None, *steps):
                step()
                await asyncio.sleep(0.1)
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(running())
        return self


def test_a_directory_is_read_in_order_of_names_and_followed(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(_line(3))
    (tmp_path / "a.jsonl").write_bytes(_line(1) + b"\n" + _line(2))
    (tmp_path / "notes.txt").write_bytes(_line(9))
    new = tmp_path / "c.jsonl"
    reader = Reader(tmp_path).read(lambda: new.write_bytes(_line(4)))
    assert reader.rates == [1, 2, 3, 4]
    assert reader.offsets["file:a.jsonl"] == (tmp_path / "a.jsonl").stat().st_size
    assert reader.health == [True]


def test_a_line_counts_once_it_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(_line(1) + _line(2)[:20])

    def finish() -> None:
        with file.open("ab") as lines:
            lines.write(_line(2)[20:])

    reader = Reader(file)
    assert reader.read().rates == [1]
    assert reader.read(finish).rates == [1, 2]
    assert not any(batch.rejects for batch in reader.batches)


def test_it_resumes_at_the_stored_offset(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(_line(1) + _line(2))
    assert Reader(file, Offset("file:events.jsonl", 0, len(_line(1)))).read().rates == [2]


def test_a_file_that_became_shorter_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(_line(1) + _line(2))
    assert Reader(file).read(lambda: file.write_bytes(_line(3))).rates == [1, 2, 3]


def test_bad_and_endless_lines_are_put_aside_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"nonsense\n" + b"x" * 300_000 + b"\n" + _line(1))
    reader = Reader(file).read()
    assert reader.rates == [1]
    rejects = [reject for batch in reader.batches for reject in batch.rejects]
    assert [(r.reason, r.offset) for r in rejects] == [("malformed-json", 0), ("oversized", 9)]


def test_many_lines_come_in_slices(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"".join(map(_line, range(1234))))
    reader = Reader(file).read()
    assert reader.rates == list(range(1234))
    assert max(len(batch.events) for batch in reader.batches) == 500


def test_a_missing_file_is_waited_for_and_unhealthy(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    reader = Reader(file).read(lambda: file.write_bytes(_line(1)))
    assert (reader.rates, reader.health) == ([1], [False, True])
