"""Stopping the daemon stops nothing else; and its exit status says why it ended."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from corald.market.faults import Call
from tests.e2e.daemon import EVERY_MODEL
from tests.e2e.library import MODELS
from tests.e2e.programs import until
from tests.e2e.stack import Stack
from tests.e2e.truths import calls

RATES = {MODELS[0]: 4.0, MODELS[2]: 0.7}
STOP_SECONDS = 20.0


@pytest.fixture
def stack(make_stack) -> Stack:
    stack = make_stack()
    stack.daemon.start()
    stack.serving(RATES)
    return stack


def test_sigterm_leaves_the_fleet_serving_and_a_restart_moves_nothing(stack, figure):
    serving = set(stack.cloud.ledger().alive())
    stopped_at = time.time()
    assert stack.daemon.program.stop(within=STOP_SECONDS) == 0
    figure("stop_seconds", time.time() - stopped_at)

    stack.daemon.start()
    until(lambda: stack.served(RATES), "served again")
    solved = len(stack.daemon.said("solve_ended"))
    until(lambda: len(stack.daemon.said("solve_ended")) > solved + 1, "it has planned anew")
    assert not calls(stack.cloud.ledger(), stopped_at)
    assert set(stack.cloud.ledger().alive()) == serving


def test_sigterm_during_a_launch_waits_for_its_answer(stack):
    stack.cloud.fault(Call.LAUNCH, "delay", delay_seconds=2.0, times=None)
    before = len(calls(stack.cloud.ledger()))
    stack.producer.levels({**RATES, MODELS[0]: 12.0})
    until(lambda: len(calls(stack.cloud.ledger())) > before, "a launch is under way")
    assert stack.daemon.program.stop(within=STOP_SECONDS) == 0
    asked = {call.token for call in stack.cloud.ledger().calls(Call.LAUNCH)}
    recorded = {intent["request"]["token"]: intent["instance"] for intent in stack.daemon.intents()}
    assert {token: recorded[token] for token in asked} == {
        token: instance for token, (instance,) in stack.cloud.ledger().machines_by_token().items()
    }


def test_a_configuration_that_cannot_be_used_ends_the_daemon_with_78(make_stack):
    stack = make_stack(wishes=(replace(EVERY_MODEL[0], more="headrom = 0.2"),))
    stack.daemon.program.start()
    assert stack.daemon.program.process.wait(STOP_SECONDS) == 78
    said = stack.daemon.program.log.read_text()
    assert re.search(rf"{re.escape(str(stack.daemon.config))}:\d+", said)
    assert "headrom" in said
    assert "headroom" in said
    assert not stack.cloud.ledger().entries
