"""Checks a plan before it is used: written from the problem's definition, apart from the solver.

It shares no code with what it checks, so that one mistake does not pass twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from corald.errors import PlanRejectedError
from corald.library import Library
from corald.model.market import OfferingKey
from corald.model.problem import (
    Allocation,
    Choice,
    DemandRow,
    Problem,
    RunningReplica,
    SolveReport,
    SolveStatus,
    Supply,
)

TOLERANCE = 2e-6
"""Relative; integer programs meet their limits to 1e-6."""
_INCOMPLETE = (SolveStatus.SCALED, SolveStatus.FALLBACK)


def check(problem: Problem, library: Library, allocation: Allocation, report: SolveReport) -> None:
    """Accept the plan, or raise PlanRejectedError that names the first rule it breaks.

    Demand and minimum replicas must be met unless the report's status admits that they are not;
    every other rule holds for every plan.
    """
    checking = _Checking(problem, library)
    for choice in allocation.choices:
        checking.check_choice(choice)
    checking.check_kept(allocation)
    checking.check_supplies(allocation)
    checking.check_money(allocation)
    for row in problem.rows:
        checking.check_row(row, allocation, report)
    checking.check_report(allocation, report)


def _reject(message: str) -> PlanRejectedError:
    return PlanRejectedError(f"plan rejected: {message}")


@dataclass(frozen=True, slots=True)
class _Running:
    """What identifies running replicas of one kind."""

    template: str
    model: str
    phase: str
    zone: object
    offerings: tuple[tuple[OfferingKey, int], ...]

    @classmethod
    def of(cls, item: RunningReplica | Choice) -> _Running:
        return cls(item.template, item.model, item.phase, item.zone, tuple(sorted(item.offerings)))


class _Checking:
    def __init__(self, problem: Problem, library: Library) -> None:
        self.problem, self.library = problem, library
        self.supplies: Mapping[OfferingKey, tuple[int, Supply]] = {
            supply.offering: (index, supply) for index, supply in enumerate(problem.supplies)
        }
        self.rows = {(row.model, row.phase): row for row in problem.rows}
        self.running: dict[_Running, list[RunningReplica]] = defaultdict(list)
        for item in problem.running:
            self.running[_Running.of(item)].append(item)

    def check_choice(self, choice: Choice) -> None:
        name = f"{choice.template} in {choice.zone}"
        row = self.rows.get((choice.model, choice.phase))
        if row is None:
            raise _reject(f"{name} serves no demand row")
        if not (_whole(choice.count) and _whole(choice.kept)) or choice.count < 1:
            raise _reject(f"{name} has a count that is no positive whole number")
        if not 0 <= choice.kept <= choice.count:
            raise _reject(f"{name} keeps {choice.kept} of {choice.count} replicas")
        self._check_offerings(choice, row, name)
        if choice.kept < choice.count:
            self._check_template(choice, row, name)

    def _check_offerings(self, choice: Choice, row: DemandRow, name: str) -> None:
        """The nodes come from offerings that exist, are allowed, and stand in the zone."""
        nodes: Counter[str] = Counter()
        for offering, count in choice.offerings:
            if offering not in self.supplies:
                raise _reject(f"{name} uses {offering}, which is not offered")
            index, supply = self.supplies[offering]
            if not _whole(count) or count < 1:
                raise _reject(f"{name} takes {count} nodes of {offering}")
            if row.supplies is not None and index not in row.supplies:
                raise _reject(f"{name} uses {offering}, which its policy does not allow")
            if offering.zone_key != choice.zone:
                raise _reject(f"{name} uses {offering}, which is in another zone")
            nodes[supply.configuration] += count
        if nodes != Counter(dict(choice.nodes)):
            raise _reject(f"{name} has other nodes than its offerings provide")

    def _check_template(self, choice: Choice, row: DemandRow, name: str) -> None:
        """A new replica is of a template of the library, allowed, as fast as the library says."""
        template = self.library.template(choice.template)
        if template is None:
            raise _reject(f"{name} is not in the library")
        if (template.model, template.phase, template.engine) != (row.model, row.phase, row.engine):
            raise _reject(f"{name} is for another model, phase or engine")
        if choice.template in row.denied_templates:
            raise _reject(f"{name} is denied")
        if template.nodes != tuple(sorted(choice.nodes)):
            raise _reject(f"{name} has other nodes than its template")
        if not _close(template.throughput, choice.throughput):
            raise _reject(f"{name} claims a throughput that the library does not give")

    def check_kept(self, allocation: Allocation) -> None:
        kept: Counter[_Running] = Counter()
        for choice in allocation.choices:
            if choice.kept:
                kept[_Running.of(choice)] += choice.kept
                if not any(
                    _close(item.throughput, choice.throughput)
                    for item in self.running[_Running.of(choice)]
                ):
                    raise _reject(f"{choice.template} keeps replicas that do not run like that")
        for kind, count in kept.items():
            if count > sum(item.count for item in self.running[kind]):
                raise _reject(f"{kind.template} in {kind.zone} keeps more replicas than run")

    def check_supplies(self, allocation: Allocation) -> None:
        used: Counter[OfferingKey] = Counter()
        new: Counter[OfferingKey] = Counter()
        for choice in allocation.choices:
            for offering, count in choice.offerings:
                used[offering] += count * choice.count
                new[offering] += count * (choice.count - choice.kept)
        for offering, count in used.items():
            if count > self.supplies[offering][1].available:
                raise _reject(
                    f"{count} nodes of {offering}, of which "
                    f"{self.supplies[offering][1].available} are obtainable or held"
                )

        for offering, count in new.items():
            most = self._can_be_new(self.supplies[offering][1])
            if count > most:
                raise _reject(f"{count} new nodes of {offering}, of which {most} can be had new")

    def _can_be_new(self, supply: Supply) -> int:
        held = sum(
            dict(item.offerings).get(supply.offering, 0) * item.count
            for item in self.problem.running
        )
        free = max(0, supply.available - held)
        return free if supply.obtainable is None else min(free, supply.obtainable)

    def check_money(self, allocation: Allocation) -> None:
        total = sum(self._committed(choice) for choice in allocation.choices)
        _within(total, self.problem.budget_usd_per_hour, "the budget")
        new = sum(
            self._committed(choice) * (choice.count - choice.kept) / choice.count
            for choice in allocation.choices
        )
        _within(new, self.problem.new_usd_per_hour, "the budget for new machines")
        for key, row in self.rows.items():
            own = (c for c in allocation.choices if (c.model, c.phase) == key)
            spent = sum(self._committed(choice) for choice in own)
            _within(spent, row.max_usd_per_hour, f"the budget of {row.model}/{row.phase}")

    def _committed(self, choice: Choice) -> float:
        return choice.count * sum(
            self.supplies[offering][1].budget_usd_per_hour * count
            for offering, count in choice.offerings
        )

    def check_row(self, row: DemandRow, allocation: Allocation, report: SolveReport) -> None:
        name = f"{row.model}/{row.phase}"
        own = [c for c in allocation.choices if (c.model, c.phase) == (row.model, row.phase)]
        replicas = sum(choice.count for choice in own)
        served = sum(choice.throughput * choice.count for choice in own)
        if row.max_replicas is not None and replicas > row.max_replicas:
            raise _reject(f"{name} has {replicas} replicas, at most {row.max_replicas} are allowed")
        outcome = [o for o in report.rows if (o.model, o.phase) == (row.model, row.phase)]
        if len(outcome) != 1 or not _close(outcome[0].demanded, row.amount):
            raise _reject(f"{name} is not reported as it was asked")
        if not _close(outcome[0].served, served):
            raise _reject(f"{name} gets {served:g}, the report claims {outcome[0].served:g}")
        if report.status in _INCOMPLETE:
            return
        if served < row.amount * (1 - TOLERANCE):
            raise _reject(f"{name} gets {served:g} of {row.amount:g}")
        if replicas < row.min_replicas:
            raise _reject(f"{name} has {replicas} replicas, at least {row.min_replicas} are asked")

    def check_report(self, allocation: Allocation, report: SolveReport) -> None:
        """The costs claimed are those of the plan at present prices."""
        usd = objective = 0.0
        for choice in allocation.choices:
            for offering, count in choice.offerings:
                supply = self.supplies[offering][1]
                factor = self.problem.start_cost.get(supply.configuration, 0.0)
                usd += supply.usd_per_hour * count * choice.count
                started = (choice.count - choice.kept) * factor
                objective += supply.usd_per_hour * count * (choice.count + started)
        if not (_close(usd, report.usd_per_hour) and _close(objective, report.objective)):
            raise _reject(f"it costs {usd:g} USD/h, the report claims {report.usd_per_hour:g}")
        if report.lower_bound is not None and report.lower_bound > objective * (1 + 1e-4) + 1e-6:
            raise _reject("it costs less than the bound that is claimed to be proven")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * max(1.0, abs(one), abs(other))


def _within(spent: float, limit: float | None, name: str) -> None:
    if limit is not None and spent > limit * (1 + TOLERANCE) + 1e-9:
        raise _reject(f"{spent:.4f} USD/h exceed {name} of {limit:.4f} USD/h")
