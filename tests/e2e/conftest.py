from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack
from tests.e2e.truths import judge
from tests.kafka.broker import KafkaBroker

_STACK = pytest.StashKey[Stack]()
_FIGURES = pytest.StashKey[dict[str, float]]()


@pytest.fixture
def make_stack(
    request: pytest.FixtureRequest, tmp_path: Path, kafka_broker: KafkaBroker
) -> Iterator[Callable[..., Stack]]:
    """Make the stack of a test; at its end, what must hold after every test is checked."""
    made: list[Stack] = []

    def make(**settings: Any) -> Stack:
        stack = Stack.make(tmp_path, kafka_broker, **settings)
        request.node.stash[_STACK] = stack
        made.append(stack)
        return stack

    yield make
    for stack in made:
        ledger, intents = stack.cloud.ledger(), stack.daemon.intents()
        stack.close()
        judge(ledger, intents, stack.daemon.settings.cluster)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, float], None]:
    """Note something measured, for the end of the run."""
    return request.config.stash.setdefault(_FIGURES, {}).__setitem__


def pytest_terminal_summary(terminalreporter, config):
    for name, value in config.stash.get(_FIGURES, {}).items():
        terminalreporter.write_line(f"{name}: {value:.3f}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    stack = item.stash.get(_STACK, None)
    if report.failed and stack is not None:
        report.sections.extend((f"log of {name}", text) for name, text in stack.logs())
    return report
