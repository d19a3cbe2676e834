"""What must hold after every test, judged by the fake's ledger and the rows of the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from corald.market.faults import Call
from corald.market.ledger import Effect, Entry, Ledger
from corald.market.marketplace import USER_REQUEST

PARTS = {"instance", "network-interface", "volume"}
"""What a machine on demand consists of; a spot machine has its request besides."""


def judge(ledger: Ledger, intents: Iterable[Mapping[str, Any]], cluster: str) -> None:
    """Assert everything."""
    by_token = {intent["request"]["token"]: intent for intent in intents}
    _one_machine_for_an_intent(ledger)
    _one_request_for_a_token(ledger)
    _every_call_was_written_ahead(ledger, by_token)
    _only_ours_were_ended(ledger, cluster)


def calls(ledger: Ledger, since: float = 0.0) -> list[Entry]:
    """The calls that change something."""
    changing = (Call.LAUNCH, Call.TERMINATE)
    return [entry for entry in ledger.calls() if entry.what in changing and entry.at >= since]


def ended_by_us(ledger: Ledger, since: float = 0.0) -> list[Entry]:
    """The beginnings of shutdowns that the daemon asked for."""
    return [
        entry
        for entry in ledger.effects(Effect.SHUTTING_DOWN)
        if entry.detail == USER_REQUEST and entry.at >= since
    ]


def launched(ledger: Ledger, since: float = 0.0) -> list[Entry]:
    return [entry for entry in ledger.effects(Effect.LAUNCHED) if entry.at >= since]


def born(ledger: Ledger) -> dict[str, Entry]:
    """The birth of every machine."""
    return {entry.instance: entry for entry in ledger.effects(Effect.LAUNCHED)}


def orphan_seconds(
    ledger: Ledger, intents: Iterable[Mapping[str, Any]], notes: Iterable[Mapping[str, Any]]
) -> dict[str, float]:
    """How long each machine lived on although the daemon had given its intent up, or never had one.

    A machine that nobody ended by now counts from then until the ledger's last entry.
    """
    id_of = {intent["request"]["token"]: intent["id"] for intent in intents}
    given_up = {
        note["fields"]["intent"]: note["at"]
        for note in notes
        if note["event"] in ("launch_failed", "launch_disproven", "terminated")
    }
    ends = {entry.instance: entry.at for entry in ledger.effects(Effect.TERMINATED)}
    last = ledger.entries[-1].at
    return {
        birth.instance: max(
            0.0,
            ends.get(birth.instance, last)
            - (given_up.get(id_of[birth.token], last) if birth.token in id_of else birth.at),
        )
        for birth in ledger.effects(Effect.LAUNCHED)
    }


def _one_machine_for_an_intent(ledger: Ledger) -> None:
    by_intent: dict[str, list[Entry]] = defaultdict(list)
    for birth in launched(ledger):
        by_intent[dict(birth.tags)["corald:intent"]].append(birth)
    doubled = {intent: births for intent, births in by_intent.items() if len(births) > 1}
    assert not doubled, f"several machines for one intent: {doubled}"
    tokens = {births[0].token for births in by_intent.values()}
    assert len(tokens) == len(by_intent), "two intents with one token"


def _one_request_for_a_token(ledger: Ledger) -> None:
    requests: dict[str, set[str]] = defaultdict(set)
    for entry in ledger.calls(Call.LAUNCH):
        requests[entry.token].add(entry.request)
    changed = {token: found for token, found in requests.items() if len(found) > 1}
    assert not changed, f"several requests with one token: {changed}"


def _every_call_was_written_ahead(ledger: Ledger, by_token: Mapping[str, Any]) -> None:
    for entry in ledger.calls(Call.LAUNCH):
        assert entry.token in by_token, f"no intent for {entry}"
        assert by_token[entry.token]["created_at"] <= entry.at, f"called before it was due: {entry}"


def _only_ours_were_ended(ledger: Ledger, cluster: str) -> None:
    machines = born(ledger)
    for entry in ended_by_us(ledger):
        tags = dict(machines[entry.instance].tags)
        owner = (tags.get("corald:cluster"), tags.get("corald:managed-by"))
        assert owner == (cluster, "corald"), f"not ours: {entry}"
