"""The demo as a user runs it, for a few seconds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from corald.errors import ConfigError
from corald.simulation.demo import SECONDS_VARIABLE, DemoOptions, seconds_from_environment

PROGRAM = """
import sys
from pathlib import Path
from corald.simulation.demo import DemoOptions, run_demo, seconds_from_environment
options = DemoOptions(directory=Path(sys.argv[1]), seconds=seconds_from_environment())
raise SystemExit(run_demo(options))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Shared, so that templates are built once."""
    return tmp_path_factory.mktemp("demo")


def start(directory, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | variables,
    )


def dashboard_of(process):
    """The address, once it is printed."""
    for text in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/", text):
            return found[0]
    raise AssertionError("the demo ended without printing its dashboard's address")


def test_it_serves_its_dashboard_ends_by_itself_and_sums_up(directory):
    with start(directory, **{SECONDS_VARIABLE: "8"}) as process:
        address = dashboard_of(process)
        with urllib.request.urlopen(address, timeout=10) as page:
            assert page.status == 200
        with urllib.request.urlopen(f"{address}metrics", timeout=10) as metrics:
            assert b"corald_replicas" in metrics.read()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert re.search(r"day \d\d \d\d:\d\d replicas=\d+/\d+ .* greedy=[\d.]+ best-one-gpu=", rest)
    assert re.search(r"virtual hours\n  corald, rented +[\d.]+ USD", rest)
    assert re.search(r"launches=[1-9]", rest)
    assert not list(directory.glob("run-*"))


def test_an_interrupt_ends_it_well(directory):
    with start(directory) as process:
        dashboard_of(process)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 0
    assert "virtual hours" in rest


@pytest.mark.parametrize("text", ["soon", "0", "-3", "nan", "inf"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=SECONDS_VARIABLE):
        seconds_from_environment({SECONDS_VARIABLE: text})


def test_without_a_time_it_runs_until_interrupted():
    assert seconds_from_environment({}) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_day_without_a_length_is_refused(seconds):
    with pytest.raises(ConfigError, match="demo day"):
        DemoOptions(day_seconds=seconds)
