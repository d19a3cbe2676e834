"""SIGHUP takes the whole configuration or none of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from corald.cli.app import run
from tests.e2e.daemon import EVERY_MODEL, Daemon
from tests.e2e.library import MODELS
from tests.e2e.programs import until
from tests.e2e.stack import Stack
from tests.e2e.truths import calls, launched

SUCCESS = "corald_config_last_reload_successful"
RATES = {MODELS[0]: 4.0, MODELS[1]: 6.0}
KEPT, OTHER = EVERY_MODEL[:2]


def _misspelt(daemon: Daemon) -> None:
    daemon.write(replace(daemon.settings, wishes=(replace(KEPT, more="max_replica = 3"), OTHER)))


def _mistyped(daemon: Daemon) -> None:
    daemon.write(replace(daemon.settings, wishes=(replace(KEPT, more='priority = "high"'), OTHER)))


def _unknown_model(daemon: Daemon) -> None:
    daemon.write(replace(daemon.settings, wishes=(replace(KEPT, model="qwen3-9b"), OTHER)))


def _cut_short(daemon: Daemon) -> None:
    text = daemon.settings.text()
    daemon.config.write_text(text[: text.rindex("[policies.slo]") + 8])


def _without_its_secret(daemon: Daemon) -> None:
    secret = f'token = "file:{daemon.config.parent}/no-such-token"'
    text = daemon.settings.text()
    daemon.config.write_text(text.replace('bind = "127', f'{secret}\nbind = "127'))


def _removed(daemon: Daemon) -> None:
    daemon.config.unlink()


BROKEN: dict[str, tuple[Callable[[Daemon], None], str]] = {
    "misspelt": (_misspelt, "max_replicas"),
    "mistyped": (_mistyped, "priority"),
    "unknown model": (_unknown_model, "qwen3-8b"),
    "cut short": (_cut_short, ""),
    "without its secret": (_without_its_secret, "no-such-token"),
    "removed": (_removed, ""),
}


@pytest.fixture
def stack(make_stack) -> Stack:
    stack = make_stack(wishes=(KEPT, OTHER))
    stack.daemon.start()
    stack.serving(RATES)
    assert stack.daemon.metrics()[SUCCESS] == 1
    return stack


def test_a_broken_configuration_changes_nothing_and_is_reported_with_its_place(stack):
    daemon = stack.daemon
    good, before = daemon.settings, daemon.metrics()
    policies = [(m["model"], m["replicas_ready"]) for m in daemon.status()["models"]]
    began = time.time()
    for name, (spoil, hint) in BROKEN.items():
        said = len(daemon.said("config_reloaded"))
        spoil(daemon)
        daemon.hang_up()
        lines = until(lambda said=said: daemon.said("config_reloaded")[said:], name)
        details = " ".join(line["detail"] for line in lines)
        assert not any(line["ok"] for line in lines), name
        assert str(daemon.config) in details, name
        assert hint in details, name
        assert daemon.metrics()[SUCCESS] == 0
        assert run(["check", "-c", str(daemon.config)]) == 78, name
        daemon.write(good)
    assert [(m["model"], m["replicas_ready"]) for m in daemon.status()["models"]] == policies
    assert before.keys() <= daemon.metrics().keys()
    assert not calls(stack.cloud.ledger(), began)

    daemon.hang_up()
    until(lambda: daemon.metrics()[SUCCESS] == 1, "the good one is in force again")


def test_a_good_configuration_takes_effect_without_a_restart_or_churn(stack):
    daemon, pid = stack.daemon, stack.daemon.program.pid
    serving = set(stack.cloud.ledger().alive())
    began = time.time()
    daemon.write(replace(daemon.settings, wishes=(replace(KEPT, min_replicas=4), OTHER)))
    daemon.hang_up()
    until(lambda: daemon.models()[KEPT.model]["replicas_ready"] >= 4, "the new minimum serves")
    assert daemon.program.pid == pid
    assert daemon.program.alive
    assert serving <= set(stack.cloud.ledger().alive())
    assert {
        dict(birth.tags)["corald:model"] for birth in launched(stack.cloud.ledger(), began)
    } == {KEPT.model}


def test_a_model_whose_policy_is_removed_goes_on_serving(stack):
    daemon = stack.daemon
    serving = set(stack.cloud.ledger().alive())
    began = time.time()
    said = len(daemon.said("policies_changed"))
    daemon.write(replace(daemon.settings, wishes=(KEPT,)))
    daemon.hang_up()
    until(lambda: len(daemon.said("policies_changed")) > said, "the new policies are in force")
    solved = len(daemon.said("solve_ended"))
    until(lambda: len(daemon.said("solve_ended")) > solved + 1, "it has planned anew")
    assert not calls(stack.cloud.ledger(), began)
    assert set(stack.cloud.ledger().alive()) == serving
    assert OTHER.model in {endpoint["model"] for endpoint in daemon.endpoints()}
