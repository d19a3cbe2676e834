"""A small site for the command line: a configuration, a template library, a daemon on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from corald.cli.app import run
from corald.config.catalog import load_catalog
from corald.library import (
    Library,
    LibraryOrigin,
    TemplateTable,
    configuration_digest,
    model_digest,
    write_library,
)
from corald.model.templates import Engine, Phase, ServingTemplate, Slo, Stage, Workload

MODELS = ("phi-4-14b", "gpt-oss-20b")
SLO = Slo(1500.0, 100.0)
WORKLOAD = Workload(1000.0, 3000.0, 200.0, 600.0)
POLICY = """
[[policies]]
model = "{model}"
slo = {{ ttft_ms = 1500, tpot_ms = 100 }}
workload = {{ input_tokens_mean = 1000, input_tokens_p95 = 3000, output_tokens_mean = 200, output_tokens_p95 = 600 }}
"""  # noqa: E501  # an inline table is one line
MAIN = """
cluster = "test"
state_dir = "{home}/state"
library = "{home}/templates.clt"
[http]
bind = "unix:{home}/http"
[observe]
instances_every = "500ms"
replicas_every = "200ms"
[solver]
debounce = "100ms"
[switching]
load_gib_per_second = 1000.0
[providers.sim]
plugin = "simulated"
regions = ["us-east-2"]
boot_seconds = 0.5
interruptions_per_hour = 0.0
[providers.sim.capacity]
turnover_per_hour = 0.0
"""


def small_library() -> Library:
    """Two shapes a model, written by hand: nothing here depends on the performance model."""
    catalog = load_catalog()
    names = ("1xL4", "1xL40S") if "1xL4" in catalog.configurations else ("L4", "L40S")
    tables = [
        TemplateTable.of(
            [
                ServingTemplate(
                    model,
                    Phase.MIXED,
                    Engine.VLLM,
                    ((name, 1),),
                    (Stage(catalog.models[model].layers, 1, (0,)),),
                    rate,
                )
                for name, rate in zip(names, (2.0, 5.0), strict=True)
            ],
            configurations=names,
            slo=SLO,
            workload=WORKLOAD,
        )
        for model in MODELS
    ]
    configurations = [catalog.configurations[name] for name in names]
    origin = LibraryOrigin(
        n_max=1,
        rho=12.0,
        epsilon=0.0,
        pruned=False,
        groups=(names,),
        model_digests={model: model_digest(catalog.models[model]) for model in MODELS},
        configuration_digests={
            c.name: configuration_digest(c, catalog.gpus[c.gpu]) for c in configurations
        },
        calibration_digests={},
        engine_versions={"vllm": "test"},
        performance_model="by hand",
    )
    return Library("0123456789abcdef", names, {t.key: t for t in tables}, origin)


@dataclass(frozen=True)
class Site:
    """Where everything of one cluster is."""

    home: Path

    @property
    def config(self) -> Path:
        return self.home / "corald.toml"

    @property
    def url(self) -> str:
        return f"unix:{self.home}/http"

    def write(self, more: str = "", *, models: tuple[str, ...] = MODELS) -> None:
        text = MAIN.format(home=self.home) + "".join(POLICY.format(model=m) for m in models)
        self.config.write_text(text + more)
        self.config.chmod(0o640)


@pytest.fixture(scope="session")
def library() -> Library:
    return small_library()


def make_site(home: Path, library: Library) -> Site:
    (home / "state").mkdir(mode=0o700)
    write_library(home / "templates.clt", library)
    site = Site(home)
    site.write()
    return site


@pytest.fixture
def site(tmp_path: Path, library: Library) -> Site:
    return make_site(tmp_path, library)


@pytest.fixture
def corald(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a verb in this process; answers with exit code, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


class Daemon:
    """A daemon in a process of its own, watched like systemd would."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notifications.bind(str(site.home / "notify"))
        self._messages: Queue[str] = Queue()
        Thread(target=self._listen, daemon=True).start()
        self._log = site.home / "log"
        environment = os.environ | {
            "NOTIFY_SOCKET": str(site.home / "notify"),
            "WATCHDOG_USEC": "2000000",
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "corald", "run", "-c", str(site.config)],
                stderr=log,
                env=environment,
            )

    def told(self, wanted: str) -> str:
        """Wait for a notification that begins with `wanted`."""
        while not (message := self._messages.get(timeout=30)).startswith(wanted):
            pass
        return message

    def _listen(self) -> None:
        """Take every message at once, as systemd does."""
        while message := self._notifications.recv(4096):
            self._messages.put(message.decode())
        self._notifications.close()

    def log(self) -> str:
        return self._log.read_text()

    def until(self, condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ending:
            ending.sendto(b"", str(self.site.home / "notify"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, library: Library) -> Iterator[Daemon]:
    running = Daemon(make_site(tmp_path_factory.mktemp("d"), library))
    try:
        running.told("READY=1")
        yield running
    finally:
        running.close()
