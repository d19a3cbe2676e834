"""When not everything can be served: how much of each row, by priority, then as even as possible.

For each priority from the highest: the largest s such that every row can have the share s · weight
of its amount at once, then the most of what is left over; both fixed before the next priority. A
row that is served whole takes no part in raising s further. The program is restricted to good
candidates, so s is what was found, not proven to be the largest.
"""

from __future__ import annotations

from collections.abc import Mapping

from ortools.math_opt.python import mathopt

from corald.solver.effort import Effort
from corald.solver.instance import Instance
from corald.solver.mip import solve_mip
from corald.solver.plans import Plan
from corald.solver.primal import Singles, SinglesProgram

_SLACK = 1e-6
_SECONDS_SHARE = 0.3


class ServiceProgram:
    """Maximises served shares over the supplies; costs play no part."""

    def __init__(self, instance: Instance, singles: Singles) -> None:
        self.instance = instance
        self.program = SinglesProgram(instance, singles)
        model = self.program.model
        self.shares: list[list[mathopt.Variable]] = []
        """By row: of its amount, and of its minimum of replicas, where it has them."""
        for row in instance.rows:
            weights = self.program.covers[row.index]
            own = []
            if row.demand.amount > 0:
                own.append(self._share({v: t / row.demand.amount for v, t in weights.items()}))
            if row.demand.min_replicas > 0:
                own.append(self._share(dict.fromkeys(weights, 1.0 / row.demand.min_replicas)))
            self.shares.append(own)
        model.objective.clear()

    def _share(self, weights: dict[mathopt.Variable, float]) -> mathopt.Variable:
        """A variable ≤ 1 and ≤ the weighted sum."""
        share = self.program.model.add_variable(lb=0.0, ub=1.0)
        row = self.program.model.add_linear_constraint(ub=0.0)
        row.set_coefficient(share, 1.0)
        for variable, weight in weights.items():
            row.set_coefficient(variable, -weight)
        return share

    def serve(self, effort: Effort) -> Plan | None:
        """The plan that serves most; None when no program found any."""
        best: Plan | None = None
        for priority in sorted({row.demand.priority for row in self.instance.rows}, reverse=True):
            shares = {
                share: row.demand.weight
                for row in self.instance.rows
                if row.demand.priority == priority
                for share in self.shares[row.index]
            }
            if shares:
                self._even(shares, effort)
                best = self._most(shares, effort) or best
        return best

    def _even(self, shares: Mapping[mathopt.Variable, float], effort: Effort) -> None:
        """Raise all shares in proportion to their weights until one of them cannot rise."""
        model = self.program.model
        rising = dict(shares)
        while rising:
            heaviest = max(rising.values())
            least = model.add_variable(lb=0.0, ub=1.0 / heaviest)
            for share, weight in rising.items():
                row = model.add_linear_constraint(lb=0.0)
                row.set_coefficient(share, 1.0)
                row.set_coefficient(least, -weight)
            model.maximize(least)
            answer = solve_mip(model, effort, gap=1e-4, share=_SECONDS_SHARE)
            if answer.values is None:
                return
            least.lower_bound = max(0.0, answer.values[least] - _SLACK / heaviest)
            if answer.values[least] * heaviest < 1.0 - _SLACK:
                return
            rising = {share: weight for share, weight in rising.items() if weight < heaviest}

    def _most(self, shares: Mapping[mathopt.Variable, float], effort: Effort) -> Plan | None:
        model = self.program.model
        model.maximize(mathopt.fast_sum(share * weight for share, weight in shares.items()))
        answer = solve_mip(model, effort, gap=1e-4, share=_SECONDS_SHARE)
        if answer.values is None:
            return None
        for share in shares:
            share.lower_bound = max(0.0, min(1.0, answer.values[share]) - _SLACK)
        return self.program.plan(answer)
