"""Verbs without a daemon: what they print, and which exit code they end with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corald import __version__
from corald.cli.common import print_table

DEMAND = {
    "specversion": "1.0",
    "id": "1",
    "source": "s",
    "type": "io.corald.demand.v1",
    "data": {
        "model": "gpt-oss-20b",
        "request_rate": 4.0,
        "input_tokens": 1000.0,
        "output_tokens": 200.0,
        "window_seconds": 60.0,
    },
}


def test_the_version_is_quick_and_needs_no_parser() -> None:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "corald", "version"],
            capture_output=True,
            text=True,
            check=True,
        )
        times.append(time.perf_counter() - started)
    assert done.stdout == f"corald {__version__}\n"
    assert not re.search(r"\| +(typer|pydantic|rich|asyncio|numpy)$", done.stderr, re.MULTILINE)
    assert min(times) < 0.3


def test_the_version_is_json_when_asked(corald) -> None:
    code, out, _ = corald("version", "--json")
    assert (code, json.loads(out)["corald"]) == (0, __version__)


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["check", "--nothing"], ["explain", "model"], ["audit", "--limit", "0"]],
)
def test_what_cannot_be_parsed_exits_64(corald, arguments: list[str]) -> None:
    code, out, error = corald(*arguments)
    assert (code, out) == (64, "")
    assert error.startswith("corald: ")


def test_help_is_not_an_error(corald) -> None:
    for arguments in ([], ["templates"]):
        assert corald(*arguments, "--help")[0] == 0


def test_a_good_configuration_is_fine(corald, site) -> None:
    code, out, _ = corald("check", "-c", str(site.config))
    assert code == 0
    assert out.endswith("fine: 2 policies, 1 providers, 4 templates\n")
    code, out, _ = corald("check", "-c", str(site.config), "--json")
    assert (code, json.loads(out)) == (0, {"ok": True, "faults": []})


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("min_replicsa = 1", "policies[1].min_replicsa: unknown key"),
        ("min_replicas = '1'", "policies[1].min_replicas: should be a valid integer"),
        ("[providers.other]\nplugin = 'none'", "no provider plugin is called 'none'"),
        ("[providers.x]\nplugin = 'simulated'\nregions = ['r']\nsede = 1", "providers.x: "),
        ("[kafka]\nbootstrap = ['localhost:1']\nsecurity = 'ssl'\ntls.ca = '/no.pem'", "/no.pem"),
        ("instance_types = ['z9.*']", "matches no instance type of the catalogue"),
        ("engine = 'coral'", "the template library has no table"),
    ],
)
def test_a_bad_configuration_exits_78_and_tells_where(corald, site, more: str, told: str) -> None:
    site.write(more + "\n")
    code, out, error = corald("check", "-c", str(site.config))
    assert (code, out) == (78, "")
    assert told in error
    code, out, _ = corald("check", "-c", str(site.config), "--json")
    assert code == 78
    assert told in json.loads(out)["faults"][0]


def test_a_fault_of_the_file_is_told_with_file_and_line(corald, site) -> None:
    site.write("gapp = 1\n")
    _, _, error = corald("check", "-c", str(site.config))
    assert re.match(rf"corald: {re.escape(str(site.config))}:\d+: policies\[1\]\.gapp: ", error)


def test_latency_that_the_library_does_not_promise_is_refused(corald, site) -> None:
    text = site.config.read_text().replace("ttft_ms = 1500", "ttft_ms = 500", 1)
    site.config.write_text(text)
    code, _, error = corald("check", "-c", str(site.config))
    assert code == 78
    assert "this policy promises less" in error


def test_without_a_library_the_remedy_is_told(corald, site) -> None:
    (site.home / "templates.clt").unlink()
    code, _, error = corald("check", "-c", str(site.config))
    assert code == 78
    assert "corald templates build" in error


def test_a_plan_is_a_table_with_its_change_in_money(corald, site) -> None:
    code, out, _ = corald("plan", "-c", str(site.config), "--demand", "phi-4-14b=12")
    assert code == 0
    assert re.search(r"^\+ +add +phi-4-14b +mixed +1xL40S? .* sim/use2-az\d", out, re.MULTILINE)
    assert re.search(r"^change: \+\d+\.\d\d USD/h$", out, re.MULTILINE)
    assert "\x1b" not in out


def test_a_plan_is_json_and_its_exit_code_tells_of_changes(corald, site, tmp_path: Path) -> None:
    lines = tmp_path / "demand.jsonl"
    lines.write_text(json.dumps(DEMAND) + "\n\n")
    arguments = ("plan", "-c", str(site.config), "--demand-file", str(lines), "--json")
    code, out, _ = corald(*arguments, "--detailed-exitcode")
    plan = json.loads(out)
    assert code == 2
    assert {row["model"] for row in plan["rows"]} == {"gpt-oss-20b"}
    assert plan["usd_per_hour_change"] == pytest.approx(
        sum(row["usd_per_hour"] for row in plan["rows"])
    )
    assert {"greedy", "best-one-gpu"} <= set(plan["solve"]["baselines"])
    assert list((site.home / "state").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "say for which demand"),
        (("--demand", "phi-4-14b"), "write MODEL=RATE"),
        (("--demand", "phi-4-14b=-1"), "write MODEL=RATE"),
        (("--demand", "phi-4-14b=nan"), "write MODEL=RATE"),
        (("--demand", "phi-5=1"), "no policy for this model; there are: gpt-oss-20b, phi-4-14b"),
        (("--demand-file", "/none"), "No such file"),
    ],
)
def test_a_plan_for_no_demand_is_a_usage_error(corald, site, arguments, told: str) -> None:
    code, _, error = corald("plan", "-c", str(site.config), *arguments)
    assert code == 64
    assert told in error


def test_a_bad_line_of_demand_is_told_with_its_number(corald, site, tmp_path: Path) -> None:
    lines = tmp_path / "demand.jsonl"
    lines.write_text(json.dumps(DEMAND) + "\n{}\n")
    code, _, error = corald("plan", "-c", str(site.config), "--demand-file", str(lines))
    assert code == 64
    assert f"{lines}:2: " in error


def test_templates_are_listed_and_shown(corald, site) -> None:
    code, out, _ = corald("templates", "list", "-c", str(site.config), "--limit", "3")
    assert code == 0
    assert "and 1 more" in out
    code, out, _ = corald(
        "templates", "list", "-c", str(site.config), "--model", "phi-4-14b", "--json"
    )
    rows = json.loads(out)
    assert [row["template"]["throughput"] for row in rows] == [5.0, 2.0]
    name = re.search(
        r"phi-4-14b/mixed/vllm/\S+", corald("templates", "list", "-c", str(site.config))[1]
    )
    assert name
    code, out, _ = corald("templates", "show", name.group(), "-c", str(site.config))
    assert code == 0
    assert out.startswith(f"{name.group()}: 5.000/s")
    code, _, error = corald("templates", "show", "x/mixed/vllm/1xL4", "-c", str(site.config))
    assert code == 78
    assert "has no template" in error


def test_a_daemon_that_does_not_answer_exits_69(corald, tmp_path: Path) -> None:
    for url in (f"unix:{tmp_path}/none", "http://127.0.0.1:9"):
        code, _, error = corald("status", "--url", url)
        assert code == 69
        assert f"no daemon answers at {url}" in error
    assert corald("status", "--url", "ftp://x")[0] == 64


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "http:", "localhost:1"])
def test_a_url_that_is_none_is_a_usage_error(corald, url: str) -> None:
    code, _, error = corald("status", "--url", url)
    assert code == 64
    assert f"--url {url}: write http://HOST:PORT" in error


def test_a_host_name_that_cannot_exist_does_not_answer(corald) -> None:
    assert corald("status", "--url", "http://a..b:1")[0] == 69


@pytest.mark.parametrize(("token", "code"), [("a\nb", 64), ("", 64), ("tök—", 69)])
def test_a_token_is_one_line_of_any_text(corald, tmp_path: Path, token: str, code: int) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    url = f"unix:{tmp_path}/none"
    assert corald("status", "--url", url, "--token-file", str(file))[0] == code


def test_text_of_clouds_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("reason",), [("sold\x1b[2J out\nfine\x9b1m",)])
    out = capsys.readouterr().out
    assert "sold\\x1b[2J out\\x0afine\\x9b1m" in out


@pytest.mark.parametrize(
    "arguments",
    [("--rho", "nan"), ("--n-max", "0"), ("--epsilon", "-1"), ("--workers", "0")],
)
def test_a_build_with_options_without_sense_leaves_the_library(corald, site, arguments) -> None:
    before = (site.home / "templates.clt").read_bytes()
    assert corald("templates", "build", "-c", str(site.config), *arguments)[0] == 64
    assert (site.home / "templates.clt").read_bytes() == before


def test_a_library_without_any_template_replaces_nothing(corald, site) -> None:
    before = (site.home / "templates.clt").read_bytes()
    code, _, error = corald(
        "templates", "build", "-c", str(site.config), "--n-max", "1", "--rho", "0.001"
    )
    assert code == 78
    assert "no template meets the targets" in error
    assert (site.home / "templates.clt").read_bytes() == before


@pytest.mark.parametrize("output", ["/", "/dev/null/x.clt", "{home}/corald.toml/x.clt", "{home}"])
def test_a_build_that_cannot_be_written_is_refused_before_it_begins(
    corald, site, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.setattr("corald.templates.build.build_library", None)
    target = output.format(home=site.home)
    code, _, error = corald("templates", "build", "-c", str(site.config), "-o", target)
    assert code == 64
    assert f"{target} cannot be written: " in error


def test_nothing_but_the_answer_is_printed_without_a_terminal(corald, site) -> None:
    code, _, error = corald("templates", "build", "-c", str(site.config), "--n-max", "1")
    assert (code, error) == (0, "")
    assert corald("plan", "-c", str(site.config), "--demand", "phi-4-14b=1")[2] == ""
