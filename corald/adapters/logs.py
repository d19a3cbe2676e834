"""Log lines: notes and library messages as JSON for the journal, or as text on a terminal.

Whatever reaches a line is made harmless first: control characters are escaped, long values cut,
values of secret keys hidden.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from corald.model.state import Note

MAX_VALUE_LENGTH = 256
HIDDEN = "***"
SECRET_KEY = re.compile(r"(?:^|_)(?:token|passw\w*|secret\w*|authorization|cookie|private_key)$")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
SYSLOG_LEVELS = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
LIBRARIES = ("aiohttp", "apscheduler", "asyncio", "botocore", "boto3", "urllib3")
REPEATED_BY_US = ("aiokafka", "aiohttp.server")
"""Connection errors several times a second, and a traceback for every request that is not HTTP:
our own adapters say what matters, once."""

WARNINGS = frozenset(
    {
        "circuit_opened",
        "instance_lost",
        "interruption",
        "launch_failed",
        "launch_unknown",
        "orphan_found",
        "provider_failed",
        "quota_blocked",
        "rejected",
        "replica_unready",
        "solve_failed",
        "store_failed",
        "terminate_failed",
    }
)
FREQUENT = frozenset({"event_applied", "provider_call"})
"""Logged at level debug."""
FLOODING = frozenset({"event_ignored", "rejected"})
"""What a bad producer can cause at any rate: at most a line a second for each reason."""


def configure(
    level: str, form: str, *, secrets: Iterable[str] = (), stream: TextIO = sys.stderr
) -> None:
    """Send all log lines to `stream`; `form` is `json`, `console`, or `auto` (by terminal).

    The `secrets` are hidden wherever they stand, in tracebacks too.
    """
    console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        Taming(tuple(secrets)),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty() and "NO_COLOR" not in os.environ)
        if console
        else _journal_line
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """Change how much corald logs; libraries stay at WARNING, since below it they show requests."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger("corald").setLevel(number)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    for name in REPEATED_BY_US:
        logging.getLogger(name).setLevel(logging.CRITICAL)


class Taming:
    """A processor that hides, escapes and cuts whatever a line holds."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self._secrets = secrets

    def __call__(self, _: object, __: str, event: EventDict) -> EventDict:
        return {self._text(key): self._harmless(key, value) for key, value in event.items()}

    def _harmless(self, key: str, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        if SECRET_KEY.search(key.lower()):
            return HIDDEN
        if key == "exception":
            return "\n".join(self._text(line) for line in str(value).splitlines())
        return self._text(str(value))

    def _text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        if len(text) > MAX_VALUE_LENGTH:
            text = text[: MAX_VALUE_LENGTH - 1] + "…"
        return CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


class LogSink:
    """Writes a line for every note; a NoteSink."""

    def __init__(self) -> None:
        self._log = structlog.stdlib.get_logger("corald")
        self._last: dict[tuple[str, object], float] = {}
        self._held: dict[tuple[str, object], int] = {}

    def publish(self, note: Note) -> None:
        """Write it, unless lines of its kind and reason were written within this second."""
        fields: dict[str, object] = dict(note.fields)
        if note.event in FLOODING:
            key = (note.event, fields.get("reason"))
            count = fields.get("count", 1)
            counted = self._held.get(key, 0) + (count if isinstance(count, int) else 1)
            if note.at < self._last.get(key, note.at - 1) + 1:
                self._held[key] = counted
                return
            self._last[key], self._held[key] = note.at, 0
            fields["count"] = counted
        if note.audit:
            fields["audit"] = True
        getattr(self._log, _level_of(note))(note.event, **_renamed(fields))


def _level_of(note: Note) -> str:
    if note.event in WARNINGS or note.field("ok") is False:
        return "warning"
    return "debug" if note.event in FREQUENT else "info"


def _renamed(fields: Mapping[str, object]) -> dict[str, object]:
    """Free the names that structlog's methods take themselves."""
    return {
        f"{k}_" if k in ("event", "exc_info", "stack_info") else k: v for k, v in fields.items()
    }


def _journal_line(logger: object, name: str, event: MutableMapping[str, Any]) -> str:
    """Render JSON (ASCII only); under systemd with the prefix that sets the journal's priority."""
    priority = SYSLOG_LEVELS.get(str(event.get("level")), 6)
    line = structlog.processors.JSONRenderer()(logger, name, event)
    text = line if isinstance(line, str) else line.decode()
    return f"<{priority}>{text}" if "JOURNAL_STREAM" in os.environ else text
