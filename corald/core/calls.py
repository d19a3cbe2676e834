"""The create and terminate calls that are still to be made.

A call may be repeated: launches carry the same token, and machines that are to go are asked for
again until the cloud confirms.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from corald.core.lifecycle import launch_deadline_at
from corald.core.observation import Observation
from corald.core.state import ClusterState
from corald.model.fleet import InstanceState, Intent, IntentState
from corald.model.plan import Launch, Terminate

TOKEN_SECONDS = 12 * 3600.0
"""Older intents are resolved by looking only: a cloud may have forgotten their token."""
CALLS_AT_ONCE = 10
"""Create calls under way at one provider; the rest wait as intents that can still be given up."""
TERMINATE_RETRY_SECONDS = 30.0
STOPPING_RETRY_SECONDS = 120.0
TO_CALL = (IntentState.COMMITTED, IntentState.UNKNOWN)


class Calls:
    """Which create and terminate calls are due; what is under way is only remembered here."""

    def __init__(self, state: ClusterState, observation: Observation) -> None:
        self._state = state
        self._observation = observation
        self._calling: set[str] = set()
        self._retry_at: dict[str, float] = {}

    @property
    def calling(self) -> AbstractSet[str]:
        """Intents whose create call is under way."""
        return self._calling

    def wanted(self, name: str) -> bool:
        """Whether an intent's create call is wanted at this very moment."""
        intent = self._state.fleet.intents.get(name)
        if intent is None or not intent.usable or intent.state not in TO_CALL:
            return False
        replica = self._state.fleet.replicas.get(intent.replica)
        return replica is not None and not self._state.stopped(replica.template.model)

    def answered(self, intent: str) -> None:
        """A create call came back."""
        self._calling.discard(intent)
        self._retry_at.pop(intent, None)

    def retry_at(self, intent: str, at: float) -> None:
        self._retry_at[intent] = at

    def forget(self, intents: Iterable[Intent]) -> None:
        """Drop what is remembered about those of the intents that have ended."""
        for intent in intents:
            if intent.state.ended:
                self.answered(intent.id)

    def launches(self, closed: frozenset[str], now: float) -> list[Launch]:
        """Create calls to make: intents not known to be answered, whose time to ask has come.

        Nothing is asked for before the first plan of this process: a wish left by an earlier one
        may no longer be wanted.
        """
        if self._state.target is None:
            return []
        due = []
        fleet, names = self._state.fleet, self._state.providers.names - closed
        under_way = Counter(
            fleet.intents[name].request.offering.provider
            for name in self._calling
            if name in fleet.intents
        )
        for intent in fleet.live_intents():
            provider = intent.request.offering.provider
            replaces = intent.attempt > 1
            if (
                (under_way[provider] >= CALLS_AT_ONCE and not replaces)
                or provider not in names
                or not self._may_call(intent, now)
            ):
                continue
            under_way[provider] += 1
            self._calling.add(intent.id)
            # An UNKNOWN one is asked again: nothing is proven about it while the call is under way.
            first = intent.called_at is None
            fleet.put_intent(
                replace(
                    intent,
                    state=IntentState.COMMITTED,
                    called_at=now if first else intent.called_at,
                    missing_since=None,
                )
            )
            due.append(
                Launch(
                    intent=intent.id,
                    request=intent.request,
                    committed_usd_per_hour=intent.committed_usd_per_hour,
                    reason=intent.reason,
                    urgent=replaces,
                )
            )
        return due

    def _may_call(self, intent: Intent, now: float) -> bool:
        """Whether an intent's call is due and not under way."""
        return (
            self.wanted(intent.id)
            and intent.id not in self._calling
            and self._retry_at.get(intent.id, 0.0) <= now
            and now < (intent.called_at or now) + TOKEN_SECONDS
        )

    def terminations(self, now: float) -> list[Terminate]:
        """Terminate calls to make, one for each provider."""
        fleet, book = self._state.fleet, self._state.providers
        targets: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for intent in fleet.live_intents():
            due = terminate_due_at(intent)
            if intent.instance is not None and due is not None and due <= now:
                targets[intent.request.offering.provider].append((intent.id, intent.instance))
                fleet.put_intent(replace(intent, terminate_asked_at=now))
        for instance in self._observation.due_orphans(now, self._state.policies.rules):
            if not self._state.adopting:
                targets[instance.provider].append(("", instance.id))
        return [
            Terminate(provider, tuple(pairs), voluntary=False, reason=self._reason(pairs))
            for provider, pairs in sorted(targets.items())
            if provider in book.names and not book.frozen(provider)
        ]

    def _reason(self, pairs: list[tuple[str, str]]) -> str:
        intents = self._state.fleet.intents
        reasons = {intents[i].reason if i else "orphan" for i, _ in pairs}
        return "; ".join(sorted(reasons))

    def next_change(self, now: float) -> float | None:
        """When a call is due again, or a machine's deadline comes."""
        rules, names = self._state.policies.rules, self._state.providers.names
        times = [t for t in self._retry_at.values() if t > now]
        for intent in self._state.fleet.live_intents():
            if intent.request.offering.provider not in names:
                continue
            if intent.instance is None:
                due = launch_deadline_at(intent, rules)
                times.extend(() if due is None else (due,))
                continue
            due = terminate_due_at(intent)
            if due is None and intent.departing:
                due = intent.leave_by
            if due is not None:
                times.append(due)
        return min(times, default=None)


def terminate_due_at(intent: Intent) -> float | None:
    """When to ask (again) for a machine's end; None while it is not to be terminated."""
    if intent.state is not IntentState.TERMINATING:
        return None
    if intent.terminate_asked_at is None:
        return 0.0
    stopping = intent.instance_state is InstanceState.STOPPING
    wait = STOPPING_RETRY_SECONDS if stopping else TERMINATE_RETRY_SECONDS
    return intent.terminate_asked_at + wait
