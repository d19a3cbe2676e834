"""Log lines: one per note, harmless whatever is in them."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from corald.adapters.logs import LogSink, configure, set_level
from corald.model.state import Note


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(*notes: Note, level: str = "info", secrets: tuple[str, ...] = ()) -> list[dict]:
    out = io.StringIO()
    configure(level, "json", secrets=secrets, stream=out)
    sink = LogSink()
    for note in notes:
        sink.publish(note)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_note_becomes_one_line_with_its_fields() -> None:
    note = Note("launched", (("offering", "aws/z/g6/spot"), ("seconds", 1.5)), audit=True)
    [line] = lines(note)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "launched",
        "level": "info",
        "offering": "aws/z/g6/spot",
        "seconds": 1.5,
        "audit": True,
    }


def test_failures_are_warnings_and_frequent_events_are_details() -> None:
    failed, applied = Note("launch_failed"), Note("event_applied")
    assert [line["level"] for line in lines(failed, applied)] == ["warning"]
    assert [line["level"] for line in lines(applied, level="debug")] == ["debug"]


def test_a_field_named_like_the_event_does_not_replace_it() -> None:
    [line] = lines(Note("provider_failed", (("event", "x"), ("level", "y"))))
    assert (line["event"], line["event_"], line["level"]) == ("provider_failed", "x", "warning")


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_value_can_start_a_line_or_drive_a_terminal(form: str) -> None:
    out = io.StringIO()
    configure("info", form, stream=out)
    LogSink().publish(Note("event_ignored", (("model", "a\r\nlaunched \x1b[31m\u2028\x9b"),)))
    text = out.getvalue()
    assert text.count("\n") == 1
    assert not set("\r\x1b\u2028\x9b") & set(text)


def test_long_values_are_cut() -> None:
    [line] = lines(Note("x", (("detail", "y" * 10_000),)))
    assert len(line["detail"]) == 256


def test_secrets_are_hidden_by_key_and_wherever_they_stand() -> None:
    out = io.StringIO()
    configure("info", "json", secrets=("hunter2",), stream=out)
    log = structlog.get_logger("corald")
    log.warning("with hunter2", sasl_password="abc", token="def", url="x?key=hunter2&y")
    try:
        int("hunter2 in a traceback")
    except ValueError:
        log.exception("failed")
    logging.getLogger("botocore").warning("from a library: %s", "hunter2")
    text = out.getvalue()
    assert len(text.splitlines()) == 3
    assert "ValueError" in text
    assert not any(secret in text for secret in ("hunter2", "abc", "def"))


def test_counts_of_tokens_are_no_secret() -> None:
    [line] = lines(Note("x", (("input_tokens", "100"),)))
    assert line["input_tokens"] == "100"


def test_a_flood_is_a_line_a_second_for_each_reason() -> None:
    notes = [
        Note("event_ignored", (("reason", reason),), at=n / 100)
        for n in range(250)
        for reason in ("unknown-model", "stale")
    ]
    told = lines(*notes)
    assert [line["count"] for line in told if line["reason"] == "stale"] == [1, 100, 100]


def test_the_journal_gets_its_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    out = io.StringIO()
    configure("info", "json", stream=out)
    LogSink().publish(Note("launched"))
    LogSink().publish(Note("launch_failed"))
    assert [line[:4] for line in out.getvalue().splitlines()] == ["<6>{", "<4>{"]


def test_libraries_never_log_below_warning_and_the_level_can_be_changed() -> None:
    out = io.StringIO()
    configure("debug", "json", stream=out)
    logging.getLogger("botocore").info("a request")
    set_level("error")
    LogSink().publish(Note("launch_failed"))
    assert out.getvalue() == ""
