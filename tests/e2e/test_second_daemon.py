"""Two daemons never act on one fleet."""

from __future__ import annotations

import time

from tests.e2e.library import MODELS
from tests.e2e.programs import Cloud
from tests.e2e.truths import calls


def test_a_second_daemon_on_the_same_state_ends_with_75_and_asks_no_cloud(make_stack):
    stack = make_stack()
    stack.daemon.start()
    stack.serving({MODELS[0]: 4.0})
    second_cloud = Cloud(stack.folder, name="second-cloud")
    stack.also(second_cloud.program)
    second_cloud.start()
    second = stack.second_daemon("second", endpoint=second_cloud.url)
    began = time.time()

    second.program.start()
    assert second.program.process.wait(20.0) == 75
    said = second.program.log.read_text()
    assert str(stack.daemon.program.pid) in said
    assert str(stack.daemon.settings.state_dir) in said
    assert not second_cloud.ledger().entries
    assert not calls(stack.cloud.ledger(), began)
    assert stack.daemon.ready()
