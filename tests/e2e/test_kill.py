"""Killed at any point, the daemon rents nothing twice and loses sight of nothing.

One daemon, one cloud, one kill after the other; in between demand goes up and down. Judged at the
end by the fake's ledger.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest

from corald.market.faults import Call
from corald.market.ledger import Effect, Record
from tests.e2e.library import MODELS
from tests.e2e.programs import until
from tests.e2e.stack import Stack
from tests.e2e.truths import judge, orphan_seconds

ORPHAN_SECONDS = 5.0
LAG_SECONDS = 12.0
SOME_SECONDS = random.uniform(0.2, 2.0)
SINGLE, PAIR = MODELS[0], MODELS[2]
"""A model whose replicas are one machine each, and one of two."""


@dataclass(frozen=True)
class Kill:
    """A point in the daemon's work: what leads to it, and how to see that it is reached."""

    name: str
    rates: tuple[float, float]
    """Of both models, in requests/s."""
    reached: Callable[[Stack, int], bool]
    """Whether the point is reached, with the entries that the ledger had before."""
    prepare: Callable[[Stack], None] = lambda _: None
    lag_seconds: float = 0.0
    """How long listings miss a new machine meanwhile: only its token tells that it is there."""


def _ledger_shows(record: Record, what: str) -> Callable[[Stack, int], bool]:
    def shows(stack: Stack, before: int) -> bool:
        entries = stack.cloud.ledger().entries[before:]
        return any(entry.record is record and entry.what == what for entry in entries)

    return shows


def _store_shows(table: str, state: str) -> Callable[[Stack, int], bool]:
    def shows(stack: Stack, _: int) -> bool:
        sql = f"SELECT 1 FROM {table} WHERE ended = 0 AND json_extract(value, '$.state') = ?"
        return bool(stack.daemon.rows(sql, state))

    return shows


def _booting(stack: Stack, before: int) -> bool:
    return _store_shows("intents", "launched")(stack, before) and _ledger_shows(
        Record.EFFECT, Effect.LAUNCHED
    )(stack, before)


def _some_time(stack: Stack, before: int) -> bool:
    """Whether the cloud has been at work for a time that nobody chose."""
    entries = stack.cloud.ledger().entries[before:]
    return bool(entries) and entries[-1].at - entries[0].at > SOME_SECONDS


def _fault(call: Call, kind: str, **rest: float) -> Callable[[Stack], None]:
    return lambda stack: stack.cloud.fault(call, kind, **rest)


CALL, EFFECT = Record.CALL, Record.EFFECT
KILLS = (
    Kill(
        "the wish is durable, and its call is on the wire",
        (4.0, 0.7),
        _store_shows("intents", "committed"),
        lambda stack: stack.cloud.order("freeze"),
    ),
    Kill(
        "the call arrived and has no effect yet",
        (8.0, 0.7),
        _ledger_shows(CALL, Call.LAUNCH),
        _fault(Call.LAUNCH, "delay", delay_seconds=1.0),
        lag_seconds=LAG_SECONDS,
    ),
    Kill(
        "the machine exists and the answer is lost",
        (12.0, 0.7),
        _ledger_shows(EFFECT, Effect.LAUNCHED),
        _fault(Call.LAUNCH, "lost-after"),
        lag_seconds=LAG_SECONDS,
    ),
    Kill(
        "the outcome is known to be unknown",
        (16.0, 0.7),
        _store_shows("intents", "unknown"),
        _fault(Call.LAUNCH, "lost-after"),
        lag_seconds=LAG_SECONDS,
    ),
    Kill(
        "the call never had an effect",
        (20.0, 0.7),
        _ledger_shows(CALL, Call.LAUNCH),
        _fault(Call.LAUNCH, "lost-before"),
    ),
    Kill(
        "one of two machines of a replica exists",
        (20.0, 1.5),
        _ledger_shows(EFFECT, Effect.LAUNCHED),
        _fault(Call.LAUNCH, "delay", delay_seconds=1.0, skip=1),
    ),
    Kill("a machine boots", (24.0, 1.5), _booting),
    Kill("a replica drains", (12.0, 1.5), _store_shows("replicas", "draining")),
    Kill(
        "the end of a machine is asked for",
        (8.0, 0.7),
        _ledger_shows(CALL, Call.TERMINATE),
        _fault(Call.TERMINATE, "delay", delay_seconds=1.0),
    ),
    Kill("a machine is shutting down", (4.0, 0.7), _ledger_shows(EFFECT, Effect.SHUTTING_DOWN)),
    Kill("at some time", (12.0, 1.5), _some_time),
)


@pytest.mark.timeout(240)
def test_no_kill_leads_to_a_second_machine_or_to_one_that_is_forgotten(make_stack, figure):
    stack = make_stack(scale_down_delay="1s")
    stack.daemon.start()
    stack.serving({SINGLE: 1.0, PAIR: 0.1})
    for kill in KILLS:
        _kill(stack, kill)
        stack.daemon.start()
        until(stack.daemon.ready, "decisions are made")
        _nothing_is_forgotten(stack)
    rates = {SINGLE: 8.0, PAIR: 0.7}
    stack.producer.levels(rates)
    until(lambda: stack.served(rates) and _settled(stack), "all is settled", 60.0)

    ledger = stack.cloud.ledger()
    judge(ledger, stack.daemon.intents(), stack.daemon.settings.cluster)
    asked = Counter(call.token for call in ledger.calls(Call.LAUNCH))
    assert len(asked) >= 8, "too little happened"
    assert max(asked.values()) > 1, "no call was repeated"
    figure("kill_after_some_seconds", SOME_SECONDS)
    longest = max(orphan_seconds(ledger, stack.daemon.intents(), stack.daemon.notes()).values())
    figure("orphan_seconds_max", longest)
    assert longest <= ORPHAN_SECONDS


def _kill(stack: Stack, kill: Kill) -> None:
    """Lead the daemon to the point and kill it there; what it was doing goes on without it."""
    before = len(stack.cloud.ledger().entries)
    stack.cloud.order("rules", instance_lag_seconds=kill.lag_seconds)
    kill.prepare(stack)
    stack.producer.levels(dict(zip((SINGLE, PAIR), kill.rates, strict=True)))
    until(lambda: kill.reached(stack, before), kill.name)
    helpers = psutil.Process(stack.daemon.program.pid).children(recursive=True)
    stack.daemon.program.kill()
    stack.cloud.order("thaw")
    stack.cloud.order("clear-faults")
    _, left = psutil.wait_procs(helpers, timeout=10.0)
    assert not left, "a solver outlived its daemon"


def _nothing_is_forgotten(stack: Stack) -> None:
    """The new life knows every machine that the one before had written down."""
    known = {instance["instance"] for instance in stack.daemon.status()["instances"]}
    written = {intent["instance"] for intent in stack.daemon.intents()}
    assert written & set(stack.cloud.ledger().alive()) <= known


def _settled(stack: Stack) -> bool:
    """Whether exactly the machines that live are known, and nothing is on its way."""
    instances = stack.daemon.status()["instances"]
    known = {instance["instance"] for instance in instances}
    at_rest = all(instance["state"] == "launched" for instance in instances)
    return at_rest and known == set(stack.cloud.ledger().alive())
