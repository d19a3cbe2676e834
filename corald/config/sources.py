"""Reading TOML files safely: who may have written them, how big they are, what their syntax is."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from corald.config.faults import Source
from corald.config.locate import key_lines
from corald.config.units import open_file
from corald.errors import ConfigError

SIZE_LIMIT_BYTES = 1 << 20
PRESETS = "corald_policies"
_AT_LINE = re.compile(r"(?P<what>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)")


def read_source(path: Path) -> Source:
    """Read one file.

    Raises:
        ConfigError: not a readable regular file, writable by others, too big, or not TOML.
    """
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path}: is not a file")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(
                    f"{path}: others may write to it, so it cannot be trusted; "
                    f"run: chmod go-w {path}"
                )
            content = file.read(SIZE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > SIZE_LIMIT_BYTES:
        raise ConfigError(f"{path}: is larger than 1 MiB")
    return parse_source(str(path), content)


def drop_ins(directory: Path) -> list[Path]:
    """List `*.toml` of `directory` in lexical order; a missing directory is an empty one.

    Hidden files are an editor's own.

    Raises:
        ConfigError: it is there and cannot be listed; to take it for empty would drop policies.
    """
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from error
    return [path for path in paths if path.suffix == ".toml" and not path.name.startswith(".")]


def parse_source(name: str, content: bytes) -> Source:
    """Parse TOML.

    Raises:
        ConfigError: with file, line and what was expected.
    """
    try:
        text = content.decode().replace("\r\n", "\n")
        data = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:
        if (match := _AT_LINE.fullmatch(str(error))) is None:
            raise ConfigError(f"{name}:{text.count(chr(10)) + 1}: {error}") from error
        raise ConfigError(
            f"{name}:{match['line']}: {match['what']} (column {match['column']})"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{name}:1: is nested too deeply") from error
    return Source(name, data, key_lines(text))


def presets() -> dict[str, dict[str, Any]]:
    """Read every built-in policy preset, by name."""
    return {
        entry.name.removesuffix(".toml"): tomllib.loads(entry.read_text(encoding="utf-8"))
        for entry in files(PRESETS).iterdir()
        if entry.name.endswith(".toml")
    }
