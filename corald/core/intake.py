"""External events and what providers show, merged into the state; nothing is decided here."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from corald.core.fleet import leaving
from corald.core.observation import Observation
from corald.core.state import ClusterState
from corald.model.events import (
    CapacityObserved,
    ConsumerHealth,
    DemandObserved,
    DemandRetired,
    FleetObserved,
    InterruptionNoticed,
    OfferingsObserved,
    PauseRequested,
    PriceObserved,
)
from corald.model.fleet import Intent, InterruptionKind
from corald.model.policy import Rebalance

NOTICE_SECONDS = 120.0
"""Assumed until a machine goes when its notice names no deadline."""


class Intake:
    """Handlers that record; duplicates and order of external events make no difference."""

    def __init__(self, state: ClusterState, observation: Observation) -> None:
        self._state = state
        self._observation = observation

    def demand(self, event: DemandObserved, now: float) -> None:
        """Keep the newest level of a source."""
        state = self._state
        if event.model not in state.policies.models:
            state.journal.ignored("demand", "unknown-model")
        elif state.demand.full(event):
            state.journal.ignored("demand", "too-many-sources")
        elif state.demand.merge(event, state.policies.rules):
            state.journal.applied("demand", event.stamp.at, now)
            state.journal.demand(event)
            state.agenda.mark("demand", now)
        else:
            state.journal.ignored("demand", "stale")

    def retired(self, event: DemandRetired, now: float) -> None:
        """Forget a source on an operator's word."""
        if self._state.demand.retire(event.source):
            self._forget(event.source, "demand_retired", now)

    def forget_silent(self, now: float) -> None:
        """Forget sources that have been silent for too long, if policy sets such a time."""
        after = self._state.policies.rules.forget_demand_seconds
        for source in self._state.demand.forget_silent(now, after):
            self._forget(source, "demand_forgotten", now)

    def _forget(self, source: str, why: str, now: float) -> None:
        self._state.journal.retire(source)
        self._state.notes.add(why, now, audit=True, source=source)
        self._state.agenda.mark("demand", now)

    def market(self, event: CapacityObserved | PriceObserved, now: float) -> None:
        """Keep the newest capacity or price of an offering that somebody may sell."""
        state = self._state
        kind = "capacity" if isinstance(event, CapacityObserved) else "price"
        if why := self._unknown_offering(event):
            state.journal.ignored(kind, why)
        elif isinstance(event, CapacityObserved) and state.offers.merge_capacity(event):
            state.journal.capacity(event)
            self._market_changed(kind, event.stamp.at, now)
        elif isinstance(event, PriceObserved) and state.offers.merge_price(event):
            state.journal.price(event)
            self._market_changed(kind, event.stamp.at, now)
        else:
            state.journal.ignored(kind, "stale")

    def _unknown_offering(self, event: CapacityObserved | PriceObserved) -> str:
        key = event.offering
        if key.provider not in self._state.providers.names:
            return "unknown-provider"
        if key.instance_type not in self._state.catalog.instance_types:
            return "unknown-instance-type"
        return "" if self._state.offers.sells(key) else "unknown-offering"

    def _market_changed(self, kind: str, at: float, now: float) -> None:
        self._state.journal.applied(kind, at, now)
        self._state.agenda.mark(kind, now)

    def interruption(self, event: InterruptionNoticed, now: float) -> None:
        """Take a machine that will go out of its replica."""
        state = self._state
        intent = state.fleet.by_instance(event.provider, event.instance)
        if intent is None or intent.state.ended:
            state.journal.ignored("interruption", "unknown-instance")
            return
        handled = self._heed(event, intent)
        if handled:
            state.journal.applied("interruption", event.at, now)
        else:
            state.journal.ignored("interruption", "ignored-by-policy")
        state.note_machine(
            "interruption",
            intent,
            now,
            kind=event.kind,
            handled=handled,
            instance=event.instance,
            deadline=event.deadline,
            seconds=max(0.0, now - event.at),
            cause=event.event_id,
        )

    def _heed(self, event: InterruptionNoticed, intent: Intent) -> bool:
        """Act on a notice; False when policy says to do nothing."""
        state = self._state
        if event.kind is InterruptionKind.TERMINATE:
            deadline = event.deadline if event.deadline is not None else event.at + NOTICE_SECONDS
            leave_by = max(event.at, deadline - state.policies.rules.notice_margin_seconds)
            state.fleet.put_intent_if_changed(leaving(intent, "interrupted", leave_by))
            state.agenda.lost("interruption")
            return True
        replica = state.fleet.replicas.get(intent.replica)
        policy = state.policies.models.get(replica.template.model) if replica else None
        wanted = policy.rebalance if policy else Rebalance.IGNORE
        if event.kind is InterruptionKind.REBALANCE and wanted is not Rebalance.REPLACE:
            return wanted is Rebalance.PREFER
        state.fleet.put_intent_if_changed(replace(intent, advised=True))
        state.agenda.mark("advice", event.at)
        return True

    def offerings(self, event: OfferingsObserved, now: float) -> None:
        """Replace what a provider offers."""
        state = self._state
        opened = state.providers.offered(event.provider, event.at)
        if state.offers.report(event) or opened:
            state.agenda.mark("offerings", now)
        state.agenda.urgent = state.agenda.urgent or opened

    def listing(self, event: FleetObserved, now: float, *, calling: AbstractSet[str]) -> None:
        """Merge what a provider lists; `calling` are intents whose call is under way."""
        state = self._state
        before, revision = dict(state.fleet.intents), state.fleet.revision
        self._observation.merge(
            event, state.policies.rules, adopting=state.adopting, calling=calling
        )
        opened = state.providers.listed(event)
        if state.adopting and state.providers.all_listed():
            state.adopting = False
            state.journal.setting("adopted", "1")
            state.notes.add("adoption_finished", now, audit=True)
        for intent in state.fleet.intents.values():
            old = before.get(intent.id)
            if old is not None and old.usable and (not intent.usable or intent.lost > old.lost):
                state.agenda.lost("loss")
        if opened or state.fleet.revision != revision:
            state.agenda.mark("fleet", now)
            state.agenda.urgent = True

    def pause(self, event: PauseRequested) -> None:
        """Stop or resume voluntary actions, durably."""
        state = self._state
        if event.model:
            change = state.paused_models.add if event.paused else state.paused_models.discard
            change(event.model)
        else:
            state.paused = event.paused
        state.journal.setting("paused", "1" if state.paused else "")
        state.journal.setting("paused_models", ",".join(sorted(state.paused_models)))
        state.notes.add(
            "paused" if event.paused else "resumed",
            event.at,
            audit=True,
            model=event.model,
            reason=event.reason,
        )
        state.agenda.mark("pause", event.at)
        state.agenda.urgent = True

    def consumer(self, event: ConsumerHealth, now: float) -> None:
        """Remember whether a source can be trusted to be current."""
        state = self._state
        if event.healthy == (event.source in state.unhealthy):
            state.notes.add(
                "consumer_health",
                now,
                source=event.source,
                healthy=event.healthy,
                detail=event.detail,
            )
        if event.healthy:
            state.unhealthy.pop(event.source, None)
        else:
            state.unhealthy[event.source] = event
