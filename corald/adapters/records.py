"""What all readers of records share: the reasons for refusing one, times, safe texts."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from corald.errors import MalformedEventError

MAX_SKEW_SECONDS: Final = 300.0
MAX_KEPT_BYTES: Final = 4096
"""How much of a refused record the quarantine keeps."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
InstanceId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
Visible = Annotated[str, Field(pattern=r"^[!-~]{1,255}$")]
"""Printable ASCII without spaces."""

_DATE_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+(?:[Zz]|[+-][0-9:]+)")


class Reason(StrEnum):
    """Why a record was refused; a closed set, as it labels a metric."""

    MALFORMED_JSON = "malformed-json"
    OVERSIZED = "oversized"
    TOMBSTONE = "tombstone"
    NOT_CLOUDEVENT = "not-cloudevent"
    UNKNOWN_TYPE = "unknown-type"
    UNSUPPORTED_VERSION = "unsupported-version"
    MISSING_FIELD = "missing-field"
    UNKNOWN_FIELD = "unknown-field"
    WRONG_TYPE = "wrong-type"
    OUT_OF_RANGE = "out-of-range"
    BAD_NAME = "bad-name"
    BAD_TIME = "bad-time"
    FUTURE = "future"
    FOREIGN = "foreign"
    """A native notice of an account that no provider is configured for."""
    IRRELEVANT = "irrelevant"
    """A well-formed native notice that announces no loss."""
    WRONG_TOPIC = "wrong-topic"
    """An event on a topic whose producers may not send its type."""


def epoch_seconds(text: str) -> float:
    """Read an RFC 3339 time, which always names its offset."""
    try:
        if _DATE_TIME.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
    except ValueError:
        pass
    raise MalformedEventError(Reason.BAD_TIME, f"not RFC 3339: {safe_text(text)}")


def refuse_future(at: float, received_at: float) -> None:
    """A sample from the future would win over all honest ones that follow."""
    if at > received_at + MAX_SKEW_SECONDS:
        raise MalformedEventError(Reason.FUTURE, f"{at - received_at:.0f} s ahead of us")


def safe_text(text: str) -> str:
    """At most 200 characters, fit for a log line, a terminal and the store."""
    return text[:200].encode("unicode_escape").decode("ascii")
