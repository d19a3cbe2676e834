"""The daemon as a process of its own, and the verbs that talk to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from corald import daemon as root
from corald.adapters.store import SqliteStore
from corald.cli.client import Client, _UnixConnection
from corald.library import TableKey, write_library
from corald.model.templates import Engine, Phase
from tests.unit.cli.conftest import Daemon, make_site


def demand(rate: float, sequence: int, model: str = "phi-4-14b") -> dict[str, object]:
    return {
        "specversion": "1.0",
        "id": f"{model}-{sequence}",
        "source": "test",
        "type": "io.corald.demand.v1",
        "sequence": str(sequence),
        "data": {
            "model": model,
            "request_rate": rate,
            "input_tokens": 1000.0,
            "output_tokens": 200.0,
            "window_seconds": 10.0,
        },
    }


def metric(daemon: Daemon, name: str) -> float:
    with closing(_UnixConnection(str(daemon.site.home / "http"), 10)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found.group(1))


def test_demand_over_http_brings_replicas_that_serve(daemon: Daemon, corald) -> None:
    url = ("--url", daemon.site.url)
    client = Client(daemon.site.url, None)
    client.post("/v1/events", [demand(9.0, 1), demand(0.0, 1, "gpt-oss-20b")], dict[str, int])
    daemon.until(lambda: json.loads(corald("routes", *url, "--json")[1])["endpoints"] != [])
    code, out, _ = corald("status", *url)
    assert code == 0
    assert out.startswith("test: synced")
    assert re.search(r"^phi-4-14b +9\.00 ", out, re.MULTILINE)
    code, out, _ = corald("explain", "model", "phi-4-14b", *url)
    assert code == 0
    assert "demand_requests_per_second: 9" in out
    assert corald("explain", "model", "none", *url)[0] == 1
    assert "launched" in corald("audit", *url)[1]
    assert re.search(r"^all +\d+\.\d\d", corald("cost", *url)[1], re.MULTILINE)


def test_a_paused_daemon_says_so_with_exit_code_4(daemon: Daemon, corald) -> None:
    url = ("--url", daemon.site.url)
    assert corald("pause", *url, "--reason", "a test")[0] == 0
    daemon.until(lambda: json.loads(corald("status", *url, "--json")[1])["paused"])
    assert corald("status", *url, "--check")[0] == 4
    assert corald("resume", *url, "--json")[1] == (
        '{\n  "paused": false,\n  "model": "",\n  "reason": ""\n}\n'
    )
    assert not json.loads(corald("status", *url, "--json")[1])["paused"]


def test_a_second_daemon_on_the_state_exits_75(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "corald", "run", "-c", str(daemon.site.config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75
    assert f"holds {daemon.site.home}/state" in done.stderr


def test_a_bad_configuration_is_not_taken_and_a_good_one_is_without_a_restart(
    daemon: Daemon, corald
) -> None:
    url = ("--url", daemon.site.url)

    def reload() -> None:
        seen = daemon.log().count("config_reloaded")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.until(lambda: daemon.log().count("config_reloaded") > seen)

    def budget() -> float | None:
        return json.loads(corald("status", *url, "--json")[1])["budget_usd_per_hour"]

    for broken in (
        "budgte = 1\n",
        "[budget]\nusd_per_hour = 'x'\n",
        "[[",
        '[providers.other]\nplugin = "nowhere"\n',
        '[providers.other]\nplugin = "simulated"\nregions = ["nowhere"]\n',
    ):
        daemon.site.write(broken)
        reload()
        last = json.loads(daemon.log().splitlines()[-1])
        assert last["ok"] is False
        assert re.match(rf"{re.escape(str(daemon.site.config))}:\d+: ", last["detail"])
        assert metric(daemon, "corald_config_last_reload_successful") == 0
        assert budget() is None
    daemon.site.config.unlink()
    reload()
    assert "cannot be read" in daemon.log().splitlines()[-1]
    os.mkfifo(daemon.site.config, 0o600)
    reload()
    assert "is not a file" in daemon.log().splitlines()[-1]
    daemon.site.config.unlink()
    daemon.site.write(
        '[budget]\nusd_per_hour = 77.0\n[log]\nlevel = "warning"\n[events]\npath = "/x"'
    )
    launches = daemon.log().count('"launched"')
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: budget() == 77.0)
    daemon.until(lambda: metric(daemon, "corald_config_last_reload_successful") == 1)
    assert daemon.log().count('"launched"') == launches
    daemon.site.write()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: budget() is None)


def test_removing_a_policy_ends_no_replica(daemon: Daemon, corald) -> None:
    url = ("--url", daemon.site.url)
    Client(daemon.site.url, None).post("/v1/events", demand(9.0, 50), dict[str, int])
    daemon.until(lambda: json.loads(corald("status", *url, "--json")[1])["replicas"] != [])
    daemon.site.write(models=("gpt-oss-20b",))
    daemon.process.send_signal(signal.SIGHUP)

    def models() -> list[str]:
        return [m["model"] for m in json.loads(corald("status", *url, "--json")[1])["models"]]

    daemon.until(lambda: models() == ["gpt-oss-20b"])
    time.sleep(1.0)  # several decisions at the debounce of this site
    states = {r["state"] for r in json.loads(corald("status", *url, "--json")[1])["replicas"]}
    assert states
    assert not states & {"draining", "releasing", "gone"}
    daemon.site.write()
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until(lambda: "phi-4-14b" in models())


def test_systemd_is_told_of_life_and_state(daemon: Daemon) -> None:
    assert daemon.told("WATCHDOG=1") == "WATCHDOG=1"
    assert re.match(r"STATUS=.*USD/h|STATUS=waiting", daemon.told("STATUS="))


def test_sigterm_ends_the_daemon_and_leaves_its_machines(tmp_path: Path, library) -> None:
    running = Daemon(make_site(tmp_path, library))
    try:
        running.told("READY=1")
        Client(running.site.url, None).post("/v1/events", demand(9.0, 1), dict[str, int])
        running.until(lambda: '"launched"' in running.log())
        started = time.monotonic()
        assert running.terminate() == 0
        assert time.monotonic() - started < 20
        running.told("STOPPING=1")
        assert "terminate" not in running.log()
    finally:
        running.close()
    store = SqliteStore.open(tmp_path / "state", inline=True)
    stored = asyncio.run(store.load())
    asyncio.run(store.close())
    assert {intent.state for intent in stored.intents} == {"launched"}
    assert [event.request_rate for event in stored.demand] == [9.0]


def test_a_reload_that_comes_early_waits_and_one_that_needs_another_library_says_so(
    tmp_path: Path, library
) -> None:
    one = TableKey("phi-4-14b", Phase.MIXED, Engine.VLLM)
    small = replace(library, tables={one: library.tables[one]})
    site = make_site(tmp_path, small)
    site.write(models=("phi-4-14b",))
    running = Daemon(site)
    try:
        running.until((tmp_path / "state" / "state.lock").exists)
        running.process.send_signal(signal.SIGHUP)
        running.told("READY=1")
        running.until(lambda: running.log().count('"config_reloaded"') == 2)
        write_library(tmp_path / "templates.clt", library)
        site.write()
        running.process.send_signal(signal.SIGHUP)
        running.until(lambda: "restart corald to load it" in running.log())
        assert running.terminate() == 0
    finally:
        running.close()


def test_a_library_that_is_replaced_on_disk_changes_nothing_for_a_new_solver_process(
    tmp_path: Path, library, corald
) -> None:
    running = Daemon(make_site(tmp_path, library))
    try:
        running.told("READY=1")
        (tmp_path / "templates.clt").write_bytes(b"half a library")
        pid = running.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        Client(running.site.url, None).post("/v1/events", demand(9.0, 1), dict[str, int])
        running.until(lambda: '"solve_ended"' in running.log())
        assert '"status": "proven"' in running.log()
    finally:
        running.close()


class Part:
    """Something to close, which may hang."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.closed = False

    async def close(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        self.closed = True


def test_a_provider_that_does_not_close_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "CLOSE_SECONDS", 0.05)
    parts = [Part(hangs=True), Part(hangs=True), Part(hangs=False)]
    asyncio.run(root._closing(*parts))  # type: ignore[arg-type]  # closing is all that is asked
    assert [part.closed for part in parts] == [False, False, True]


def test_a_daemon_with_a_bad_configuration_exits_78(site) -> None:
    site.write("gapp = 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "corald", "run", "-c", str(site.config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78
    assert re.match(rf"corald: {re.escape(str(site.config))}:\d+: ", done.stderr)


def test_events_come_from_files_too(tmp_path: Path, library, corald) -> None:
    site = make_site(tmp_path, library)
    lines = tmp_path / "events.jsonl"
    lines.write_text(json.dumps(demand(3.0, 1)) + "\nnot json\n")
    site.write(f'[events]\npath = "{lines}"\n')
    running = Daemon(site)
    try:
        running.told("READY=1")
        running.until(lambda: '"rejected"' in running.log())
        found = json.loads(corald("status", "--url", site.url, "--json")[1])["models"]
        assert {m["model"]: m["demand"] for m in found}["phi-4-14b"] == 3.0
    finally:
        running.close()


@pytest.mark.parametrize("variable", ["NOTIFY_SOCKET", "WATCHDOG_USEC"])
def test_the_solver_process_does_not_inherit_systemd_s_variables(
    daemon: Daemon, variable: str
) -> None:
    children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text()
    assert children.split()
    for child in children.split():
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert variable.encode() not in environment
    assert variable not in os.environ
