"""What a listing teaches: confirmed machines, absences with proof, orphans, adoption.

An observation carries the time it was asked at; whatever was confirmed later survives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from corald.core.fleet import Fleet, absent, seen
from corald.core.identity import name_of, parse_intent_id, token_of
from corald.core.notes import Notes
from corald.core.offers import Offers
from corald.core.problem import TemplateSource
from corald.model.events import FleetObserved
from corald.model.fleet import (
    TAG_CLUSTER,
    TAG_INTENT,
    TAG_MANAGED_BY,
    TAG_TEMPLATE,
    Instance,
    InstanceState,
    Intent,
    IntentState,
    LaunchRequest,
    Replica,
)
from corald.model.market import OfferingKey
from corald.model.policy import OrphanPolicy, Rules

RETRY_SECONDS = 30.0
ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPED)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A machine of our cluster that no intent explains."""

    instance: Instance
    first_seen_at: float
    reported: bool = False
    asked_at: float | None = None


Orphans = dict[tuple[str, str], Orphan]
"""By (provider, instance id)."""


class Observation:
    """Merges listings into the fleet."""

    def __init__(
        self,
        *,
        cluster: str,
        fleet: Fleet,
        offers: Offers,
        templates: TemplateSource,
        notes: Notes,
        orphans: Orphans,
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._offers = offers
        self._templates = templates
        self._notes = notes
        self.orphans = orphans

    def merge(
        self, event: FleetObserved, rules: Rules, *, adopting: bool, calling: AbstractSet[str]
    ) -> None:
        """Apply a listing, complete or not; `calling` are intents whose call is under way."""
        shown: set[str] = set()
        strangers: list[Instance] = []
        for instance in event.listing.instances:
            if not self._ours(instance):
                continue
            intent = self._explain(instance)
            if intent is not None:
                shown.add(intent.id)
                self._see(intent, instance, event.asked_at)
            elif instance.state in ALIVE:
                strangers.append(instance)
        if event.listing.complete:
            self._miss(event, shown, rules, calling)
        if adopting:
            if event.listing.complete:
                self._adopt(strangers, event.asked_at)
        else:
            self._suspect(event, strangers)

    def due_orphans(self, now: float, rules: Rules) -> list[Instance]:
        """Orphans past their grace: reported once, and those that policy says to terminate."""
        due = []
        for key, orphan in self.orphans.items():
            since = min(orphan.first_seen_at, orphan.instance.launched_at or orphan.first_seen_at)
            if now < since + rules.orphan_grace_seconds or orphan.first_seen_at >= now:
                continue
            if not orphan.reported:
                self._notes.add(
                    "orphan_found",
                    now,
                    audit=True,
                    instance=orphan.instance.id,
                    provider=orphan.instance.provider,
                    policy=rules.orphans,
                )
                self.orphans[key] = replace(orphan, reported=True)
            if rules.orphans is OrphanPolicy.TERMINATE and _retry(orphan.asked_at, now):
                self.orphans[key] = replace(self.orphans[key], asked_at=now)
                due.append(orphan.instance)
        return due

    def next_change(self, rules: Rules) -> float | None:
        """When an orphan's grace ends, or its termination is to be asked for again."""
        times = []
        for orphan in self.orphans.values():
            since = min(orphan.first_seen_at, orphan.instance.launched_at or orphan.first_seen_at)
            if not orphan.reported:
                times.append(max(since + rules.orphan_grace_seconds, orphan.first_seen_at + 1.0))
            elif rules.orphans is OrphanPolicy.TERMINATE:
                times.append((orphan.asked_at or 0.0) + RETRY_SECONDS)
        return min(times, default=None)

    def _ours(self, instance: Instance) -> bool:
        tags = dict(instance.tags)
        return tags.get(TAG_CLUSTER) == self._cluster and tags.get(TAG_MANAGED_BY) == "corald"

    def _explain(self, instance: Instance) -> Intent | None:
        intent = self._fleet.intents.get(instance.tag(TAG_INTENT) or "")
        intent = intent or self._fleet.by_instance(instance.provider, instance.id)
        if intent is None or intent.request.offering.provider != instance.provider:
            return None
        if intent.instance not in (None, instance.id):
            return None
        return intent

    def _see(self, intent: Intent, instance: Instance, asked_at: float) -> None:
        after = seen(intent, instance, asked_at)
        if after == intent:
            return
        if after.state.ended and not intent.state.ended:
            self._notes.add(
                "terminated" if intent.departing else "instance_lost",
                asked_at,
                audit=True,
                intent=intent.id,
                instance=instance.id,
                reason=after.reason or "terminated by the cloud",
            )
        # A listing that only renews `seen_at` is not worth a write: absence is proven anew
        # after a restart anyway.
        if replace(after, seen_at=intent.seen_at) == intent:
            self._fleet.refresh_intent(after)
        else:
            self._fleet.put_intent(after)

    def _miss(
        self, event: FleetObserved, shown: set[str], rules: Rules, calling: AbstractSet[str]
    ) -> None:
        for intent in self._fleet.live_intents():
            if intent.request.offering.provider != event.provider or intent.id in shown:
                continue
            after = absent(intent, event.asked_at, rules, calling=intent.id in calling)
            if after == intent:
                continue
            self._fleet.put_intent(after)
            if after.lost and not intent.lost:
                self._note("instance_lost", after, event.asked_at, "absent from the cloud")
            elif after.state is IntentState.FAILED:
                self._note("launch_disproven", after, event.asked_at, after.reason)
            elif after.state is IntentState.GONE:
                self._note("terminated", after, event.asked_at, after.reason)

    def _suspect(self, event: FleetObserved, strangers: list[Instance]) -> None:
        """Remember unexplained machines; those that a complete listing no longer shows are gone."""
        now_shown = {(event.provider, i.id) for i in strangers}
        for instance in strangers:
            key = (event.provider, instance.id)
            known = self.orphans.get(key)
            self.orphans[key] = (
                replace(known, instance=instance) if known else Orphan(instance, event.asked_at)
            )
        if event.listing.complete:
            for key in [k for k in self.orphans if k[0] == event.provider and k not in now_shown]:
                del self.orphans[key]

    def _adopt(self, strangers: list[Instance], asked_at: float) -> None:
        """Take tagged machines over after the store was lost; replicas are rebuilt from tags."""
        groups: dict[str, list[Intent]] = defaultdict(list)
        for instance in strangers:
            name = instance.tag(TAG_INTENT) or f"adopted/{instance.provider}/{instance.id}"
            place = parse_intent_id(name)
            intent = self._adopted_intent(name, place, instance, asked_at)
            self._fleet.put_intent(intent)
            self._note("adopted", intent, asked_at, "the store did not know it")
            if place is not None:
                groups[place[0]].append(intent)
        for replica, intents in groups.items():
            self._adopt_replica(replica, intents, strangers, asked_at)

    def _adopted_intent(
        self, name: str, place: tuple[str, int, int] | None, instance: Instance, asked_at: float
    ) -> Intent:
        replica, ordinal, attempt = place or ("", 0, 1)
        price, committed = self._offers.price_or_list(instance.offering)
        bare = Intent(
            id=name,
            replica=replica,
            ordinal=ordinal,
            attempt=attempt,
            request=LaunchRequest(
                token=instance.token or token_of(name),
                name=name_of(self._cluster, name),
                offering=instance.offering,
                image="",
                user_data="",
                tags=instance.tags,
            ),
            usd_per_hour=price,
            committed_usd_per_hour=committed,
            created_at=instance.launched_at or asked_at,
        )
        return seen(bare, instance, asked_at)

    def _adopt_replica(
        self, replica: str, intents: list[Intent], strangers: list[Instance], asked_at: float
    ) -> None:
        by_id = {i.id: i for i in strangers}
        instance = by_id[intents[0].instance or ""]
        template = self._templates.template(instance.tag(TAG_TEMPLATE) or "")
        known = self._fleet.replicas.get(replica)
        if known is not None or template is None:
            return
        offerings: list[OfferingKey] = []
        by_ordinal = {i.ordinal: i for i in intents}
        for ordinal, configuration in enumerate(template.node_configurations):
            intent = by_ordinal.get(ordinal)
            key = (
                intent.request.offering
                if intent is not None
                else self._offers.like(configuration, instance.offering)
            )
            if key is None:
                return  # a slot that nothing known here could fill: not a replica any more
            offerings.append(key)
        self._fleet.put_replica(
            Replica(
                id=replica,
                template=template,
                zone=instance.offering.zone_key,
                offerings=tuple(offerings),
                # An identity is never used twice, and attempts made before are unknown here.
                attempts=(int(asked_at),) * len(offerings),
                created_at=min(i.created_at for i in intents),
                starting_since=asked_at,
                reason="adopted",
            )
        )

    def _note(self, event: str, intent: Intent, at: float, reason: str) -> None:
        self._notes.add(
            event, at, audit=True, intent=intent.id, instance=intent.instance, reason=reason
        )


def _retry(asked_at: float | None, now: float) -> bool:
    return asked_at is None or now >= asked_at + RETRY_SECONDS
