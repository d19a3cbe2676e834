"""From an allocation to the smallest set of moves: keep, repair, undrain, start, and what is left.

Level-triggered: the same target and fleet always give the same moves, and none once they agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from corald.core.fleet import Fleet
from corald.core.problem import offering_counts
from corald.errors import PlanRejectedError
from corald.model.fleet import Replica, ReplicaState
from corald.model.market import OfferingKey, ZoneKey
from corald.model.problem import Allocation, Choice
from corald.model.templates import Phase

RowKey = tuple[str, Phase]


@dataclass(frozen=True, slots=True)
class Start:
    """Bring up a new replica."""

    model: str
    phase: Phase
    template: str
    throughput: float
    zone: ZoneKey
    offerings: tuple[OfferingKey, ...]
    """By node ordinal."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Replace the missing machines of a replica, in its holes."""

    replica: Replica
    holes: tuple[tuple[int, OfferingKey], ...]


@dataclass(frozen=True, slots=True)
class Undrain:
    """Call a voluntary drain off."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class Remove:
    """End a replica that the target does not want: drain it, or release it if it never served."""

    replica: Replica
    reason: str


@dataclass(frozen=True, slots=True)
class Moves:
    """What shall change; `refused` says what guards took out, and why."""

    starts: tuple[Start, ...] = ()
    repairs: tuple[Repair, ...] = ()
    undrains: tuple[Undrain, ...] = ()
    removes: tuple[Remove, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.starts or self.repairs or self.undrains or self.removes)


ConfigurationOf = Callable[[OfferingKey], str]


def plan_moves(
    target: Allocation,
    fleet: Fleet,
    *,
    governs: Callable[[str], bool],
    configuration_of: ConfigurationOf,
) -> Moves:
    """Match the target to the replicas of governed models and say what differs."""
    return _Matching(fleet, governs, configuration_of).moves(target)


class _Matching:
    """One pass over the target; replicas leave the pool as they are matched."""

    def __init__(
        self, fleet: Fleet, governs: Callable[[str], bool], configuration_of: ConfigurationOf
    ) -> None:
        states = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)
        self._fleet = fleet
        self._configuration_of = configuration_of
        self._pool = {
            r.id: r
            for r in fleet.replicas.values()
            if governs(r.template.model) and r.state in states
        }

    def moves(self, target: Allocation) -> Moves:
        starts: list[Start] = []
        repairs: list[Repair] = []
        undrains: list[Undrain] = []
        for choice in self._match_exactly(target, repairs, undrains):
            broken = next((r for r in self._pool.values() if self._completes(r, choice)), None)
            if broken is None:
                starts.append(self._start(choice))
            else:
                del self._pool[broken.id]
                repairs.append(self._repair(broken, choice))
        removes = tuple(
            Remove(replica, "not in the plan")
            for replica in sorted(self._pool.values(), key=_seniority, reverse=True)
            if replica.state is not ReplicaState.DRAINING
        )
        return Moves(tuple(starts), tuple(repairs), tuple(undrains), removes)

    def _match_exactly(
        self, target: Allocation, repairs: list[Repair], undrains: list[Undrain]
    ) -> list[Choice]:
        """Pair wanted replicas with those of the same template, zone and offerings.

        Serving ones first, then draining ones, then broken ones; the unpaired are returned.
        """
        unmatched: list[Choice] = []
        for choice in target.choices:
            twins = sorted(
                (
                    r
                    for r in self._pool.values()
                    if r.template.id == choice.template
                    and r.zone == choice.zone
                    and offering_counts(r.offerings) == choice.offerings
                    and self._preference(r) < _LAST
                    and not self._fleet.advised(r)
                ),
                key=lambda r: (self._preference(r), _seniority(r)),
            )
            for replica in twins[: choice.count]:
                del self._pool[replica.id]
                if replica.state is ReplicaState.DRAINING:
                    undrains.append(Undrain(replica))
                elif not self._fleet.whole(replica):
                    repairs.append(self._repair(replica, choice))
            unmatched.extend([choice] * (choice.count - len(twins)))
        return unmatched

    def _preference(self, replica: Replica) -> int:
        """Serving before starting before draining before broken."""
        whole = self._fleet.whole(replica)
        if replica.state is ReplicaState.DRAINING:
            return 2 if whole else _LAST
        if not whole:
            return 3
        return 0 if replica.state is ReplicaState.READY else 1

    def _completes(self, replica: Replica, choice: Choice) -> bool:
        """Whether filling the holes of a broken replica makes it this choice."""
        if (
            replica.state is ReplicaState.DRAINING
            or replica.template.id != choice.template
            or replica.zone != choice.zone
            or self._fleet.whole(replica)
        ):
            return False
        return min(self._missing(replica, choice).values(), default=0) >= 0

    def _missing(self, replica: Replica, choice: Choice) -> Counter[OfferingKey]:
        """The choice's offerings less the machines that the replica still has."""
        wanted = Counter(dict(choice.offerings))
        wanted.subtract(
            node.request.offering
            for node in self._fleet.nodes_of(replica)
            if node is not None and not node.lost
        )
        return wanted

    def _repair(self, replica: Replica, choice: Choice) -> Repair:
        nodes = self._fleet.nodes_of(replica)
        holes = [i for i, node in enumerate(nodes) if node is None or node.lost]
        configurations = [replica.template.node_configurations[i] for i in holes]
        offerings = self._assign(configurations, self._missing(replica, choice))
        return Repair(replica, tuple(zip(holes, offerings, strict=True)))

    def _start(self, choice: Choice) -> Start:
        configurations = [name for name, count in choice.nodes for _ in range(count)]
        return Start(
            model=choice.model,
            phase=choice.phase,
            template=choice.template,
            throughput=choice.throughput,
            zone=choice.zone,
            offerings=self._assign(configurations, Counter(dict(choice.offerings))),
        )

    def _assign(
        self, configurations: list[str], wanted: Counter[OfferingKey]
    ) -> tuple[OfferingKey, ...]:
        """An offering for each node, in order; the checker has proven that the counts agree."""
        left = sorted(wanted.elements())
        assigned = []
        for configuration in configurations:
            key = next((k for k in left if self._configuration_of(k) == configuration), None)
            if key is None:
                raise PlanRejectedError(f"no offering of {configuration} among {left}")
            left.remove(key)
            assigned.append(key)
        return tuple(assigned)


_LAST = 4
"""Preference of a replica that cannot be matched: draining, with a machine missing."""


def _seniority(replica: Replica) -> tuple[float, str]:
    return replica.created_at, replica.id
