from __future__ import annotations

from dataclasses import replace

import pytest

from corald.core.caps import Caps
from corald.model.fleet import Instance, InstanceState, Intent, IntentState
from corald.model.plan import Launch
from corald.runtime.gate import TAGS_FRESH_SECONDS, Gate
from tests.unit.core.worlds import SPOT, T0, running_world

OPEN = Caps(None, None, 0.0, 24.0)


def gate(caps: Caps = OPEN, *, wanted: bool = True) -> Gate:
    return Gate("test", caps=lambda: caps, wanted=lambda _: wanted)


def intents(count: int = 1) -> list[Intent]:
    return running_world(count).engine.state.fleet.live_intents()


def launch(intent: Intent, **changes) -> Launch:
    return Launch(intent.id, replace(intent.request, **changes), 1.0, "test")


def machine(**tags: str) -> Instance:
    born = {"corald:cluster": "test", "corald:managed-by": "corald"}
    born |= {f"corald:{key.replace('_', '-')}": value for key, value in tags.items()}
    return Instance("i-1", "sim", InstanceState.RUNNING, SPOT, tuple(sorted(born.items())))


def test_a_launch_without_a_durable_intent_is_refused():
    (intent,) = intents()
    g = gate()
    assert g.refuses_launch(launch(intent)).kind == "blocked"
    g.committed([intent])
    assert g.refuses_launch(launch(intent)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"image": "other"},
        {"user_data": "x"},
        {"token": "other"},
        {"name": "other"},
        {"tags": ()},
        {"offering": replace(SPOT, zone="r1-b")},
    ],
)
def test_a_request_that_differs_from_the_durable_one_is_refused(change):
    (intent,) = intents()
    g = gate()
    g.committed([intent])
    assert g.refuses_launch(launch(intent, **change)).kind == "blocked"


@pytest.mark.parametrize("state", [IntentState.FAILED, IntentState.GONE])
def test_an_intent_that_has_ended_cannot_be_launched_any_more(state):
    (intent,) = intents()
    g = gate()
    g.committed([intent])
    g.committed([replace(intent, state=state)])
    assert g.refuses_launch(launch(intent)).kind == "blocked"


def test_a_launch_that_is_no_longer_wanted_is_withdrawn():
    (intent,) = intents()
    g = gate(wanted=False)
    g.committed([intent])
    assert g.refuses_launch(launch(intent)).kind == "withdrawn"


def test_the_cap_counts_every_durable_intent_once():
    first, second, third = intents(3)
    g = gate(replace(OPEN, usd_per_hour=2.0))
    g.committed([first, second])
    g.committed([first, second])
    assert g.refuses_launch(launch(second)) is None
    g.committed([third])
    assert "exceeds" in g.refuses_launch(launch(third)).message
    g.committed([replace(first, state=IntentState.GONE)])
    assert g.refuses_launch(launch(third)) is None


def test_what_leaves_or_has_an_unknown_outcome_counts_until_it_is_gone():
    first, second = intents(2)
    g = gate(replace(OPEN, usd_per_hour=1.0))
    for state in (IntentState.UNKNOWN, IntentState.TERMINATING):
        g.committed([replace(first, state=state), second])
        assert g.refuses_launch(launch(second)) is not None


def test_the_price_of_the_durable_intent_counts_not_that_of_the_call():
    (intent,) = intents()
    g = gate(replace(OPEN, usd_per_hour=2.0))
    g.committed([replace(intent, committed_usd_per_hour=3.0)])
    assert g.refuses_launch(replace(launch(intent), committed_usd_per_hour=0.0)) is not None


def test_only_machines_that_carry_our_tags_may_be_terminated():
    g = gate()
    g.saw([machine()], T0)
    assert g.may_terminate("sim", ["i-1", "i-2"], T0) == ["i-1"]
    assert g.may_terminate("elsewhere", ["i-1"], T0) == []


@pytest.mark.parametrize("foreign", [{"cluster": "other"}, {"managed_by": "terraform"}])
def test_a_foreign_machine_is_never_terminated(foreign):
    g = gate()
    g.saw([machine(**foreign)], T0)
    assert g.may_terminate("sim", ["i-1"], T0) == []


def test_tags_seen_long_ago_do_not_count():
    g = gate()
    g.saw([machine()], T0)
    assert g.may_terminate("sim", ["i-1"], T0 + TAGS_FRESH_SECONDS) == ["i-1"]
    assert g.may_terminate("sim", ["i-1"], T0 + TAGS_FRESH_SECONDS + 1) == []


def test_a_machine_that_a_complete_listing_no_longer_shows_is_forgotten():
    g = gate()
    g.saw([machine()], T0)
    g.forget_before("elsewhere", T0 + 10)
    assert g.may_terminate("sim", ["i-1"], T0 + 10) == ["i-1"]
    g.forget_before("sim", T0 + 10)
    assert g.may_terminate("sim", ["i-1"], T0 + 10) == []
