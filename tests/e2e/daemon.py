"""The daemon as a process: its configuration, and what it shows and says."""

from __future__ import annotations

import json
import signal
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from tests.e2e.library import MODELS, template_library
from tests.e2e.programs import ACCOUNT, HERE, Program, until

PROVIDER = "aws-main"
"""The name of the account in the configuration."""


@dataclass(frozen=True)
class Wish:
    """What a configuration says of one model."""

    model: str
    shapes: tuple[str, ...] = ("*",)
    min_replicas: int = 0
    more: str = ""


EVERY_MODEL = (
    Wish(MODELS[0]),
    Wish(MODELS[1]),
    Wish(MODELS[2], shapes=("2xA10G-slow",)),  # replicas of two machines each
)


@dataclass(frozen=True)
class Settings:
    """What tests vary in the daemon's configuration."""

    cluster: str
    bootstrap: str
    endpoint: str
    state_dir: Path
    wishes: tuple[Wish, ...] = EVERY_MODEL
    scale_down_delay: str = "3s"
    stale_after: str = "10s"

    @property
    def demand_topic(self) -> str:
        return f"{self.cluster}.demand"

    @property
    def availability_topic(self) -> str:
        return f"{self.cluster}.availability"

    def text(self) -> str:
        """The configuration file."""
        main = _template("corald.toml.in").substitute(
            vars(self)
            | {
                "account": ACCOUNT,
                "library": template_library(),
                "demand_topic": self.demand_topic,
                "availability_topic": self.availability_topic,
            }
        )
        policies = [
            _template("policy.toml.in").substitute(
                vars(wish)
                | {"shapes": json.dumps(wish.shapes), "scale_down_delay": self.scale_down_delay}
            )
            for wish in self.wishes
        ]
        return "\n".join([main, *policies])


class Daemon:
    """`corald run` with a configuration and a state directory of its own."""

    def __init__(self, folder: Path, settings: Settings, name: str = "daemon") -> None:
        self.settings = settings
        self.config = folder / f"{name}.toml"
        self.database = settings.state_dir / "corald.db"
        self.program = Program(name, ["-m", "corald", "run", "-c", str(self.config)], folder)
        self.write(settings)
        self._url = ""

    def write(self, settings: Settings) -> None:
        """Put another configuration in place, for a reload or the next start."""
        self.settings = settings
        self.config.write_text(settings.text())

    def start(self) -> None:
        """Start, and wait until the admin interface answers."""
        before = len(self.said("listening"))
        self.program.start()

        def listening() -> str:
            assert self.program.alive, f"the daemon ended, {self.program.process.returncode}"
            lines = self.said("listening")[before:]
            return str(lines[0]["address"]) if lines else ""

        self._url = until(listening, "the daemon listens")

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one kind, of all its lives."""
        if not self.program.log.exists():
            return []
        lines = self.program.log.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"{event}"' in line]

    def get(self, path: str) -> Any:
        return json.loads(self._read(path))

    def _read(self, path: str) -> str:
        assert self.program.alive, "the daemon has ended"
        with urllib.request.urlopen(f"{self._url}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def ready(self) -> bool:
        try:
            return bool(self.get("/readyz")["ready"])
        except urllib.error.HTTPError as error:
            with error:
                return False

    def status(self) -> dict[str, Any]:
        return dict(self.get("/v1/status"))

    def models(self) -> dict[str, dict[str, Any]]:
        return {model["model"]: model for model in self.status()["models"]}

    def endpoints(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/routes")["endpoints"])

    def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels."""
        lines = self._read("/metrics").splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        """Rows of the store, read beside the daemon; none while there is no store."""
        if not self.database.exists():
            return []
        uri = f"file:{self.database}?mode=ro"
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as database:
                return database.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError:  # not made yet, or just being recovered
            return []

    def intents(self) -> list[dict[str, Any]]:
        """Every intent of the store, ended ones too."""
        return [json.loads(value) for (value,) in self.rows("SELECT value FROM intents")]

    def notes(self) -> list[dict[str, Any]]:
        """The audit log, oldest first."""
        notes = (json.loads(value) for (value,) in self.rows("SELECT value FROM audit ORDER BY id"))
        return [note | {"fields": dict(note["fields"])} for note in notes]

    def offsets(self) -> dict[str, int]:
        """How far each topic is read, durably."""
        return dict(self.rows("SELECT topic, next_offset FROM offsets"))

    def hang_up(self) -> None:
        """SIGHUP: read the configuration again."""
        self.program.process.send_signal(signal.SIGHUP)


def _template(name: str) -> Template:
    return Template((HERE / name).read_text())
