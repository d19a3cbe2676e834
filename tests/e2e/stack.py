"""Starts the parts as processes: EC2 fake, daemon, producer; and waits for what they show.

What happened is read from the fake's ledger. Nothing here waits for a fixed time: everything polls
against a deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import IO, Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition

from corald.market.ledger import Ledger
from tests.e2e.library import MODELS, template_library
from tests.kafka.broker import KafkaBroker

T = TypeVar("T")

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
ACCOUNT = "123456789012"
REGION = "us-east-1"
PROVIDER = "aws-main"
POLL_SECONDS = 0.03
PATIENCE_SECONDS = 30.0
Level = tuple[float, float, float]
"""Requests/s, input tokens, output tokens."""

_numbers = itertools.count(1)


def until(condition: Callable[[], T], what: str, within: float = PATIENCE_SECONDS) -> T:
    """Wait until `condition` answers something true, and hand it back."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(POLL_SECONDS)
    return found


def level(request_rate: float) -> Level:
    """A level at the library's workload."""
    return (request_rate, 1000.0, 250.0)


class Program:
    """A process that can be started again; all its lives write into one log."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, *command]
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, **pipes: int) -> None:
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, text=True, env=environment(), stderr=log, **pipes
            )

    def kill(self) -> None:
        """SIGKILL, as a crash is."""
        self.process.kill()
        self.process.wait()

    def stop(self, within: float) -> int:
        """SIGTERM; answers with the exit status."""
        self.process.terminate()
        return self.process.wait(within)

    def close(self) -> None:
        if self._process is None:
            return
        if self.alive:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def environment() -> dict[str, str]:
    """Of every process: the tree under test, and credentials that no cloud knows."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "providers")])
    return os.environ | {
        "PYTHONPATH": path,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class Cloud:
    """The EC2 fake and its ledger."""

    def __init__(self, folder: Path, *, name: str = "cloud", boot_seconds: float = 0.5) -> None:
        self._path = folder / f"{name}.jsonl"
        command = ["-m", "corald_aws.fake", "--ledger", str(self._path)]
        command += ["--regions", REGION, "--supply", "20", "--boot-seconds", str(boot_seconds)]
        self.program = Program(name, command, folder)
        self.url = ""

    def start(self) -> None:
        self.program.start(stdout=subprocess.PIPE)
        self.url = json.loads(_line(self.program))["url"]
        self.order("rules", shutdown_seconds=0.5)

    def order(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Change the world."""
        body = json.dumps({"do": do, **arguments}).encode()
        request = urllib.request.Request(f"{self.url}/_control", data=body)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.loads(answer.read()))

    def fault(self, call: str, kind: str, **rest: Any) -> None:
        self.order("fault", call=call, kind=kind, **rest)

    def ledger(self) -> Ledger:
        """Everything that happened until now."""
        return Ledger.read(self._path.read_text().splitlines(keepends=True))


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
    more: str = ""
    """Further tables."""

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
        return "\n".join([main, self.more, *policies])


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


class Producer:
    """The producer, a process of its own."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        command = [str(HERE / "producer.py"), "--bootstrap", settings.bootstrap]
        command += ["--demand-topic", settings.demand_topic]
        command += ["--availability-topic", settings.availability_topic]
        self.program = Program("producer", command, folder)

    def start(self) -> None:
        self.program.start(stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def order(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for its answer."""
        stdin = self.program.process.stdin
        assert stdin is not None
        stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        stdin.flush()
        return dict(json.loads(_line(self.program)))

    def levels(self, rates: Mapping[str, float]) -> float:
        """Repeat these requests/s from now on; answers with when."""
        levels = {model: level(rate) for model, rate in rates.items()}
        return float(self.order("levels", levels=levels)["at"])

    def notice(self, instance: str, account: str = ACCOUNT) -> float:
        """Announce that a spot machine is taken; answers with when."""
        return float(self.order("notice", account=account, region=REGION, instance=instance)["at"])


@dataclass
class Stack:
    """All parts of one test."""

    folder: Path
    broker: KafkaBroker
    cloud: Cloud
    daemon: Daemon
    producer: Producer
    _more: list[Program] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, broker: KafkaBroker, **settings: Any) -> Self:
        """Start everything but the daemon."""
        cluster = f"e2e-{os.getpid()}-{next(_numbers)}"
        cloud = Cloud(folder)
        plan = Settings(cluster, broker.bootstrap, "", folder / "state", **settings)
        daemon = Daemon(folder, plan)
        stack = cls(folder, broker, cloud, daemon, Producer(folder, plan))
        try:
            broker.create_topic(plan.demand_topic)
            broker.create_topic(plan.availability_topic)
            cloud.start()
            daemon.write(replace(plan, endpoint=cloud.url))
            stack.producer.start()
        except BaseException:
            stack.close()
            raise
        return stack

    def second_daemon(self, name: str, **changes: Any) -> Daemon:
        """Another daemon; it has the first one's state directory if that is not changed."""
        daemon = Daemon(self.folder, replace(self.daemon.settings, **changes), name)
        self.also(daemon.program)
        return daemon

    def also(self, program: Program) -> None:
        """Close this one too at the end."""
        self._more.append(program)

    def broker_ends(self) -> dict[str, int]:
        """The end of each topic that holds anything, asked of the broker."""
        settings = self.daemon.settings
        topics = (settings.demand_topic, settings.availability_topic)
        return asyncio.run(_ends(self.broker.bootstrap, topics))

    def serving(self, rates: Mapping[str, float]) -> None:
        """Ask for these requests/s, and wait until the daemon serves them with routes."""
        self.producer.levels(rates)
        until(lambda: self.served(rates), f"{rates} served")

    def served(self, rates: Mapping[str, float]) -> bool:
        """Whether demand is known and what is ready covers it."""
        models = self.daemon.models()
        routed = {endpoint["model"] for endpoint in self.daemon.endpoints()}
        return all(
            models[model]["demand"] == rate
            and models[model]["unmet"] == 0
            and (rate == 0 or model in routed)
            for model, rate in rates.items()
        )

    def close(self) -> None:
        programs = [self.daemon.program, self.producer.program, self.cloud.program, *self._more]
        for program in programs:
            program.close()

    def logs(self) -> Iterator[tuple[str, str]]:
        """The end of every log, for a test that fails."""
        for path in sorted(self.folder.glob("*.log")):
            yield path.name, path.read_text()[-12_000:]


async def _ends(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        ends = await consumer.end_offsets([TopicPartition(topic, 0) for topic in topics])
    return {where.topic: end for where, end in ends.items() if end}


def _template(name: str) -> Template:
    return Template((HERE / name).read_text())


def _line(program: Program) -> str:
    """The next line of a program's output; it must not have ended."""
    stdout: IO[str] | None = program.process.stdout
    assert stdout is not None
    line = stdout.readline()
    assert line, f"{program.log.stem} ended: {program.log.read_text()[-2000:]}"
    return line
