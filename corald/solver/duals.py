"""Prices on what rows share: availability and budgets, and the reduced prices they make.

A dual of a ≤ row of a minimisation is ≤ 0; it makes the resource dearer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corald.model.market import OfferingKey
from corald.solver.instance import Floats, Instance


@dataclass(frozen=True, slots=True, eq=False)
class Duals:
    """All ≤ 0."""

    supply: Floats
    """USD/h a node, by supply."""
    budget: float
    """USD per USD of the global budget."""
    new_budget: float
    """USD per USD of what new machines may cost."""
    row_budget: Floats
    """USD per USD of each row's own budget."""

    @classmethod
    def zero(cls, instance: Instance) -> Duals:
        return cls(np.zeros(len(instance.price)), 0.0, 0.0, np.zeros(len(instance.rows)))

    @classmethod
    def remembered(cls, instance: Instance, by_offering: dict[OfferingKey, float]) -> Duals:
        """Start from an earlier solve's prices."""
        known = [by_offering.get(supply.offering, 0.0) for supply in instance.problem.supplies]
        return cls(np.array(known, dtype=np.float64), 0.0, 0.0, np.zeros(len(instance.rows)))

    def towards(self, other: Duals, share: float) -> Duals:
        """This, moved by `share` of the way to the other."""
        return Duals(
            self.supply + share * (other.supply - self.supply),
            self.budget + share * (other.budget - self.budget),
            self.new_budget + share * (other.new_budget - self.new_budget),
            self.row_budget + share * (other.row_budget - self.row_budget),
        )

    def relaxed(self, instance: Instance) -> float:
        """Σ μ·limit: what the relaxed rows contribute to the bound."""
        total = float(self.supply @ instance.available)
        if instance.problem.budget_usd_per_hour is not None:
            total += self.budget * instance.problem.budget_usd_per_hour
        if instance.problem.new_usd_per_hour is not None:
            total += self.new_budget * instance.problem.new_usd_per_hour
        for row in instance.rows:
            if row.demand.max_usd_per_hour is not None:
                total += float(self.row_budget[row.index]) * row.demand.max_usd_per_hour
        return total

    def node_prices(
        self, instance: Instance, row: int, left: NDArray[np.int64] | None = None
    ) -> Floats:
        """Reduced price of a new node by zone and configuration: over the row's supplies the least.

        With `left`, only supplies of which something is left count.

        min over o of p_o(1+K) - μ_o - (μ_budget + μ_new + μ_row)·b_o, infinite where none is.
        """
        usable = instance.groups[instance.rows[row].group].usable
        if left is not None:
            usable = usable & (left > 0)
        prices = np.full((len(instance.zones), len(instance.configurations)), np.inf)
        places = (instance.zone_of[usable], instance.configuration_of[usable])
        np.minimum.at(prices, places, self.supply_prices(instance, row)[usable])
        return prices

    def supply_prices(self, instance: Instance, row: int) -> Floats:
        """Reduced price of a new node of each supply."""
        caps = self.budget + self.new_budget + float(self.row_budget[row])
        reduced: Floats = instance.new_cost - self.supply - caps * instance.budget_price
        return reduced

    def running_costs(self, instance: Instance) -> list[float]:
        """Reduced cost of keeping one running replica, at price p: its nodes are its own."""
        costs = []
        for item in instance.running:
            caps = self.budget + float(self.row_budget[item.row])
            nodes = (
                n * (instance.price[s] - caps * instance.budget_price[s]) for s, n in item.uses
            )
            costs.append(float(sum(nodes)))
        return costs
