"""A cloud that exists only in memory: try corald, or simulate it, without renting anything."""

from __future__ import annotations

from corald_simulated.provider import SimulatedProvider

__all__ = ["SimulatedProvider"]
