"""The state machine at the centre: events change state, a decision re-derives the whole plan.

Nothing depends on having seen every event; a restart is a reconcile. `apply` only records;
`decide` acts; `next_wakeup` says when something expires; `take_changes` is what must be durable
before any instruction leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from corald.core.circuits import Circuits
from corald.core.demand import DemandBook, DemandLevel, requests_per_second, row_amounts
from corald.core.execution import Execution
from corald.core.fleet import Fleet, leaving, seen, terminating
from corald.core.ledger import SpendLedger
from corald.core.lifecycle import Lifecycle
from corald.core.notes import Notes
from corald.core.observation import Observation
from corald.core.offers import Offers
from corald.core.problem import ShapeRules, TemplateSource, Want, build_problem
from corald.core.providers import HOLD_SECONDS, ProviderBook
from corald.core.window import StabilityWindow
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
from corald.model.fleet import (
    Intent,
    IntentState,
    InterruptionKind,
    ReplicaState,
    TerminateOutcome,
)
from corald.model.hardware import Catalog
from corald.model.plan import Instruction, Solve
from corald.model.policy import ModelPolicy, PolicySet, Rebalance, Rules
from corald.model.problem import Allocation, Problem, SolveReport
from corald.model.state import Changes, StoredState
from corald.model.templates import Phase

NOTICE_SECONDS = 120.0
"""Assumed until a machine goes when its notice names no deadline."""

UNKNOWN_RETRY_SECONDS = 10.0
THROTTLE_SECONDS = 5.0
_AT_ONCE = frozenset({"policy", "pause"})
"""What makes a new plan without waiting for more news."""
_NOT_CALLED = frozenset({"blocked", "credentials-rejected", "withdrawn"})
"""Failures that say nothing about an earlier call with the same token."""


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
        settings = dict(stored.settings)
        self.policies = policies
        self.catalog = catalog
        self.templates = templates
        self.notes = Notes()
        self.demand = DemandBook(stored.demand)
        self.offers = Offers(catalog, stored.capacity, stored.prices)
        self.fleet = Fleet((_perhaps_called(i, now) for i in stored.intents), stored.replicas)
        self.circuits = Circuits()
        self.providers = ProviderBook(providers)
        self.spend = SpendLedger(stored.spend, float(settings.get("spend_until", now)))
        self.lifecycle = Lifecycle(self.fleet, self.circuits, self.notes)
        self.observation = Observation(
            cluster=policies.cluster,
            fleet=self.fleet,
            offers=self.offers,
            templates=templates,
            notes=self.notes,
        )
        self.execution = Execution(self, settings)
        self.adopting = stored.adopting
        self.paused_models = {m for m in settings.get("paused_models", "").split(",") if m}
        self.paused = settings.get("paused", "") == "1"
        self.consumer = ConsumerHealth(healthy=True, detail="", at=now)
        self.target: Allocation | None = None
        self.report: SolveReport | None = None
        self.solved_at: float | None = None
        self.solve_failure = ""
        self._windows = {name: self._window(name, now) for name in policies.models}
        self._shapes = ShapeRules(templates)
        self._generation = 0
        self._solving: int | None = None
        self._problem: Problem | None = None
        self._problem_at = 0.0
        self._decided_at = now
        self._expiry_at: float | None = None
        """When a mark or window ends and so changes the problem without any event."""
        self._dirty_since: float | None = now
        self._urgent = False
        self._now = now
        self._loss = False
        self._triggers: set[str] = {"start"}
        self._trigger = "start"
        self._changed: dict[str, dict[object, object]] = {}
        self._settings: dict[str, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lags: dict[str, float] = {}
        """Greatest age of the events applied since the last transaction, by type."""
        self._retired: list[str] = []

    # Events in

    def apply(  # noqa: C901, PLR0912 - one branch for each kind of event
        self, event: Event, now: float
    ) -> None:
        """Record one event; commutative for external events."""
        self._now = now
        match event:
            case DemandObserved():
                self._demand_observed(event, now)
            case InterruptionNoticed():
                self._interrupted(event, now)
            case CapacityObserved() | PriceObserved():
                self._market_observed(event, now)
            case OfferingsObserved():
                opened = self.providers.offered(event.provider, event.at)
                if self.offers.report(event) or opened:
                    self._mark("offerings", now)
                self._urgent = self._urgent or opened
            case FleetObserved():
                self.spend.accrue(self.fleet.live_intents(), now)
                self._fleet_observed(event, now)
            case ProviderFailed():
                self.providers.failed(event)
            case Launched() | LaunchFailed() | LaunchUnknown():
                self.spend.accrue(self.fleet.live_intents(), now)
                self._launch_answered(event)
            case TerminateAnswered():
                self.spend.accrue(self.fleet.live_intents(), now)
                self._terminate_answered(event)
            case ReplicaReady() | ReplicaUnready() | RequestsInFlight():
                self._readiness(event)
            case Solved():
                self._solved(event)
            case SolveFailed():
                self._solve_failed(event)
            case DemandRetired():
                if self.demand.retire(event.source):
                    self._retire(event.source)
                    self.notes.add("demand_retired", now, audit=True, source=event.source)
                    self._mark("demand", now)
            case PoliciesChanged():
                self._policies_changed(event.policies, now)
            case PauseRequested():
                self._pause(event)
            case ConsumerHealth():
                if event.healthy != self.consumer.healthy:
                    self.notes.add(
                        "consumer_health", now, healthy=event.healthy, detail=event.detail
                    )
                self.consumer = event
            case _:
                assert_never(event)

    # Decisions out

    def decide(self, now: float) -> tuple[Instruction, ...]:
        """Re-derive everything; only actions that are still missing come out."""
        rules = self.policies.rules
        for source in self.demand.forget_silent(now, rules.forget_demand_seconds):
            self._retire(source)
            self.notes.add("demand_forgotten", now, audit=True, source=source)
        self.lifecycle.settle(now, rules)
        self.spend.accrue(self.fleet.live_intents(), now)
        wants, hold = self._wants(now)
        closed = self.providers.closed(now)
        # First what is decided, then the next question: it must describe the fleet as it is left.
        if self.target is not None and self.execution.carry_out(
            self.target, wants, hold, closed, now
        ):
            self._mark("fleet", now)
        instructions: list[Instruction] = []
        solve = self._solve_due(wants, closed, now)
        if solve is not None:
            instructions.append(solve)
        self._urgent, self._decided_at = False, now
        instructions.extend(self.execution.launches(closed, now, started=self.target is not None))
        instructions.extend(self.execution.terminations(now))
        self._expiry_at = self._next_expiry(now)
        return tuple(instructions)

    def next_wakeup(self, now: float) -> float:
        """When `decide` is due, at the latest, if nothing else happens."""
        if self._urgent:
            return now
        rules = self.policies.rules
        times = [self._decided_at + rules.resolve_every_seconds]
        if self._dirty_since is not None and self._solving is None and self.synced:
            times.append(self._dirty_since + rules.debounce_seconds)
        others = (
            self._expiry_at,
            self.execution.next_change(now),
            self.observation.next_change(rules),
        )
        times.extend(t for t in others if t is not None)
        return max(now, min(times))

    def _next_expiry(self, now: float) -> float | None:
        """When the problem changes by time alone."""
        times = [
            self.offers.next_change(now),
            self.circuits.next_change(now),
            self.providers.next_change(now),
        ]
        for name, window in self._windows.items():
            up, down = self._delays(self.policies.models[name], window)
            times.append(window.next_change(now, up=up, down=down))
        return min((t for t in times if t is not None), default=None)

    def take_changes(self) -> Changes:
        """Everything that must be durable before the last instructions are carried out."""
        intents, replicas = self.fleet.take_changes()
        self.execution.forget(intents)
        for (event, reason), count in sorted(self._counts.items()):
            if reason:
                self.notes.add("event_ignored", self._now, type=event, reason=reason, count=count)
            else:
                lag = self._lags.pop(event, 0.0)
                self.notes.add(
                    "event_applied",
                    self._now,
                    type=event,
                    count=count,
                    lag_seconds=max(0.0, lag),
                    skew_seconds=max(0.0, -lag),
                )
        self._counts.clear()
        changed, self._changed = self._changed, {}
        settings, self._settings = self._settings, {}
        settings.update(self.execution.take_settings())
        retired, self._retired = self._retired, []
        spend = self.spend.take_changes()
        if spend:
            settings["spend_until"] = repr(self.spend.accrued_until)
        return Changes(
            demand=tuple(changed.get("demand", {}).values()),  # type: ignore[arg-type]
            retired_sources=tuple(retired),
            capacity=tuple(changed.get("capacity", {}).values()),  # type: ignore[arg-type]
            prices=tuple(changed.get("price", {}).values()),  # type: ignore[arg-type]
            intents=intents,
            replicas=replicas,
            spend=spend,
            settings=tuple(sorted(settings.items())),
            notes=self.notes.take(),
        )

    # What status reads

    @property
    def solving(self) -> bool:
        """Whether a solve is under way, for the fleet as it was when it began."""
        return self._solving is not None

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def trigger(self) -> str:
        return self._trigger

    @property
    def synced(self) -> bool:
        return self.waiting == ""

    @property
    def waiting(self) -> str:
        """What the first decision still waits for; empty when it waits for nothing."""
        if not self.providers.open():
            return "waiting for a provider to be listed"
        known = any(
            self.demand.level(name) is not None or policy.min_replicas > 0
            for name, policy in self.policies.models.items()
        )
        return "" if known else "waiting for demand"

    def level(self, model: str) -> DemandLevel | None:
        return self.demand.level(model)

    def hold_reason(self, model: str, now: float) -> str:
        """Why a model must not shrink now; empty when it may."""
        level = self.demand.level(model)
        if level is None:
            return "no demand known"
        if not self.consumer.healthy:
            return f"events: {self.consumer.detail}"
        if now - level.oldest_at > self.policies.rules.stale_demand_seconds:
            return "demand is stale"
        return ""

    # Handlers

    def _demand_observed(self, event: DemandObserved, now: float) -> None:
        if event.model not in self.policies.models:
            self._counts["demand", "unknown-model"] += 1
        elif self.demand.full(event):
            self._counts["demand", "too-many-sources"] += 1
        elif self.demand.merge(event, self.policies.rules):
            self._count_applied("demand", event.stamp.at, now)
            self._remember("demand", (event.source, event.model), event)
            self._mark("demand", now)
        else:
            self._counts["demand", "stale"] += 1

    def _market_observed(self, event: CapacityObserved | PriceObserved, now: float) -> None:
        kind = "capacity" if isinstance(event, CapacityObserved) else "price"
        if event.offering.provider not in self.providers.names:
            self._counts[kind, "unknown-provider"] += 1
            return
        if event.offering.instance_type not in self.catalog.instance_types:
            self._counts[kind, "unknown-instance-type"] += 1
            return
        if not self.offers.offers(event.offering):
            self._counts[kind, "unknown-offering"] += 1
            return
        changed = (
            self.offers.merge_capacity(event)
            if isinstance(event, CapacityObserved)
            else self.offers.merge_price(event)
        )
        if not changed:
            self._counts[kind, "stale"] += 1
        else:
            self._count_applied(kind, event.stamp.at, now)
            self._remember(kind, event.offering, event)
            self._mark(kind, now)

    def _interrupted(self, event: InterruptionNoticed, now: float) -> None:
        intent = self.fleet.by_instance(event.provider, event.instance)
        if intent is None or intent.state.ended:
            self._counts["interruption", "unknown-instance"] += 1
            return
        handled = self._heed(event, intent)
        if handled:
            self._count_applied("interruption", event.at, now)
        else:
            self._counts["interruption", "ignored-by-policy"] += 1
        self.notes.add(
            "interruption",
            now,
            audit=True,
            kind=event.kind,
            handled=handled,
            instance=event.instance,
            intent=intent.id,
            deadline=event.deadline,
            seconds=max(0.0, now - event.at),
            cause=event.event_id,
        )

    def _heed(self, event: InterruptionNoticed, intent: Intent) -> bool:
        """Act on a notice; False when policy says to do nothing."""
        if event.kind is InterruptionKind.TERMINATE:
            deadline = event.deadline if event.deadline is not None else event.at + NOTICE_SECONDS
            margin = self.policies.rules.notice_margin_seconds
            after = leaving(intent, "interrupted", max(event.at, deadline - margin))
            self.fleet.put_intent_if_changed(after)
            self._lost()
            return True
        replica = self.fleet.replicas.get(intent.replica)
        policy = self.policies.models.get(replica.template.model) if replica else None
        wanted = policy.rebalance if policy else Rebalance.IGNORE
        if event.kind is InterruptionKind.REBALANCE and wanted is not Rebalance.REPLACE:
            return wanted is Rebalance.PREFER
        self.fleet.put_intent_if_changed(replace(intent, advised=True))
        self._mark("advice", event.at)
        return True

    def _fleet_observed(self, event: FleetObserved, now: float) -> None:
        before, revision = dict(self.fleet.intents), self.fleet.revision
        self.observation.merge(
            event,
            self.policies.rules,
            adopting=self.adopting,
            calling=self.execution.calling,
        )
        opened = self.providers.listed(event)
        if self.adopting and self.providers.all_listed():
            self.adopting = False
            self._settings["adopted"] = "1"
            self.notes.add("adoption_finished", now, audit=True)
        for intent in self.fleet.intents.values():
            old = before.get(intent.id)
            if old is not None and old.usable and (not intent.usable or intent.lost > old.lost):
                self._lost()
        if opened or self.fleet.revision != revision:
            self._mark("fleet", now)
            self._urgent = True

    def _launch_answered(self, event: Launched | LaunchFailed | LaunchUnknown) -> None:
        intent = self.fleet.intents.get(event.intent)
        self.execution.answered(event.intent)
        if intent is None:
            return
        self._urgent = True
        match event:
            case Launched():
                self._launched(event, intent)
            case LaunchFailed():
                self._launch_failed(event, intent)
            case LaunchUnknown():
                if intent.state is IntentState.COMMITTED:
                    self.fleet.put_intent(_unknown(intent, event.at))
                self.execution.retry_at(intent.id, event.at + UNKNOWN_RETRY_SECONDS)
                self._note_launch("launch_unknown", intent, event.at, message=event.message)

    def _launched(self, event: Launched, intent: Intent) -> None:
        if intent.state is IntentState.GONE:
            return
        self.offers.obtained(intent.request.offering)
        self.fleet.put_intent(seen(intent, event.instance, event.at))
        self._note_launch(
            "launched",
            intent,
            event.at,
            instance=event.instance.id,
            seconds=event.at - intent.created_at,
        )
        self._mark("fleet", event.at)

    def _launch_failed(self, event: LaunchFailed, intent: Intent) -> None:
        error = event.error
        if error.kind == "throttled":
            self.execution.retry_at(intent.id, event.at + (error.retry_after or THROTTLE_SECONDS))
        elif intent.instance is not None and error.kind != "instance-gone":
            # A listing has shown the machine since: this is the answer to a repeated call.
            self._note_launch("launch_repeated", intent, event.at, message=error.message)
        elif error.kind in _NOT_CALLED and intent.unknown_since is not None:
            # This call was not made, but an earlier one may have rented the machine.
            self.fleet.put_intent(_unknown(intent, event.at))
            self.execution.retry_at(intent.id, event.at + HOLD_SECONDS)
        elif error.kind == "withdrawn":
            if not intent.usable:
                self.fleet.put_intent(replace(intent, state=IntentState.FAILED))
        else:
            self._launch_disproven(event, intent)

    def _launch_disproven(self, event: LaunchFailed, intent: Intent) -> None:
        """Nothing was rented: close the intent and learn from the reason."""
        error, key, rules = event.error, intent.request.offering, self.policies.rules
        self._note_launch(
            "launch_failed",
            intent,
            event.at,
            kind=error.kind,
            code=error.code,
            message=error.message,
        )
        match error.kind:
            case "insufficient-capacity":
                self.offers.sold_out(key, event.at, rules, error.hours)
            case "quota-exceeded":
                if self.offers.quota_reached(key, error.bucket, event.at, rules):
                    self._note_launch("quota_blocked", intent, event.at, bucket=error.bucket)
            case "invalid-request":
                self._open_circuit(intent, event.at, rules)
            case "credentials-rejected" | "blocked":
                self.providers.hold(key.provider, event.at, error.message, kind=error.kind)
            case _:
                self.offers.suspect(key, event.at, rules)
        ended = IntentState.GONE if error.kind == "instance-gone" else IntentState.FAILED
        self.fleet.put_intent(replace(intent, state=ended, reason=error.message or error.kind))
        self._lost()

    def _open_circuit(self, intent: Intent, now: float, rules: Rules) -> None:
        replica = self.fleet.replicas.get(intent.replica)
        if replica is not None:
            template = replica.template.id
            if self.circuits.failed(template, now, rules, at_once=True):
                self._note_launch("circuit_opened", intent, now, template=template)

    def _terminate_answered(self, event: TerminateAnswered) -> None:
        for instance, outcome in event.outcomes:
            intent = self.fleet.by_instance(event.provider, instance)
            if intent is None or intent.state.ended:
                continue
            if outcome is TerminateOutcome.GONE:
                self.fleet.put_intent(replace(intent, state=IntentState.GONE))
                self._note_launch("terminated", intent, event.at, reason=intent.reason)
                self._urgent = True
            elif outcome is not TerminateOutcome.REQUESTED:
                self._note_launch(
                    "terminate_failed", intent, event.at, outcome=outcome, message=event.message
                )

    def _readiness(self, event: ReplicaReady | ReplicaUnready | RequestsInFlight) -> None:
        if isinstance(event, RequestsInFlight):
            if event.count == 0:
                self._drained(event)
            return
        replica = self.fleet.replicas.get(event.replica)
        if replica is None:
            return
        if isinstance(event, ReplicaReady):
            if self.lifecycle.ready(replica, event.at):
                self._mark("fleet", event.at)
                self._urgent = True
        elif replica.state is ReplicaState.READY:
            self.lifecycle.unready(replica, event.at, event.reason)
            self._urgent = True

    def _drained(self, event: RequestsInFlight) -> None:
        """Nothing is in flight any more: the machines can go, once routers have been told."""
        replica = self.fleet.replicas.get(event.owner)
        told = self.policies.rules.route_propagation_seconds
        if (
            replica is not None
            and replica.state is ReplicaState.DRAINING
            and event.at - (replica.drain_since or 0.0) >= told
        ):
            self.lifecycle.release(replica, event.at, reason=f"drained: {replica.reason}")
            self._urgent = True
        intent = self.fleet.intents.get(event.owner)
        if intent is not None and intent.departing and not intent.state.ended:
            self.fleet.put_intent_if_changed(terminating(intent, intent.departing, event.at))
            self._urgent = True

    def _solved(self, event: Solved) -> None:
        if event.generation != self._solving:
            return
        self._solving = None
        self.target, self.report = event.allocation, event.report
        self.solved_at, self.solve_failure = event.at, ""
        self._urgent = True
        self.notes.add(
            "solve_ended",
            event.at,
            status=event.report.status,
            trigger=self._trigger,
            seconds=event.report.seconds,
            gap=event.report.gap,
            usd_per_hour=event.report.usd_per_hour,
            columns=event.report.columns,
            method=event.report.method,
        )

    def _solve_failed(self, event: SolveFailed) -> None:
        if event.generation != self._solving:
            return
        self._solving = None
        self._problem = None
        self.solve_failure = event.message
        self._mark("solver", event.at)
        self.notes.add("solve_failed", event.at, message=event.message, trigger=self._trigger)

    def _policies_changed(self, policies: PolicySet, now: float) -> None:
        self.policies = policies
        self._windows = {
            name: self._windows.get(name) or self._window(name, now) for name in policies.models
        }
        self.notes.add("policies_changed", now, audit=True, models=len(policies.models))
        self._mark("policy", now)
        self._urgent = True

    def _pause(self, event: PauseRequested) -> None:
        if event.model:
            (self.paused_models.add if event.paused else self.paused_models.discard)(event.model)
        else:
            self.paused = event.paused
        self._settings["paused"] = "1" if self.paused else ""
        self._settings["paused_models"] = ",".join(sorted(self.paused_models))
        self.notes.add(
            "paused" if event.paused else "resumed",
            event.at,
            audit=True,
            model=event.model,
            reason=event.reason,
        )
        self._mark("pause", event.at)
        self._urgent = True

    # Decisions

    def _wants(self, now: float) -> tuple[dict[str, Want], dict[str, str]]:
        """What each model needs, and which models must not shrink, with the reason."""
        wants: dict[str, Want] = {}
        hold: dict[str, str] = {}
        for name, policy in self.policies.models.items():
            reason = self.hold_reason(name, now)
            if reason:
                hold[name] = reason
            level = self.demand.level(name)
            if level is None:
                amounts = self._running_amounts(name, policy)
                if policy.min_replicas or any(amounts.values()):
                    wants[name] = Want(amounts, policy.min_replicas)
                continue
            rate = self._rate_to_plan_for(name, policy, level, now, shrink=not reason)
            wants[name] = Want(row_amounts(policy, level, rate), _floor(policy, rate))
        return wants, hold

    def _rate_to_plan_for(
        self, name: str, policy: ModelPolicy, level: DemandLevel, now: float, *, shrink: bool
    ) -> float:
        window = self._windows[name]
        if not shrink:
            return max(window.used, level.request_rate)
        up, down = self._delays(policy, window)
        return window.update(now, level.request_rate, up=up, down=down)

    def _delays(self, policy: ModelPolicy, window: StabilityWindow) -> tuple[float, float]:
        down = policy.scale_down_delay_seconds
        if policy.scale_to_zero_after_seconds is not None and window.last == 0:
            down = max(down, policy.scale_to_zero_after_seconds)
        return policy.scale_up_delay_seconds, down

    def _running_amounts(self, name: str, policy: ModelPolicy) -> dict[Phase, float]:
        amounts = dict.fromkeys(policy.serving.phases, 0.0)
        for replica in self.fleet.replicas.values():
            serving = replica.state in (ReplicaState.STARTING, ReplicaState.READY)
            if replica.template.model == name and serving and replica.template.phase in amounts:
                amounts[replica.template.phase] += replica.template.throughput
        return amounts

    def _window(self, name: str, now: float) -> StabilityWindow:
        """A window that begins at what runs already."""
        policy = self.policies.models[name]
        level = self.demand.level(name)
        rates = [
            requests_per_second(policy, level, phase, amount) / (1.0 + policy.headroom)
            for phase, amount in self._running_amounts(name, policy).items()
        ]
        return StabilityWindow(now=now, floor=min(rates, default=0.0))

    def _solve_due(
        self, wants: Mapping[str, Want], closed: frozenset[str], now: float
    ) -> Solve | None:
        """A solve, when one is worth while: at once after a loss, else debounced."""
        rules = self.policies.rules
        urgent = self._loss or bool(self._triggers & _AT_ONCE)
        waited = self._dirty_since is not None and now - self._dirty_since >= rules.debounce_seconds
        expired = self._expiry_at is not None and now >= self._expiry_at
        dirty = waited or expired
        if expired and self._dirty_since is None:
            self._dirty_since = now  # stays due when a solve under way is not given up for it
        periodic = now - self._problem_at >= rules.resolve_every_seconds
        if not self.synced or not (urgent or periodic or dirty or self.target is None):
            return None
        if self._solving is not None and not urgent:
            return None
        trigger = "loss" if self._loss else next(iter(sorted(self._triggers)), "periodic")
        self._loss, self._dirty_since = False, None
        self._triggers.clear()
        problem = build_problem(
            policies=self.policies,
            wants=wants,
            offers=self.offers,
            fleet=self.fleet,
            caps=self.execution.caps(now),
            library=self.templates.fingerprint,
            shapes=self._shapes,
            open_circuits=frozenset(self.circuits.open_at(now)),
            closed_providers=closed,
            now=now,
        )
        if problem == self._problem and not periodic:
            return None
        self._problem, self._problem_at = problem, now
        self._generation += 1
        self._solving = self._generation
        self._trigger = trigger
        return Solve(self._generation, problem, trigger, urgent=urgent)

    # Bookkeeping

    def _mark(self, trigger: str, now: float) -> None:
        self._triggers.add(trigger)
        if self._dirty_since is None:
            self._dirty_since = now

    def _lost(self) -> None:
        """Capacity was lost: decide at once and give up a solve in flight."""
        self._loss = True
        self._urgent = True

    def _count_applied(self, kind: str, at: float, now: float) -> None:
        self._counts[kind, ""] += 1
        self._lags[kind] = max(now - at, self._lags.get(kind, now - at))

    def _retire(self, source: str) -> None:
        """Forget a source durably, with what it said since the last transaction."""
        self._retired.append(source)
        rows = self._changed.get("demand", {})
        for key in [k for k in rows if isinstance(k, tuple) and k[0] == source]:
            del rows[key]

    def _remember(self, table: str, key: object, row: object) -> None:
        self._changed.setdefault(table, {})[key] = row

    def _note_launch(
        self, event: str, intent: Intent, at: float, **fields: str | float | None
    ) -> None:
        key = intent.request.offering
        self.notes.add(
            event,
            at,
            audit=True,
            intent=intent.id,
            provider=key.provider,
            region=key.region,
            zone=key.zone,
            instance_type=key.instance_type,
            market=key.market,
            **fields,
        )


def _unknown(intent: Intent, at: float) -> Intent:
    """A create call that may have taken effect; absence counts from now."""
    return replace(intent, state=IntentState.UNKNOWN, unknown_since=at, missing_since=None)


def _perhaps_called(intent: Intent, now: float) -> Intent:
    """A committed intent of an earlier process: its call may have been made."""
    return _unknown(intent, now) if intent.state is IntentState.COMMITTED else intent


def _floor(policy: ModelPolicy, rate: float) -> int:
    """Replicas at least: without leave to go to zero, one stays."""
    if rate <= 0 and policy.scale_to_zero_after_seconds is None:
        return max(1, policy.min_replicas)
    return policy.min_replicas
