from __future__ import annotations

from dataclasses import replace

import pytest

from corald.errors import PlanRejectedError
from corald.model.market import Market
from corald.model.problem import Allocation, DemandRow, Problem, SolveStatus
from corald.model.templates import Engine, Phase
from corald.solver.checker import check
from corald.solver.solve import solve
from tests.unit.solver.worlds import library_of, running_from, supply, template

LIBRARY = library_of(
    [
        template("phi", Phase.MIXED, (("L4", 1),), 1.0),
        template("phi", Phase.MIXED, (("A10G", 1), ("L4", 1)), 3.0),
        template("qwen", Phase.MIXED, (("L4", 1),), 2.0),
    ]
)
PAIR = "phi/mixed/vllm/1xA10G+1xL4"
PROBLEM = Problem(
    library="small",
    rows=(
        DemandRow("phi", Phase.MIXED, Engine.VLLM, 6.0, max_replicas=4),
        DemandRow("qwen", Phase.MIXED, Engine.VLLM, 2.0, min_replicas=1),
    ),
    supplies=(
        supply("use-a", "A10G", Market.ON_DEMAND, 1.2, 4),
        supply("use-a", "L4", Market.ON_DEMAND, 1.0, 4),
        supply("use-a", "L4", Market.SPOT, 0.9, 1),
        supply("use-b", "L4", Market.ON_DEMAND, 1.0, 9),
    ),
    budget_usd_per_hour=20.0,
)
ALLOCATION, REPORT = solve(PROBLEM, LIBRARY, deadline=9.0, clock=lambda: 0.0)
PHI = next(choice for choice in ALLOCATION.choices if choice.template == PAIR)
ELSEWHERE = PROBLEM.supplies[3].offering
REMOTE = PHI.offerings[0][0]


def mutant(**changes):
    """The plan with another first choice of phi."""
    others = tuple(choice for choice in ALLOCATION.choices if choice is not PHI)
    return Allocation((replace(PHI, **changes), *others))


def rejected(match, *, problem=PROBLEM, allocation=ALLOCATION, report=REPORT):
    with pytest.raises(PlanRejectedError, match=match):
        check(problem, LIBRARY, allocation, report)


def with_row(**changes):
    return replace(PROBLEM, rows=(replace(PROBLEM.rows[0], **changes), PROBLEM.rows[1]))


def test_the_plan_itself_is_accepted():
    check(PROBLEM, LIBRARY, ALLOCATION, REPORT)


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("serves no demand row", {"model": "llama"}),
        ("no positive whole number", {"count": 1.5}),
        ("no positive whole number", {"count": 0}),
        ("keeps 9 of", {"kept": 9}),
        ("keeps -1 of", {"kept": -1}),
        ("that do not run like that", {"kept": 1}),
        ("is not in the library", {"template": "phi/mixed/vllm/9xL4"}),
        ("is for another model", {"template": "qwen/mixed/vllm/1xL4"}),
        ("claims a throughput", {"throughput": 4.0}),
        ("other nodes than its offerings", {"nodes": (("A10G", 2), ("L4", 1))}),
        ("other nodes than its offerings", {"offerings": PHI.offerings[:1]}),
        (
            "is not offered",
            {"offerings": ((replace(REMOTE, instance_type="x"), 1), *PHI.offerings[1:])},
        ),
        ("in another zone", {"offerings": (PHI.offerings[0], (ELSEWHERE, 1))}),
        ("nodes of", {"offerings": (PHI.offerings[0], (PHI.offerings[1][0], -1))}),
        ("obtainable or held", {"count": 7}),
    ],
)
def test_a_choice_that_breaks_a_rule_is_rejected(match, changes):
    rejected(match, allocation=mutant(**changes))


@pytest.mark.parametrize(
    ("match", "problem"),
    [
        ("is denied", with_row(denied_templates=frozenset({PAIR}))),
        ("does not allow", with_row(supplies=(3,))),
        ("at most 1 are allowed", with_row(max_replicas=1)),
        ("at least 3 are asked", with_row(min_replicas=3)),
        ("not reported as it was asked", with_row(amount=7.0)),
        ("exceed the budget of phi/mixed", with_row(max_usd_per_hour=1.0)),
        ("exceed the budget of 2", replace(PROBLEM, budget_usd_per_hour=2.0)),
        (
            "obtainable or held",
            replace(
                PROBLEM, supplies=(replace(PROBLEM.supplies[0], available=1), *PROBLEM.supplies[1:])
            ),
        ),
        (
            "the report claims",
            replace(
                PROBLEM,
                supplies=(replace(PROBLEM.supplies[0], usd_per_hour=2.0), *PROBLEM.supplies[1:]),
            ),
        ),
    ],
)
def test_a_plan_for_an_older_problem_is_rejected(match, problem):
    rejected(match, problem=problem)


def test_claims_of_the_report_are_checked():
    more = tuple(replace(row, served=row.served + 1.0) for row in REPORT.rows)

    rejected("the report claims", report=replace(REPORT, rows=more))
    rejected("the report claims", report=replace(REPORT, objective=REPORT.objective - 0.1))
    rejected("bound that is claimed", report=replace(REPORT, lower_bound=REPORT.objective + 1.0))
    rejected("not reported", report=replace(REPORT, rows=()))


def test_missing_demand_is_accepted_only_when_the_report_admits_it():
    more = with_row(amount=60.0)
    report = replace(REPORT, rows=(replace(REPORT.rows[0], demanded=60.0), REPORT.rows[1]))

    rejected("gets 6 of 60", problem=more, report=report)
    check(more, LIBRARY, ALLOCATION, replace(report, status=SolveStatus.SCALED))


def test_new_machines_fit_into_what_can_be_had_new_and_may_cost():
    few = replace(PROBLEM.supplies[0], obtainable=1)

    rejected("can be had new", problem=replace(PROBLEM, supplies=(few, *PROBLEM.supplies[1:])))
    rejected("budget for new machines", problem=replace(PROBLEM, new_usd_per_hour=2.0))


def test_a_held_machine_does_not_serve_another_replica():
    held = replace(running_from(ALLOCATION)[0], count=1)
    used = {
        key: PROBLEM.supplies[[s.offering for s in PROBLEM.supplies].index(key)]
        for key, _ in held.offerings
    }
    supplies = tuple(
        replace(
            s, available=sum(c.count for c in ALLOCATION.choices if s.offering in dict(c.offerings))
        )
        if s.offering in used
        else s
        for s in PROBLEM.supplies
    )

    rejected("can be had new", problem=replace(PROBLEM, supplies=supplies, running=(held,)))


def test_no_more_replicas_are_kept_than_run():
    running = running_from(ALLOCATION)
    problem = replace(PROBLEM, running=running)
    kept, report = solve(problem, LIBRARY, deadline=9.0, clock=lambda: 0.0)
    check(problem, LIBRARY, kept, report)
    fewer = tuple(replace(item, count=item.count - 1) for item in running)

    rejected(
        "keeps more replicas than run",
        problem=replace(problem, running=fewer),
        allocation=kept,
        report=report,
    )
