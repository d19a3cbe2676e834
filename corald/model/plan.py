"""What is to be done, as values: the engine's instructions and the rows of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corald.model.fleet import LaunchRequest
from corald.model.market import ZoneKey
from corald.model.problem import Problem


@dataclass(frozen=True, slots=True)
class Solve:
    """Ask the solver; a newer generation makes older answers worthless."""

    generation: int
    problem: Problem
    trigger: str
    urgent: bool = False
    """Cancel a solve in flight."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Rent the machine of a committed intent (or ask again with the same token)."""

    intent: str
    request: LaunchRequest
    committed_usd_per_hour: float
    reason: str
    urgent: bool = False
    """Replaces a machine that was lost: it does not queue behind growth."""


@dataclass(frozen=True, slots=True)
class Terminate:
    """Give machines of one provider back; (intent or '', instance id) pairs."""

    provider: str
    targets: tuple[tuple[str, str], ...]
    voluntary: bool
    reason: str


Instruction = Solve | Launch | Terminate


class Move(StrEnum):
    """What a plan row does with replicas."""

    ADD = "add"
    KEEP = "keep"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Equal replicas with the same fate."""

    move: Move
    model: str
    phase: str
    shape: str
    zone: ZoneKey
    markets: str
    count: int
    usd_per_hour: float
    """Of all `count` together, at the offerings' present prices."""
    reason: str
