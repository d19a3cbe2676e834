"""How values are written in TOML: durations as strings, secrets as references."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BeforeValidator, Field

from corald.errors import ConfigError

SECRET_LIMIT_BYTES = 64 << 10
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def parse_duration(value: object) -> float:
    """Read `"90s"`, `"10m"`, `"1h30m"` as seconds.

    Raises:
        ValueError: not a string of numbers with units.
    """
    if not isinstance(value, str) or not (parts := _PART.findall(value)):
        raise ValueError('a duration is a string with units, such as "90s", "10m" or "1h30m"')
    if "".join(number + unit for number, unit in parts) != value:
        raise ValueError(f'"{value}" is no duration; write for example "90s", "10m" or "1h30m"')
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Write seconds the way `parse_duration` reads them."""
    whole, rest = divmod(round(seconds * 1000), 1000)
    parts = []
    for unit in ("d", "h", "m", "s"):
        size = int(_UNIT_SECONDS[unit])
        if whole >= size:
            parts.append(f"{whole // size}{unit}")
            whole %= size
    if rest:
        parts.append(f"{rest}ms")
    return "".join(parts) or "0s"


def _duration_or_never(value: object) -> float | None:
    return None if value == "never" else parse_duration(value)


# A default is in seconds already, so that it can be taken from the model's own defaults.
Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=366 * 86400)]
PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=366 * 86400)]
DurationOrNever = Annotated[
    Annotated[float, Field(ge=0, le=366 * 86400)] | None, BeforeValidator(_duration_or_never)
]


def open_file(path: Path) -> BinaryIO:
    """Open a file to read it; a pipe in its place does not make us wait for a writer."""
    return open(path, "rb", opener=_without_waiting)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret is; the secret itself is read when it is needed and kept nowhere."""

    kind: Literal["file", "credential"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self) -> str:
        """Read the secret, without the line end that editors add.

        Raises:
            ConfigError: it cannot be read, is empty, or others may read it.
        """
        path = self._path()
        try:
            with open_file(path) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ConfigError(f"secret {self}: {path} is not a file")
                if self.kind == "file" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o027:
                    raise ConfigError(
                        f"secret {self}: others may read or write it; run: chmod 0600 {path}"
                    )
                content = file.read(SECRET_LIMIT_BYTES)
        except OSError as error:
            raise ConfigError(f"secret {self} cannot be read: {error.strerror}") from error
        try:
            secret = content.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"secret {self} is not UTF-8 text") from error
        if not secret:
            raise ConfigError(f"secret {self} is empty")
        return secret

    def _path(self) -> Path:
        if self.kind == "file":
            return Path(self.name)
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        if not directory:
            raise ConfigError(
                f"secret {self} needs a systemd unit with LoadCredential={self.name}:PATH "
                "($CREDENTIALS_DIRECTORY is not set)"
            )
        return Path(directory) / self.name


def parse_secret(value: object) -> SecretRef:
    """Read `"file:/PATH"` or `"credential:NAME"`; never shows what it refuses.

    Raises:
        ValueError: anything else, a secret in clear above all.
    """
    if isinstance(value, str):
        kind, _, name = value.partition(":")
        if kind == "file" and name.startswith("/"):
            return SecretRef("file", name)
        if kind == "credential" and _CREDENTIAL.fullmatch(name):
            return SecretRef("credential", name)
    raise ValueError('a secret is a reference: "file:/ABSOLUTE/PATH" or "credential:NAME"')


Secret = Annotated[SecretRef, BeforeValidator(parse_secret)]
