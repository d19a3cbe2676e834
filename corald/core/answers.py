"""What calls, readiness and the solver answer, merged into the state."""

from __future__ import annotations

from dataclasses import replace

from corald.core.calls import Calls
from corald.core.fleet import seen, terminating
from corald.core.lifecycle import Lifecycle
from corald.core.providers import HOLD_SECONDS
from corald.core.state import ClusterState, unknown
from corald.model.events import (
    Launched,
    LaunchFailed,
    LaunchUnknown,
    ReplicaReady,
    ReplicaUnready,
    RequestsInFlight,
    Solved,
    SolveFailed,
    TerminateAnswered,
)
from corald.model.fleet import Intent, IntentState, ReplicaState, TerminateOutcome

UNKNOWN_RETRY_SECONDS = 10.0
THROTTLE_SECONDS = 5.0
NOT_CALLED = frozenset({"blocked", "credentials-rejected", "withdrawn"})
"""Failures that say nothing about an earlier call with the same token."""


class Answers:
    """Handlers for what comes back."""

    def __init__(self, state: ClusterState, lifecycle: Lifecycle, calls: Calls) -> None:
        self._state = state
        self._lifecycle = lifecycle
        self._calls = calls

    def launch(self, event: Launched | LaunchFailed | LaunchUnknown) -> None:
        """Take the answer of a create call."""
        intent = self._state.fleet.intents.get(event.intent)
        self._calls.answered(event.intent)
        if intent is None:
            return
        self._state.agenda.urgent = True
        match event:
            case Launched():
                self._launched(event, intent)
            case LaunchFailed():
                self._failed(event, intent)
            case LaunchUnknown():
                if intent.state is IntentState.COMMITTED:
                    self._state.fleet.put_intent(unknown(intent, event.at))
                self._calls.retry_at(intent.id, event.at + UNKNOWN_RETRY_SECONDS)
                self._state.note_machine("launch_unknown", intent, event.at, message=event.message)

    def _launched(self, event: Launched, intent: Intent) -> None:
        if intent.state is IntentState.GONE:
            return
        state = self._state
        state.offers.obtained(intent.request.offering)
        state.fleet.put_intent(seen(intent, event.instance, event.at))
        seconds = event.at - intent.created_at
        state.note_machine(
            "launched", intent, event.at, instance=event.instance.id, seconds=seconds
        )
        state.agenda.mark("fleet", event.at)

    def _failed(self, event: LaunchFailed, intent: Intent) -> None:
        state, error = self._state, event.error
        if error.kind == "throttled":
            self._calls.retry_at(intent.id, event.at + (error.retry_after or THROTTLE_SECONDS))
        elif intent.instance is not None and error.kind != "instance-gone":
            # A listing has shown the machine since: this is the answer to a repeated call.
            state.note_machine("launch_repeated", intent, event.at, message=error.message)
        elif error.kind in NOT_CALLED and intent.unknown_since is not None:
            # This call was not made, but an earlier one may have rented the machine.
            state.fleet.put_intent(unknown(intent, event.at))
            self._calls.retry_at(intent.id, event.at + HOLD_SECONDS)
        elif error.kind == "withdrawn":
            if not intent.usable:
                state.fleet.put_intent(replace(intent, state=IntentState.FAILED))
        else:
            self._disproven(event, intent)

    def _disproven(self, event: LaunchFailed, intent: Intent) -> None:
        """Nothing was rented: close the intent and learn from the reason."""
        state, error, key = self._state, event.error, intent.request.offering
        rules = state.policies.rules
        state.note_machine(
            "launch_failed",
            intent,
            event.at,
            kind=error.kind,
            code=error.code,
            message=error.message,
        )
        match error.kind:
            case "insufficient-capacity":
                state.offers.sold_out(key, event.at, rules, error.hours)
            case "quota-exceeded":
                if state.offers.quota_reached(key, error.bucket, event.at, rules):
                    state.note_machine("quota_blocked", intent, event.at, bucket=error.bucket)
            case "invalid-request":
                self._open_circuit(intent, event.at)
            case "credentials-rejected" | "blocked":
                state.providers.hold(key.provider, event.at, error.message, kind=error.kind)
            case _:
                state.offers.suspect(key, event.at, rules)
        ended = IntentState.GONE if error.kind == "instance-gone" else IntentState.FAILED
        state.fleet.put_intent(replace(intent, state=ended, reason=error.message or error.kind))
        state.agenda.lost("launch-failed")

    def _open_circuit(self, intent: Intent, now: float) -> None:
        state, replica = self._state, self._state.fleet.replicas.get(intent.replica)
        if replica is None:
            return
        template = replica.template.id
        if state.circuits.failed(template, now, state.policies.rules, at_once=True):
            state.note_machine("circuit_opened", intent, now, template=template)

    def terminate(self, event: TerminateAnswered) -> None:
        """Take the answer of a terminate call; only a cloud's listing proves the end."""
        state = self._state
        for instance, outcome in event.outcomes:
            intent = state.fleet.by_instance(event.provider, instance)
            if intent is None or intent.state.ended:
                continue
            if outcome is TerminateOutcome.GONE:
                state.fleet.put_intent(replace(intent, state=IntentState.GONE))
                state.note_machine("terminated", intent, event.at, reason=intent.reason)
                state.agenda.urgent = True
            elif outcome is not TerminateOutcome.REQUESTED:
                state.note_machine(
                    "terminate_failed", intent, event.at, outcome=outcome, message=event.message
                )

    def readiness(self, event: ReplicaReady | ReplicaUnready) -> None:
        """A replica serves, or does not any more."""
        state, replica = self._state, self._state.fleet.replicas.get(event.replica)
        if replica is None:
            return
        if isinstance(event, ReplicaReady):
            if self._lifecycle.ready(replica, event.at):
                state.agenda.mark("fleet", event.at)
                state.agenda.urgent = True
        elif replica.state is ReplicaState.READY:
            self._lifecycle.unready(replica, event.at, event.reason)
            state.agenda.urgent = True

    def in_flight(self, event: RequestsInFlight) -> None:
        """Machines whose last request has ended can go, once routers have been told."""
        if event.count > 0:
            return
        state, replica = self._state, self._state.fleet.replicas.get(event.owner)
        told = state.policies.rules.route_propagation_seconds
        if (
            replica is not None
            and replica.state is ReplicaState.DRAINING
            and event.at - (replica.drain_since or 0.0) >= told
        ):
            self._lifecycle.release(replica, event.at, reason=f"drained: {replica.reason}")
            state.agenda.urgent = True
        intent = state.fleet.intents.get(event.owner)
        if intent is not None and intent.departing and not intent.state.ended:
            state.fleet.put_intent_if_changed(terminating(intent, intent.departing, event.at))
            state.agenda.urgent = True

    def solved(self, event: Solved) -> None:
        """A new target, unless its solve was given up."""
        state, report = self._state, event.report
        if not state.agenda.end_solve(event.generation):
            return
        state.target, state.report = event.allocation, report
        state.solved_at, state.solve_failure = event.at, ""
        state.agenda.urgent = True
        state.notes.add(
            "solve_ended",
            event.at,
            status=report.status,
            trigger=state.agenda.trigger,
            seconds=report.seconds,
            gap=report.gap,
            usd_per_hour=report.usd_per_hour,
            columns=report.columns,
            method=report.method,
        )

    def solve_failed(self, event: SolveFailed) -> None:
        """Keep the target there is, and ask again."""
        state = self._state
        if not state.agenda.end_solve(event.generation):
            return
        state.solve_failure = event.message
        state.agenda.ask_again(event.at)
        trigger = state.agenda.trigger
        state.notes.add("solve_failed", event.at, message=event.message, trigger=trigger)
