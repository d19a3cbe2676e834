"""systemd: the notification protocol, and the unit file."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from corald.adapters.systemd import Notifier

UNIT = Path(__file__).parents[3] / "systemd" / "corald.service"


class CountingClock:
    """Counts sleeps, and stops the sleeper after a few."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 3:
            raise asyncio.CancelledError


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        name = str(tmp_path / "notify") if request.param == "path" else f"@corald-{os.getpid()}"
        receiving.bind(name.replace("@", "\0", 1))
        receiving.settimeout(5)
        yield name, lambda: receiving.recv(1000).decode()


def test_readiness_status_and_stopping_reach_systemd(listener) -> None:
    address, received = listener
    notifier = Notifier(address, None)
    notifier.ready()
    assert received() == "READY=1"
    notifier.status("3 models,\n 12 USD/h")
    assert received() == "STATUS=3 models, 12 USD/h"
    notifier.stopping()
    assert received() == "STOPPING=1"


def test_the_watchdog_is_fed_at_half_its_interval(listener) -> None:
    address, received = listener
    clock = CountingClock()
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Notifier(address, 30.0).keep_alive(clock, turn))
    assert (turns, clock.slept) == (3, [15.0] * 3)
    assert [received() for _ in range(3)] == ["WATCHDOG=1"] * 3


def test_a_listener_that_is_busy_or_gone_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    notifier = Notifier(str(path), 1.0)
    notifier.alive()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as busy:
        busy.bind(str(path))
        for _ in range(2000):
            notifier.alive()


def test_work_that_does_not_move_is_not_called_alive(listener) -> None:
    address, received = listener
    notifier = Notifier(address, 30.0)

    async def run() -> None:
        stuck = asyncio.Event()
        async with asyncio.timeout(0.05):
            await notifier.keep_alive(CountingClock(), stuck.wait)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    notifier.stopping()
    assert received() == "STOPPING=1"


async def no_turn() -> None: ...


def test_outside_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    notifier = Notifier.from_environment()
    notifier.ready()
    asyncio.run(notifier.keep_alive(CountingClock(), no_turn))


def test_the_environment_is_read_and_hidden_from_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert Notifier.from_environment().watchdog_seconds == 30.0
    assert "NOTIFY_SOCKET" not in os.environ
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notifier.from_environment().watchdog_seconds is None


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The shipped unit, with a program that exists on this machine."""
    program = shutil.which("true")
    text = UNIT.read_text()
    assert text.count("ExecStart=/usr/bin/corald ") == 1
    path = tmp_path / "corald.service"
    path.write_text(text.replace("/usr/bin/corald", str(program)))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    assert program, "install systemd (make test does): apt-get install systemd"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_systemd_finds_no_fault_in_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_is_confined(unit: Path) -> None:
    done = analyze("security", "--offline=yes", "--threshold=15", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout


def test_a_bad_configuration_is_not_tried_again_and_a_stop_has_time() -> None:
    text = UNIT.read_text()
    for line in (
        "Type=notify",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "Restart=always",
        "RestartPreventExitStatus=78",
        "WatchdogSec=30",
        "TimeoutStopSec=30",
        "KillMode=mixed",
    ):
        assert line in text.splitlines()
