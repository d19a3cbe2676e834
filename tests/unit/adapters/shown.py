"""A control plane that shows one fixed fleet: what the admin interface is tested on."""

from __future__ import annotations

from dataclasses import replace

from corald.model.events import Batch
from corald.model.fleet import IntentState, ReplicaState
from corald.model.market import Market, OfferingKey, ZoneKey
from corald.model.plan import Move, PlanRow
from corald.model.problem import SolveReport, SolveStatus
from corald.model.state import Note
from corald.model.status import (
    Endpoint,
    InstanceStatus,
    ModelStatus,
    OfferingMark,
    ProviderStatus,
    ReplicaStatus,
    Routes,
    Status,
)
from corald.model.templates import Phase

ZONE = ZoneKey("aws", "us-east-2", "use2-az1")
OFFERING = OfferingKey("aws", "us-east-2", "use2-az1", "g6.xlarge", Market.SPOT)
SOLVE = SolveReport(
    status=SolveStatus.PROVEN,
    objective=2.0,
    usd_per_hour=2.0,
    lower_bound=1.99,
    seconds=0.2,
    columns=1000,
    method="test",
    library_note="shipped",
    rows=(),
    baselines={"greedy": 3.0, "best-one-gpu": 2.5},
)


def model(name: str = "phi-4") -> ModelStatus:
    return ModelStatus(
        model=name,
        demand=10.0,
        demand_age_seconds=3.0,
        stale=False,
        capacity_ready=8.0,
        capacity_starting=4.0,
        unmet=0.5,
        replicas_ready=1,
        replicas_starting=1,
        replicas_draining=0,
        usd_per_hour=2.0,
        usd_per_hour_by_market={Market.SPOT: 1.5, Market.ON_DEMAND: 0.5},
        paused=False,
    )


def replica(number: int, state: ReplicaState = ReplicaState.READY) -> ReplicaStatus:
    return ReplicaStatus(
        id=f"phi-4-{number}",
        model="phi-4",
        phase=Phase.MIXED,
        template="phi-4/mixed/vllm/2xL4",
        shape="2xL4",
        zone=ZONE,
        state=state,
        reason="",
        throughput=8.0,
        usd_per_hour=1.0,
        instances=(f"i-{number}",),
        age_seconds=60.0,
        drain_deadline=None,
    )


def instance(number: int) -> InstanceStatus:
    return InstanceStatus(
        intent=f"test.phi-4.{number}.0.1",
        instance=f"i-{number}",
        offering=OFFERING,
        replica=f"phi-4-{number}",
        state=IntentState.LAUNCHED,
        ready=True,
        departing="",
        usd_per_hour=1.0,
        age_seconds=60.0,
        lost=False,
    )


STATUS = Status(
    at=1_800_000_000.0,
    cluster="test",
    synced=True,
    waiting="",
    paused=False,
    frozen="",
    degraded=(),
    models=(model(),),
    replicas=(replica(1), replica(2, ReplicaState.STARTING)),
    instances=(instance(1), instance(2)),
    providers=(
        ProviderStatus(
            name="aws",
            synced=True,
            frozen=False,
            message="",
            offerings=40,
            listing_age_seconds=5.0,
            price_age_seconds=60.0,
        ),
    ),
    marks=(OfferingMark(OFFERING, "insufficient-capacity", 1_800_000_180.0),),
    quota_blocked=(("us-east-2", Market.SPOT),),
    open_circuits=(),
    orphans=0,
    stuck_terminating=0,
    usd_per_hour=2.0,
    committed_usd_per_hour=3.0,
    usd_today=7.0,
    budget_usd_per_hour=100.0,
    solve=SOLVE,
    plan_age_seconds=12.0,
)
ROWS = (
    PlanRow(Move.ADD, "phi-4", "mixed", "2xL4", ZONE, "spot", 1, 1.5, "demand"),
    PlanRow(Move.KEEP, "phi-4", "mixed", "2xL4", ZONE, "spot", 2, 2.0, ""),
    PlanRow(Move.DRAIN, "phi-4", "mixed", "1xL40S", ZONE, "spot", 1, 0.5, "cheaper"),
)
ROUTES = Routes(
    7, (Endpoint("phi-4-1", "phi-4", Phase.MIXED, "us-east-2", "use2-az1", "10.0.0.1", 8.0),)
)


class ShownControl:
    """Implements ControlPlane over fixed values; keeps what is delivered."""

    def __init__(self) -> None:
        self.shown = STATUS
        self.delivered: list[Batch] = []

    def status(self) -> Status:
        return self.shown

    def plan_rows(self) -> tuple[PlanRow, ...]:
        return ROWS

    def routes(self) -> Routes:
        return ROUTES

    def explain(self, kind: str, name: str) -> dict[str, object] | None:
        if (kind, name) == ("offering", str(OFFERING)):
            return {"offering": name, "because": "sold out", "until": 1_800_000_180.0}
        return None

    async def audit(self, limit: int) -> list[Note]:
        return [Note("launched", (("provider", "aws"),), audit=True, at=1.0)][:limit]

    async def deliver(self, batch: Batch) -> None:
        self.delivered.append(batch)

    def change(self, **fields: object) -> None:
        self.shown = replace(self.shown, **fields)  # type: ignore[arg-type]
