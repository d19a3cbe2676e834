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
from corald.core.providers import ProviderBook
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
        self.policies = policies
        self.catalog = catalog
        self.templates = templates
        self.notes = Notes()
        self.demand = DemandBook(stored.demand)
        self.offers = Offers(catalog, stored.capacity, stored.prices)
        self.fleet = Fleet(stored.intents, stored.replicas)
        self.circuits = Circuits()
        self.providers = ProviderBook(providers)
        self.spend = SpendLedger(stored.spend, now)
        self.lifecycle = Lifecycle(self.fleet, self.circuits, self.notes)
        self.observation = Observation(
            cluster=policies.cluster,
            fleet=self.fleet,
            offers=self.offers,
            templates=templates,
            notes=self.notes,
        )
        settings = dict(stored.settings)
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
        self._dirty_since: float | None = now
        self._urgent = False
        self._loss = False
        self._triggers: set[str] = {"start"}
        self._trigger = "start"
        self._changed: dict[str, dict[object, object]] = {}
        self._settings: dict[str, str] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._retired: list[str] = []

    # Events in

    def apply(  # noqa: C901, PLR0912 - one branch for each kind of event
        self, event: Event, now: float
    ) -> None:
        """Record one event; commutative for external events."""
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
                self._fleet_observed(event, now)
            case ProviderFailed():
                self.providers.failed(event)
            case Launched() | LaunchFailed() | LaunchUnknown():
                self._launch_answered(event)
            case TerminateAnswered():
                self._terminate_answered(event)
            case ReplicaReady() | ReplicaUnready() | RequestsInFlight():
                self._readiness(event)
            case Solved():
                self._solved(event)
            case SolveFailed():
                self._solve_failed(event)
            case DemandRetired():
                if self.demand.retire(event.source):
                    self._retired.append(event.source)
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
            self._retired.append(source)
            self.notes.add("demand_forgotten", now, audit=True, source=source)
        self.lifecycle.settle(now, rules)
        self.spend.accrue(self.fleet.live_intents(), now)
        wants, hold = self._wants(now)
        closed = self.providers.closed(now)
        instructions: list[Instruction] = []
        solve = self._solve_due(wants, closed, now)
        if solve is not None:
            instructions.append(solve)
        self._urgent, self._dirty_since, self._decided_at = False, None, now
        self._triggers.clear()
        if self.target is not None and self.execution.carry_out(
            self.target, wants, hold, closed, now
        ):
            self._mark("fleet", now)
        instructions.extend(self.execution.launches(closed, now, started=self.target is not None))
        instructions.extend(self.execution.terminations(now))
        return tuple(instructions)

    def next_wakeup(self, now: float) -> float:
        """When `decide` is due, at the latest, if nothing else happens."""
        if self._urgent:
            return now
        rules = self.policies.rules
        times = [self._decided_at + rules.resolve_every_seconds]
        if self._dirty_since is not None:
            times.append(self._dirty_since + rules.debounce_seconds)
        times.extend(
            t
            for t in (
                self.offers.next_change(now),
                self.circuits.next_change(now),
                self.execution.next_change(now),
                self.providers.next_change(now),
                *(
                    window.next_change(now, up=up, down=down)
                    for name, window in self._windows.items()
                    for up, down in [self._delays(self.policies.models[name], window)]
                ),
            )
            if t is not None
        )
        return max(now, min(times))

    def take_changes(self) -> Changes:
        """Everything that must be durable before the last instructions are carried out."""
        intents, replicas = self.fleet.take_changes()
        for (event, reason), count in sorted(self._counts.items()):
            name = "event_ignored" if reason else "event_applied"
            self.notes.add(name, self.consumer.at, type=event, reason=reason, count=count)
        self._counts.clear()
        changed, self._changed = self._changed, {}
        settings, self._settings = self._settings, {}
        settings.update(self.execution.take_settings())
        retired, self._retired = self._retired, []
        return Changes(
            demand=tuple(changed.get("demand", {}).values()),  # type: ignore[arg-type]
            retired_sources=tuple(retired),
            capacity=tuple(changed.get("capacity", {}).values()),  # type: ignore[arg-type]
            prices=tuple(changed.get("price", {}).values()),  # type: ignore[arg-type]
            intents=intents,
            replicas=replicas,
            spend=self.spend.take_changes(),
            settings=tuple(sorted(settings.items())),
            notes=self.notes.take(),
        )

    # What status reads

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
        elif self.demand.merge(event, self.policies.rules):
            self._counts["demand", ""] += 1
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
        changed = (
            self.offers.merge_capacity(event)
            if isinstance(event, CapacityObserved)
            else self.offers.merge_price(event)
        )
        self._counts[kind, "" if changed else "stale"] += 1
        if changed:
            self._remember(kind, event.offering, event)
            self._mark(kind, now)

    def _interrupted(self, event: InterruptionNoticed, now: float) -> None:
        intent = self.fleet.by_instance(event.provider, event.instance)
        if intent is None or intent.state.ended:
            self._counts["interruption", "unknown-instance"] += 1
            return
        handled = self._heed(event, intent)
        self._counts["interruption", "" if handled else "ignored-by-policy"] += 1
        self.notes.add(
            "interruption",
            now,
            audit=True,
            kind=event.kind,
            handled=handled,
            instance=event.instance,
            intent=intent.id,
            deadline=event.deadline,
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
        self.observation.merge(event, self.policies.rules, adopting=self.adopting)
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
                    self.fleet.put_intent(
                        replace(intent, state=IntentState.UNKNOWN, unknown_since=event.at)
                    )
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
        error, key, rules = event.error, intent.request.offering, self.policies.rules
        if error.kind == "throttled":
            self.execution.retry_at(intent.id, event.at + (error.retry_after or 5.0))
            return
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
                pass  # nothing to learn beyond the failure itself
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
        """Nothing is in flight any more: the machines can go."""
        replica = self.fleet.replicas.get(event.owner)
        if replica is not None and replica.state is ReplicaState.DRAINING:
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
        self.notes.add("solve_failed", event.at, message=event.message)

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
        if not self.synced:
            return None
        rules = self.policies.rules
        if self._solving is not None and not self._loss:
            return None
        problem = build_problem(
            policies=self.policies,
            wants=wants,
            offers=self.offers,
            fleet=self.fleet,
            library=self.templates.fingerprint,
            shapes=self._shapes,
            open_circuits=frozenset(self.circuits.open_at(now)),
            closed_providers=closed,
            now=now,
        )
        due = now - self._problem_at >= rules.resolve_every_seconds
        urgent, self._loss = self._loss, False
        if problem == self._problem and not due:
            return None
        trigger = "loss" if urgent else next(iter(sorted(self._triggers)), "periodic")
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


def _floor(policy: ModelPolicy, rate: float) -> int:
    """Replicas at least: without leave to go to zero, one stays."""
    if rate <= 0 and policy.scale_to_zero_after_seconds is None:
        return max(1, policy.min_replicas)
    return policy.min_replicas
