"""What verbs share: exit codes, options, tables and JSON."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from corald.errors import (
    ConfigError,
    CoraldError,
    LibraryError,
    ProviderError,
    StateLockedError,
)

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_CONFIG = Path("/etc/corald/corald.toml")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
PIPE_WIDTH = 200
"""Columns of a table that nobody looks at directly."""


class Exit(IntEnum):
    """What the shell is told."""

    FINE = 0
    ERROR = 1
    CHANGES = 2
    """`plan --detailed-exitcode`: the plan changes something."""
    DEGRADED = 3
    """`status --check`."""
    REFUSED = 4
    """Paused, or not permitted."""
    USAGE = 64
    UNAVAILABLE = 69
    """A cloud, the broker or the daemon does not answer."""
    LOCKED = 75
    """Another daemon holds the state."""
    CONFIG = 78


class UnavailableError(CoraldError):
    """The daemon does not answer."""


class RefusedError(CoraldError):
    """The daemon does not permit it."""


class UsageError(CoraldError):
    """The command cannot mean anything."""


_CODES: Sequence[tuple[type[CoraldError], Exit]] = (
    (ConfigError, Exit.CONFIG),
    (LibraryError, Exit.CONFIG),
    (StateLockedError, Exit.LOCKED),
    (ProviderError, Exit.UNAVAILABLE),
    (UnavailableError, Exit.UNAVAILABLE),
    (RefusedError, Exit.REFUSED),
    (UsageError, Exit.USAGE),
)

ConfigOption = Annotated[
    Path, typer.Option("-c", "--config", help="The configuration.", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def exit_code_of(error: CoraldError) -> Exit:
    """Map an error to what the shell is told."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.ERROR)


def console(*, stderr: bool = False) -> Console:
    """Make a console; rich drops colours without a terminal and with `NO_COLOR`."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr, width=None if terminal else PIPE_WIDTH, highlight=False, emoji=False
    )


def harmless(text: str) -> str:
    """Show control characters instead of sending them: clouds and producers wrote the text."""
    return CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def print_json(value: object, form: Any) -> None:  # noqa: ANN401  # any type form
    """Print `value`, which is of type `form`, as JSON that a person can read."""
    from pydantic import TypeAdapter

    print(TypeAdapter(form).dump_json(value, indent=2).decode())


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """Print rows; a head that begins with `>` is of numbers, aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, title=title or None, title_justify="left", pad_edge=False)
    for head in heads:
        number = head.startswith(">")
        table.add_column(head.lstrip(">"), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        # Text, not markup: names may contain brackets.
        table.add_row(*(Text(harmless(cell)) for cell in row))
    console().print(table)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal that something is under way."""
    shown = console(stderr=True)
    with shown.status(text) if shown.is_terminal else nullcontext():
        yield
