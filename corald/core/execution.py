"""Carries the target out: moves past the guards into intents, and the calls still to be made.

A call is an instruction that may be repeated: launches carry the same token, and machines that are
to go are asked for again until the cloud confirms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING

from corald.core.caps import Caps, committed_price, committed_spend
from corald.core.fleet import leaving
from corald.core.guards import Situation, guarded
from corald.core.identity import intent_id, name_of, tags_of, token_of
from corald.core.planner import Moves, Remove, Repair, RowKey, Start, plan_moves
from corald.core.problem import Want
from corald.model.fleet import (
    InstanceState,
    Intent,
    IntentState,
    LaunchRequest,
    Replica,
    ReplicaState,
)
from corald.model.market import OfferingKey
from corald.model.plan import Launch, Terminate
from corald.model.policy import OrphanModels, PolicySet
from corald.model.problem import Allocation, SolveStatus

if TYPE_CHECKING:
    from corald.core.engine import Engine

TOKEN_SECONDS = 12 * 3600.0
"""Older intents are resolved by looking only: a cloud may have forgotten their token."""

_TO_CALL = (IntentState.COMMITTED, IntentState.UNKNOWN)
TERMINATE_RETRY_SECONDS = 30.0
STOPPING_RETRY_SECONDS = 120.0


class Execution:
    """Turns moves into durable intents and intents into calls."""

    def __init__(self, engine: Engine, settings: Mapping[str, str]) -> None:
        self._engine = engine
        self._incarnation = settings.get("incarnation", "")
        self._sequence = int(settings.get("sequence", "0"))
        self._stored_sequence = self._sequence
        self._calling: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._voluntary: list[float] = []
        self.refused: tuple[str, ...] = ()

    # Moves

    def carry_out(
        self,
        target: Allocation,
        wants: Mapping[str, Want],
        hold: Mapping[str, str],
        closed: frozenset[str],
        now: float,
    ) -> bool:
        """Apply what differs from the target, as far as guards allow; True when anything did."""
        engine = self._engine
        proposed = self.proposed(target)
        if engine.solving:
            # The answer under way knows nothing of further starts and removes: it would undo them.
            proposed = replace(proposed, starts=(), removes=())
        moves = guarded(proposed, self._situation(wants, hold, closed, now))
        self.refused = moves.refused
        for repair in moves.repairs:
            self._repair(repair, now)
        for undrain in moves.undrains:
            engine.lifecycle.call_off_drain(undrain.replica, now)
        for start in moves.starts:
            self._start(start, now)
        for remove in moves.removes:
            self._remove(remove, now)
        if not moves.empty:
            self._note_moves(moves, now)
        return not moves.empty

    def proposed(self, target: Allocation) -> Moves:
        """What differs from the target, before any guard."""
        return plan_moves(
            target,
            self._engine.fleet,
            governs=self._governs,
            configuration_of=self._configuration_of,
        )

    def _governs(self, model: str) -> bool:
        """Whether a model's replicas may be moved; one without a policy only by leave."""
        rules = self._engine.policies.rules
        return model in self._engine.policies.models or rules.orphan_models is OrphanModels.DRAIN

    def _configuration_of(self, key: OfferingKey) -> str:
        kind = self._engine.catalog.instance_types.get(key.instance_type)
        return kind.configuration if kind else ""

    def _situation(
        self,
        wants: Mapping[str, Want],
        hold: Mapping[str, str],
        closed: frozenset[str],
        now: float,
    ) -> Situation:
        engine = self._engine
        scaled = engine.report is not None and engine.report.status is SolveStatus.SCALED
        served = engine.target.served if scaled and engine.target else None
        required: dict[RowKey, float] = {
            (name, phase): min(amount, served(name, phase)) if served else amount
            for name, want in wants.items()
            for phase, amount in want.amounts.items()
        }
        window = engine.policies.rules.voluntary_window_seconds
        self._voluntary = [t for t in self._voluntary if now - t < window]
        return Situation(
            now=now,
            policies=self.policies_in_force(),
            fleet=engine.fleet,
            caps=self.caps(now),
            committed_usd_per_hour=committed_spend(engine.fleet.live_intents()),
            price_of=lambda key: self._committed_price(key, now),
            blocked=lambda key: engine.offers.blocked(key, now),
            required=required,
            min_replicas={name: want.min_replicas for name, want in wants.items()},
            hold=hold,
            closed_providers=closed,
            open_circuits=frozenset(engine.circuits.open_at(now)),
            probing_circuits=engine.circuits.on_trial(),
            frozen=self.frozen(),
            recent_voluntary=len(self._voluntary),
        )

    def policies_in_force(self) -> PolicySet:
        """The configured policies with the operator's pauses on top."""
        engine = self._engine
        models = {
            name: replace(policy, paused=policy.paused or name in engine.paused_models)
            for name, policy in engine.policies.models.items()
        }
        rules = engine.policies.rules
        return replace(
            engine.policies,
            models=models,
            rules=replace(rules, paused=rules.paused or engine.paused),
        )

    def caps(self, now: float) -> Caps:
        """The money limits of this moment."""
        rules, spend = self._engine.policies.rules, self._engine.spend
        return Caps(
            usd_per_hour=rules.budget_usd_per_hour,
            usd_per_day=rules.budget_usd_per_day,
            spent_today_usd=spend.today(now),
            hours_left_today=spend.hours_left_today(now),
        )

    def frozen(self) -> str:
        """Why nothing voluntary may happen now; empty when it may."""
        engine, rules = self._engine, self._engine.policies.rules
        if engine.adopting:
            return "adopting machines after the store was lost"
        served = [r for r in engine.fleet.replicas.values() if r.ever_ready]
        unready = sum(r.state is ReplicaState.STARTING for r in served)
        if unready > rules.freeze_unready_count and unready > rules.freeze_unready_share * len(
            served
        ):
            return f"{unready} of {len(served)} replicas are not ready"
        return ""

    def _committed_price(self, key: OfferingKey, now: float) -> float | None:
        """What caps count an offering at; None without a price that is still believed."""
        quote = self._engine.offers.quote(key)
        hard_age = self._engine.policies.rules.price_hard_age_seconds
        if quote is None or now - quote.priced_at > hard_age:
            return None
        return committed_price(quote.offering)

    def _start(self, start: Start, now: float) -> None:
        template = self._engine.templates.template(start.template)
        if template is None:
            raise AssertionError(f"the plan names an unknown template: {start.template}")
        self._sequence += 1
        replica = Replica(
            id=f"r{self._incarnation_of(now)}-{self._sequence}",
            template=template,
            zone=start.zone,
            offerings=start.offerings,
            attempts=(1,) * len(start.offerings),
            created_at=now,
            starting_since=now,
            cause=str(self._engine.generation),
        )
        self._engine.fleet.put_replica(replica)
        for ordinal in range(len(start.offerings)):
            self._commit(replica, ordinal, now)

    def _incarnation_of(self, now: float) -> str:
        """Tells replicas of a recreated store from those of the lost one."""
        if not self._incarnation:
            self._incarnation = str(int(now))
        return self._incarnation

    def _repair(self, repair: Repair, now: float) -> None:
        fleet, replica = self._engine.fleet, repair.replica
        offerings, attempts = list(replica.offerings), list(replica.attempts)
        for intent in fleet.intents_of(replica.id):
            if intent.usable and intent.lost:
                fleet.put_intent(leaving(intent, "lost", now))
        for ordinal, key in repair.holes:
            offerings[ordinal] = key
            attempts[ordinal] += 1
        repaired = replace(
            replica,
            state=ReplicaState.STARTING,
            offerings=tuple(offerings),
            attempts=tuple(attempts),
            starting_since=now,
        )
        fleet.put_replica(repaired)
        for ordinal, _ in repair.holes:
            self._commit(repaired, ordinal, now)

    def _commit(self, replica: Replica, ordinal: int, now: float) -> None:
        """Write the wish for one machine down, with its whole request, before any call."""
        engine = self._engine
        cluster = engine.policies.cluster
        template, key = replica.template, replica.offerings[ordinal]
        attempt = replica.attempts[ordinal]
        name = intent_id(cluster, template.model, replica.id, ordinal, attempt)
        policy = engine.policies.models.get(template.model)
        price, committed = engine.offers.price_or_list(key)
        intent = Intent(
            id=name,
            replica=replica.id,
            ordinal=ordinal,
            attempt=attempt,
            request=LaunchRequest(
                token=token_of(name),
                name=name_of(cluster, name),
                offering=key,
                image=policy.image if policy else "",
                user_data="",
                tags=tags_of(
                    cluster=cluster,
                    model=template.model,
                    replica=replica.id,
                    template=template.id,
                    intent=name,
                ),
            ),
            usd_per_hour=price,
            committed_usd_per_hour=committed,
            created_at=now,
        )
        engine.fleet.put_intent(intent)
        engine.notes.add(
            "launch_committed",
            now,
            audit=True,
            intent=name,
            offering=str(key),
            usd_per_hour=price,
            reason=engine.trigger,
            cause=engine.generation,
        )

    def _remove(self, remove: Remove, now: float) -> None:
        engine, replica = self._engine, remove.replica
        if replica.state is not ReplicaState.READY:
            engine.lifecycle.release(replica, now, reason=remove.reason)
            return
        policy = engine.policies.models.get(replica.template.model)
        seconds = policy.drain_deadline_seconds if policy else 600.0
        self._voluntary.extend([now] * len(replica.offerings))
        engine.lifecycle.begin_drain(replica, now, reason=remove.reason, deadline=now + seconds)

    def _note_moves(self, moves: Moves, now: float) -> None:
        self._engine.notes.add(
            "plan_moves",
            now,
            audit=True,
            add=len(moves.starts),
            keep=len(self._engine.fleet.replicas) - len(moves.starts) - len(moves.removes),
            repair=len(moves.repairs),
            undrain=len(moves.undrains),
            drain=len(moves.removes),
            cause=self._engine.generation,
        )

    # Calls

    def launches(self, closed: frozenset[str], now: float, *, started: bool) -> list[Launch]:
        """Create calls to make: intents not known to be answered, whose time to ask has come.

        Nothing is asked for before the first plan of this process: a wish left by an earlier one
        may no longer be wanted.
        """
        if not started:
            return []
        due = []
        fleet, names = self._engine.fleet, self._engine.providers.names
        for intent in fleet.live_intents():
            if (
                self.wants_call(intent.id)
                and intent.id not in self._calling
                and self._retry_at.get(intent.id, 0.0) <= now
                and intent.request.offering.provider in names - closed
                and now - intent.created_at < TOKEN_SECONDS
            ):
                self._calling.add(intent.id)
                if intent.state is IntentState.UNKNOWN:
                    # Asked again: nothing is proven about it while the call is under way.
                    fleet.put_intent(
                        replace(intent, state=IntentState.COMMITTED, missing_since=None)
                    )
                due.append(
                    Launch(intent.id, intent.request, intent.committed_usd_per_hour, intent.reason)
                )
        return due

    def wants_call(self, name: str) -> bool:
        """Whether an intent's create call is wanted at this very moment."""
        intent = self._engine.fleet.intents.get(name)
        if intent is None or not intent.usable or intent.state not in _TO_CALL:
            return False
        replica = self._engine.fleet.replicas.get(intent.replica)
        return replica is not None and not self._stopped(replica.template.model)

    def _stopped(self, model: str) -> bool:
        """Whether nothing new may be started for a model: pause or dry run."""
        engine, rules = self._engine, self._engine.policies.rules
        policy = engine.policies.models.get(model)
        return (
            rules.paused
            or rules.dry_run
            or engine.paused
            or model in engine.paused_models
            or (policy is not None and policy.paused)
        )

    @property
    def calling(self) -> AbstractSet[str]:
        """Intents whose create call is under way."""
        return self._calling

    def forget(self, ended: Iterable[Intent]) -> None:
        """Drop what is remembered about intents that have ended."""
        for intent in ended:
            if intent.state.ended:
                self._calling.discard(intent.id)
                self._retry_at.pop(intent.id, None)

    def answered(self, intent: str) -> None:
        """A create call came back."""
        self._calling.discard(intent)
        self._retry_at.pop(intent, None)

    def retry_at(self, intent: str, at: float) -> None:
        self._retry_at[intent] = at

    def terminations(self, now: float) -> list[Terminate]:
        """Terminate calls to make, one for each provider."""
        fleet = self._engine.fleet
        targets: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for intent in fleet.live_intents():
            due = self._terminate_due_at(intent)
            if intent.instance is not None and due is not None and due <= now:
                targets[intent.request.offering.provider].append((intent.id, intent.instance))
                fleet.put_intent(replace(intent, terminate_asked_at=now))
        for instance in self._engine.observation.due_orphans(now, self._engine.policies.rules):
            if not self._engine.adopting:
                targets[instance.provider].append(("", instance.id))
        return [
            Terminate(provider, tuple(pairs), voluntary=False, reason=self._reason(pairs))
            for provider, pairs in sorted(targets.items())
            if provider in self._engine.providers.names
            and not self._engine.providers.frozen(provider)
        ]

    def next_change(self, now: float) -> float | None:
        """When a deadline or a repeated call is due."""
        rules = self._engine.policies.rules
        times: list[float] = [t for t in self._retry_at.values() if t > now]
        for intent in self._engine.fleet.live_intents():
            due = self._terminate_due_at(intent)
            if intent.request.offering.provider not in self._engine.providers.names:
                continue
            if intent.usable and intent.instance is None:
                times.append(intent.created_at + rules.launch_deadline_seconds)
            elif intent.instance is not None and due is not None:
                times.append(due)
            elif intent.departing and intent.leave_by is not None and intent.instance is not None:
                times.append(intent.leave_by)
        for replica in self._engine.fleet.replicas.values():
            if replica.state is ReplicaState.DRAINING and replica.drain_deadline is not None:
                times.append(replica.drain_deadline)
            elif replica.state is ReplicaState.STARTING:
                since = replica.starting_since or replica.created_at
                whole = self._engine.fleet.whole(replica)
                times.append(
                    since + (rules.ready_deadline_seconds if whole else rules.gang_hold_seconds)
                )
        return min(times, default=None)

    def _terminate_due_at(self, intent: Intent) -> float | None:
        if intent.state is not IntentState.TERMINATING:
            return None
        if intent.terminate_asked_at is None:
            return 0.0
        stopping = intent.instance_state is InstanceState.STOPPING
        wait = STOPPING_RETRY_SECONDS if stopping else TERMINATE_RETRY_SECONDS
        return intent.terminate_asked_at + wait

    def _reason(self, pairs: list[tuple[str, str]]) -> str:
        intents = self._engine.fleet.intents
        reasons = {intents[i].reason if i else "orphan" for i, _ in pairs}
        return "; ".join(sorted(reasons))

    def take_settings(self) -> dict[str, str]:
        """Counters that must be durable with the intents they named."""
        if self._sequence == self._stored_sequence:
            return {}
        self._stored_sequence = self._sequence
        return {"sequence": str(self._sequence), "incarnation": self._incarnation}
