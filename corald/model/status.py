"""What people and routers are shown: plain snapshots that HTTP, CLI and metrics render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corald.model.fleet import IntentState, ReplicaState
from corald.model.market import Market, OfferingKey, ZoneKey
from corald.model.problem import SolveReport
from corald.model.templates import Phase


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model; rates in requests/s."""

    model: str
    demand: float
    demand_age_seconds: float | None
    """None: no demand was ever reported."""
    stale: bool
    capacity_ready: float
    capacity_starting: float
    unmet: float
    replicas_ready: int
    replicas_starting: int
    replicas_draining: int
    usd_per_hour: float
    usd_per_hour_by_market: Mapping[Market, float]
    paused: bool
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica."""

    id: str
    model: str
    phase: Phase
    template: str
    shape: str
    zone: ZoneKey
    state: ReplicaState
    reason: str
    throughput: float
    usd_per_hour: float
    instances: tuple[str, ...]
    age_seconds: float
    drain_deadline: float | None


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One machine (or the wish for one)."""

    intent: str
    instance: str | None
    offering: OfferingKey
    replica: str
    state: IntentState
    ready: bool
    departing: str
    usd_per_hour: float
    age_seconds: float
    lost: bool


@dataclass(frozen=True, slots=True)
class ProviderStatus:
    """One configured provider."""

    name: str
    synced: bool
    frozen: bool
    message: str
    offerings: int
    listing_age_seconds: float | None
    price_age_seconds: float | None


@dataclass(frozen=True, slots=True)
class OfferingMark:
    """Why an offering is not used now."""

    offering: OfferingKey
    reason: str
    until: float


@dataclass(frozen=True, slots=True)
class Status:
    """The whole picture at one moment."""

    at: float
    cluster: str
    synced: bool
    waiting: str
    """What is still missing before the first decision; empty when synced."""
    paused: bool
    frozen: str
    """Why voluntary actions are frozen; empty when they are not."""
    degraded: tuple[str, ...]
    models: tuple[ModelStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    instances: tuple[InstanceStatus, ...]
    providers: tuple[ProviderStatus, ...]
    marks: tuple[OfferingMark, ...]
    quota_blocked: tuple[tuple[str, Market], ...]
    """(region, market) pairs whose quota is reached."""
    open_circuits: tuple[str, ...]
    orphans: int
    stuck_terminating: int
    usd_per_hour: float
    committed_usd_per_hour: float
    usd_today: float
    budget_usd_per_hour: float | None
    solve: SolveReport | None
    plan_age_seconds: float | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ready replica as a router sees it."""

    replica: str
    model: str
    phase: Phase
    region: str
    zone: str
    address: str
    """Of the replica's head node."""
    weight: float
    """Proportional to the template's throughput."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Where each model is served; `version` only rises."""

    version: int
    endpoints: tuple[Endpoint, ...]
