"""All that one cluster's engine knows, in one place, with the questions that several parts ask."""

from __future__ import annotations

from dataclasses import replace

from corald.core.agenda import Agenda
from corald.core.caps import Caps, committed_price
from corald.core.circuits import Circuits
from corald.core.demand import DemandBook
from corald.core.fleet import Fleet
from corald.core.journal import Journal
from corald.core.ledger import SpendLedger
from corald.core.notes import Notes, Scalar
from corald.core.observation import Orphans
from corald.core.offers import Offers
from corald.core.problem import TemplateSource
from corald.core.providers import ProviderBook
from corald.model.events import ConsumerHealth
from corald.model.fleet import Intent, IntentState, ReplicaState
from corald.model.hardware import Catalog
from corald.model.market import OfferingKey
from corald.model.policy import PolicySet
from corald.model.problem import Allocation, SolveReport
from corald.model.state import StoredState


class ClusterState:
    """Target, requested and observed, and what is known of demand, market and money."""

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
        self.now = now
        """When the newest event was applied."""
        self.notes = Notes()
        self.journal = Journal(self.notes)
        self.agenda = Agenda(now)
        self.demand = DemandBook(stored.demand)
        self.offers = Offers(catalog, stored.capacity, stored.prices)
        self.fleet = Fleet((_perhaps_called(i, now) for i in stored.intents), stored.replicas)
        self.circuits = Circuits()
        self.providers = ProviderBook(providers)
        self.spend = SpendLedger(stored.spend, float(settings.get("spend_until", now)))
        self.settings = settings
        """As stored when this process began."""
        self.adopting = stored.adopting
        self.paused_models = {m for m in settings.get("paused_models", "").split(",") if m}
        self.paused = settings.get("paused", "") == "1"
        self.unhealthy: dict[str, ConsumerHealth] = {}
        """Event sources that cannot be trusted to be current, by name."""
        self.target: Allocation | None = None
        self.report: SolveReport | None = None
        self.solved_at: float | None = None
        self.solve_failure = ""
        self.orphans: Orphans = {}
        self.refused: tuple[str, ...] = ()
        """Moves that guards took out of the newest decision, with the reason."""

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

    @property
    def event_trouble(self) -> str:
        """Why events may not be current; empty when they are."""
        return "; ".join(h.detail for _, h in sorted(self.unhealthy.items()))

    @property
    def synced(self) -> bool:
        return self.waiting == ""

    @property
    def frozen(self) -> str:
        """Why nothing voluntary may happen now; empty when it may."""
        rules = self.policies.rules
        if self.adopting:
            return "a new store: waiting until every provider has been listed once"
        served = [r for r in self.fleet.replicas.values() if r.ever_ready]
        unready = sum(r.state is ReplicaState.STARTING for r in served)
        many = unready > rules.freeze_unready_share * len(served)
        if many and unready > rules.freeze_unready_count:
            return f"{unready} of {len(served)} replicas are not ready"
        return ""

    def hold_reason(self, model: str, now: float) -> str:
        """Why a model must not shrink now; empty when it may."""
        level = self.demand.level(model)
        if level is None:
            return "no demand known"
        if self.event_trouble:
            return f"events: {self.event_trouble}"
        if now - level.oldest_at > self.policies.rules.stale_demand_seconds:
            return "demand is stale"
        return ""

    def stopped(self, model: str) -> bool:
        """Whether nothing new may be started for a model: pause or dry run."""
        rules, policy = self.policies.rules, self.policies.models.get(model)
        return (
            rules.paused
            or rules.dry_run
            or self.paused
            or model in self.paused_models
            or (policy is not None and policy.paused)
        )

    def policies_in_force(self) -> PolicySet:
        """The configured policies with the operator's pauses on top."""
        models = {
            name: replace(policy, paused=policy.paused or name in self.paused_models)
            for name, policy in self.policies.models.items()
        }
        rules = replace(self.policies.rules, paused=self.policies.rules.paused or self.paused)
        return replace(self.policies, models=models, rules=rules)

    def caps(self, now: float) -> Caps:
        """The money limits of this moment."""
        rules = self.policies.rules
        return Caps(
            usd_per_hour=rules.budget_usd_per_hour,
            usd_per_day=rules.budget_usd_per_day,
            spent_today_usd=self.spend.today(now),
            hours_left_today=self.spend.hours_left_today(now),
        )

    def committed_price(self, key: OfferingKey, now: float) -> float | None:
        """What caps count an offering at; None without a price that is still believed."""
        quote = self.offers.quote(key)
        if quote is None or now - quote.priced_at > self.policies.rules.price_hard_age_seconds:
            return None
        return committed_price(quote.offering)

    def configuration_of(self, key: OfferingKey) -> str:
        kind = self.catalog.instance_types.get(key.instance_type)
        return kind.configuration if kind else ""

    def note_machine(self, event: str, intent: Intent, at: float, **fields: Scalar) -> None:
        """Audit something that happened to one machine."""
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


def unknown(intent: Intent, at: float) -> Intent:
    """A create call that may have taken effect; absence counts from now."""
    return replace(intent, state=IntentState.UNKNOWN, unknown_since=at, missing_since=None)


def _perhaps_called(intent: Intent, now: float) -> Intent:
    """An intent of an earlier process whose call was handed out: it may have been made."""
    called = intent.state is IntentState.COMMITTED and intent.called_at is not None
    return unknown(intent, now) if called else intent
