"""The state machine at the centre: events change state, a decision re-derives the whole plan.

Nothing depends on having seen every event; a restart is a reconcile. `apply` only records;
`decide` acts; `next_wakeup` says when something expires; `take_changes` is what must be durable
before any instruction leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from corald.core.answers import Answers
from corald.core.calls import Calls
from corald.core.execution import Execution
from corald.core.intake import Intake
from corald.core.lifecycle import Lifecycle
from corald.core.needs import Needs
from corald.core.observation import Observation
from corald.core.problem import ShapeRules, TemplateSource, Want, build_problem
from corald.core.state import ClusterState
from corald.model.events import (
    CapacityObserved,
    ConsumerHealth,
    DemandObserved,
    DemandRetired,
    Event,
    FleetObserved,
    InterruptionNoticed,
    Launched,
    LaunchFailed,
    LaunchUnknown,
    OfferingsObserved,
    PauseRequested,
    PoliciesChanged,
    PriceObserved,
    ProviderFailed,
    ReplicaReady,
    ReplicaUnready,
    RequestsInFlight,
    Solved,
    SolveFailed,
    TerminateAnswered,
)
from corald.model.hardware import Catalog
from corald.model.plan import Instruction, Solve
from corald.model.policy import PolicySet
from corald.model.state import Changes, StoredState


class Engine:
    """All decisions of one cluster."""

    def __init__(
        self,
        *,
        policies: PolicySet,
        catalog: Catalog,
        templates: TemplateSource,
        providers: frozenset[str],
        stored: StoredState,
        now: float,
    ) -> None:
        self.state = state = ClusterState(
            policies=policies,
            catalog=catalog,
            templates=templates,
            providers=providers,
            stored=stored,
            now=now,
        )
        self.observation = Observation(
            cluster=policies.cluster,
            fleet=state.fleet,
            offers=state.offers,
            templates=templates,
            notes=state.notes,
            orphans=state.orphans,
        )
        self.calls = Calls(state, self.observation)
        self.lifecycle = Lifecycle(state.fleet, state.circuits, state.notes)
        self._intake = Intake(state, self.observation)
        self._answers = Answers(state, self.lifecycle, self.calls)
        self._execution = Execution(state, self.lifecycle)
        self._needs = Needs(state, now)
        self._shapes = ShapeRules(templates)

    def apply(  # noqa: C901, PLR0912 - one branch for each kind of event
        self, event: Event, now: float
    ) -> None:
        """Record one event; commutative for external events."""
        state = self.state
        state.now = now
        match event:
            case DemandObserved():
                self._intake.demand(event, now)
            case DemandRetired():
                self._intake.retired(event, now)
            case InterruptionNoticed():
                self._intake.interruption(event, now)
            case CapacityObserved() | PriceObserved():
                self._intake.market(event, now)
            case OfferingsObserved():
                self._intake.offerings(event, now)
            case FleetObserved():
                self._accrue(now)
                self._intake.listing(event, now, calling=self.calls.calling)
            case ProviderFailed():
                state.providers.failed(event)
            case Launched() | LaunchFailed() | LaunchUnknown():
                self._accrue(now)
                self._answers.launch(event)
            case TerminateAnswered():
                self._accrue(now)
                self._answers.terminate(event)
            case ReplicaReady() | ReplicaUnready():
                self._answers.readiness(event)
            case RequestsInFlight():
                self._answers.in_flight(event)
            case Solved():
                self._answers.solved(event)
            case SolveFailed():
                self._answers.solve_failed(event)
            case PoliciesChanged():
                self._policies_changed(event.policies, now)
            case PauseRequested():
                self._intake.pause(event)
            case ConsumerHealth():
                self._intake.consumer(event, now)
            case _:
                assert_never(event)

    def decide(self, now: float) -> tuple[Instruction, ...]:
        """Re-derive everything; only actions that are still missing come out."""
        state = self.state
        self._intake.forget_silent(now)
        self.lifecycle.settle(now, state.policies.rules)
        self._accrue(now)
        wants, hold = self._needs.wants(now)
        closed = state.providers.closed(now)
        # First what is decided, then the next question: it must describe the fleet as it is left.
        if state.target is not None and self._execution.carry_out(
            state.target, wants, hold, closed, now
        ):
            state.agenda.mark("fleet", now)
        solve = self._solve(wants, closed, now)
        instructions = (
            *(() if solve is None else (solve,)),
            *self.calls.launches(closed, now),
            *self.calls.terminations(now),
        )
        state.agenda.decided(
            now, expiry_at=self._next_expiry(now), window_at=self._needs.next_change(now)
        )
        return instructions

    def next_wakeup(self, now: float) -> float:
        """When `decide` is due, at the latest, if nothing else happens."""
        state = self.state
        rules = state.policies.rules
        times = (
            state.agenda.next_wakeup(now, rules, synced=state.synced),
            self.calls.next_change(now),
            self.lifecycle.next_change(rules),
            self.observation.next_change(rules),
        )
        return max(now, min(t for t in times if t is not None))

    def take_changes(self) -> Changes:
        """Everything that must be durable before the last instructions are carried out."""
        state, journal = self.state, self.state.journal
        intents, replicas = state.fleet.take_changes()
        self.calls.forget(intents)
        spend = state.spend.take_changes()
        if spend:
            journal.setting("spend_until", repr(state.spend.accrued_until))
        journal.note_counts(state.now)
        return Changes(
            demand=journal.take_demand(),
            retired_sources=journal.take_retired(),
            capacity=journal.take_capacity(),
            prices=journal.take_prices(),
            intents=intents,
            replicas=replicas,
            spend=spend,
            settings=journal.take_settings(),
            notes=state.notes.take(),
        )

    def _solve(self, wants: Mapping[str, Want], closed: frozenset[str], now: float) -> Solve | None:
        state = self.state
        rules = state.policies.rules
        planned = state.target is not None
        if not state.synced or not state.agenda.solve_wanted(now, rules, planned=planned):
            return None
        problem = build_problem(
            policies=state.policies,
            wants=wants,
            offers=state.offers,
            fleet=state.fleet,
            caps=state.caps(now),
            library=state.templates.fingerprint,
            shapes=self._shapes,
            open_circuits=frozenset(state.circuits.open_at(now)),
            closed_providers=closed,
            now=now,
        )
        return state.agenda.begin_solve(problem, now, rules)

    def _next_expiry(self, now: float) -> float | None:
        """When a mark ends: what it forbade may be had again at once."""
        state = self.state
        times = (
            state.offers.next_change(now),
            state.circuits.next_change(now),
            state.providers.next_change(now),
        )
        return min((t for t in times if t is not None), default=None)

    def _policies_changed(self, policies: PolicySet, now: float) -> None:
        state = self.state
        state.policies = policies
        self._needs.policies_changed(now)
        state.notes.add("policies_changed", now, audit=True, models=len(policies.models))
        state.agenda.mark("policy", now)
        state.agenda.urgent = True

    def _accrue(self, now: float) -> None:
        """Charge what has existed up to now, before anything changes it."""
        self.state.spend.accrue(self.state.fleet.live_intents(), now)
