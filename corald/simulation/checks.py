"""What must hold after any story, judged from the clouds' ledgers and the store alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from corald.market.ledger import Effect, Ledger
from corald.market.marketplace import USER_REQUEST
from corald.model.fleet import TAG_CLUSTER, TAG_INTENT
from corald.model.state import StoredState


def violations(
    ledgers: Iterable[Ledger],
    stored: StoredState,
    *,
    cluster: str,
    most_usd_per_hour: float | None = None,
) -> list[str]:
    """Say what is wrong, in sentences; empty when all is well.

    `stored` is read after the daemon has stopped and the clouds had time to settle.
    """
    known = {intent.id for intent in stored.intents if not intent.state.ended}
    found: list[str] = []
    peak = 0.0
    for ledger in ledgers:
        found += _two_for_one_intent(ledger)
        found += _foreign_terminated(ledger, cluster)
        found += _untracked(ledger, cluster, known)
        peak += ledger.peak_usd_per_hour
    if most_usd_per_hour is not None and peak > most_usd_per_hour * (1 + 1e-9):
        found.append(f"machines cost {peak:.2f} USD/h at their peak, above {most_usd_per_hour:.2f}")
    return found


def _two_for_one_intent(ledger: Ledger) -> Iterator[str]:
    alive: dict[str, set[str]] = defaultdict(set)
    intents = _tags(ledger, TAG_INTENT)
    for entry in ledger.effects():
        intent = intents.get(entry.instance, "")
        if not intent:
            continue
        if entry.what == Effect.LAUNCHED:
            alive[intent].add(entry.instance)
            if len(alive[intent]) > 1:
                yield f"intent {intent} has {len(alive[intent])} live machines at {entry.at:.0f}"
        elif entry.what == Effect.TERMINATED:
            alive[intent].discard(entry.instance)


def _foreign_terminated(ledger: Ledger, cluster: str) -> Iterator[str]:
    clusters = _tags(ledger, TAG_CLUSTER)
    for entry in ledger.effects(Effect.SHUTTING_DOWN):
        if entry.detail == USER_REQUEST and clusters.get(entry.instance) != cluster:
            yield f"{entry.instance} is not ours and was terminated at {entry.at:.0f}"


def _untracked(ledger: Ledger, cluster: str, known: set[str]) -> Iterator[str]:
    clusters, intents = _tags(ledger, TAG_CLUSTER), _tags(ledger, TAG_INTENT)
    for instance in ledger.alive():
        if clusters.get(instance) == cluster and intents.get(instance) not in known:
            yield f"{instance} is alive and ours, and the store does not know it"


def _tags(ledger: Ledger, key: str) -> dict[str, str]:
    """The value of one tag by machine."""
    return {
        entry.instance: dict(entry.tags)[key]
        for entry in ledger.effects()
        if key in dict(entry.tags)
    }
