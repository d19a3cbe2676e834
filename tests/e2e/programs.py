"""The processes of a test but the daemon: the EC2 fake, the producer; and waiting.

Nothing here waits for a fixed time: everything polls against a deadline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from corald.market.ledger import Ledger

T = TypeVar("T")

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
ACCOUNT = "123456789012"
REGION = "us-east-1"
POLL_SECONDS = 0.03
PATIENCE_SECONDS = 30.0
Level = tuple[float, float, float]
"""Requests/s, input tokens, output tokens."""


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

    def __init__(self, folder: Path, *, name: str = "cloud") -> None:
        self._path = folder / f"{name}.jsonl"
        command = ["-m", "corald_aws.fake", "--ledger", str(self._path)]
        command += ["--regions", REGION, "--supply", "20", "--boot-seconds", "0.5"]
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


class Producer:
    """The producer, a process of its own."""

    def __init__(self, folder: Path, bootstrap: str, demand: str, availability: str) -> None:
        command = [str(HERE / "producer.py"), "--bootstrap", bootstrap]
        command += ["--demand-topic", demand, "--availability-topic", availability]
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


def _line(program: Program) -> str:
    """The next line of a program's output; it must not have ended."""
    stdout: IO[str] | None = program.process.stdout
    assert stdout is not None
    line = stdout.readline()
    assert line, f"{program.log.stem} ended: {program.log.read_text()[-2000:]}"
    return line
