from __future__ import annotations

import pytest
from worlds import T0

from corald.core.circuits import Circuits
from corald.model.policy import Rules

RULES = Rules(circuit_failures=3, circuit_seconds=300.0, circuit_max_seconds=1800.0)


def opened() -> Circuits:
    circuits = Circuits()
    for _ in range(3):
        circuits.failed("t", T0, RULES)
    return circuits


def test_a_circuit_opens_at_the_third_failure_and_not_before():
    circuits = Circuits()
    assert not circuits.failed("t", T0, RULES)
    assert not circuits.failed("t", T0, RULES)
    assert circuits.open_at(T0) == {}
    assert circuits.on_trial() == frozenset()
    assert circuits.failed("t", T0, RULES)
    assert circuits.open_at(T0) == {"t": T0 + 300}
    assert circuits.open_at(T0 + 300) == {}


def test_a_hopeless_request_opens_it_at_once():
    circuits = Circuits()
    assert circuits.failed("t", T0, RULES, at_once=True)
    assert circuits.open_at(T0) == {"t": T0 + 300}


def test_a_failed_trial_opens_it_for_twice_as_long_up_to_the_limit():
    circuits, now = opened(), T0
    lasted = []
    for _ in range(5):
        until = circuits.open_at(now)["t"]
        lasted.append(until - now)
        now = until
        assert circuits.failed("t", now, RULES)
    assert lasted == pytest.approx([300, 600, 1200, 1800, 1800])


def test_a_success_forgets_everything():
    circuits = opened()
    circuits.succeeded("t")
    assert circuits.open_at(T0) == {}
    assert circuits.on_trial() == frozenset()
    assert not circuits.failed("t", T0, RULES)


def test_a_template_stays_on_trial_after_its_time_until_it_succeeds():
    circuits = opened()
    assert circuits.on_trial() == {"t"}
    assert circuits.open_at(T0 + 9999) == {}
    assert circuits.on_trial() == {"t"}


def test_failures_of_one_template_do_not_count_for_another():
    circuits = Circuits()
    for name in ("a", "b", "c"):
        assert not circuits.failed(name, T0, RULES)


def test_the_next_change_is_when_the_first_circuit_closes():
    circuits = opened()
    circuits.failed("u", T0 + 100, RULES, at_once=True)
    assert circuits.next_change(T0) == T0 + 300
    assert circuits.next_change(T0 + 300) == T0 + 400
    assert circuits.next_change(T0 + 400) is None


def test_failures_while_it_is_open_do_not_open_it_again():
    circuits = opened()
    for _ in range(4):
        assert not circuits.failed("t", T0 + 1, RULES, at_once=True)
    assert circuits.open_at(T0 + 1) == {"t": T0 + 300}
