"""Small worlds for tests of the core: one cloud, a few machine types, a few templates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from corald.core.engine import Engine
from corald.model.events import (
    DemandObserved,
    FleetObserved,
    Launched,
    OfferingsObserved,
    ReplicaReady,
    Solved,
    Stamp,
)
from corald.model.fleet import Instance, InstanceState, Listing, ReplicaState
from corald.model.hardware import Catalog, Configuration, GpuType, InstanceType, Link, ListPrice
from corald.model.market import Market, Offering, OfferingKey, ZoneKey
from corald.model.plan import Instruction, Launch, Solve, Terminate
from corald.model.policy import ModelPolicy, PolicySet, Rules
from corald.model.problem import Allocation, Choice, SolveReport, SolveStatus
from corald.model.state import StoredState
from corald.model.templates import Engine as EngineProfile
from corald.model.templates import Phase, ServingTemplate, Slo, Stage, Workload

T0 = 1_700_000_000.0
ZONE = ZoneKey("sim", "r1", "r1-a")
SPOT = OfferingKey("sim", "r1", "r1-a", "small", Market.SPOT)
ON_DEMAND = OfferingKey("sim", "r1", "r1-a", "small", Market.ON_DEMAND)
BIG = OfferingKey("sim", "r1", "r1-a", "big", Market.SPOT)

WORKLOAD = Workload(1000.0, 2000.0, 200.0, 400.0)


def policy(model: str = "m", **changes: object) -> ModelPolicy:
    return replace(
        ModelPolicy(model, Slo(1000.0, 100.0), WORKLOAD, headroom=0.0),
        **changes,
    )


def policies(*models: ModelPolicy, **rules: object) -> PolicySet:
    chosen = models or (policy(),)
    return PolicySet("test", {m.model: m for m in chosen}, replace(Rules(), **rules))


def catalog() -> Catalog:
    gpu = GpuType("L4", "nvidia", 22.0, 300.0, 121.0, 242.0, 0.0, 16.0, True, "test")
    prices = (ListPrice("r1", ("r1-a",), 1.0, 0.4, "2026-01-01", "test"),)
    return Catalog(
        gpus={"L4": gpu},
        configurations={
            "L4": Configuration("L4", "L4", 1, Link.PCIE, 10.0),
            "4xL4": Configuration("4xL4", "L4", 4, Link.PCIE, 25.0),
        },
        instance_types={
            "small": InstanceType("small", "aws", "L4", 4, 16.0, "G", prices),
            "big": InstanceType("big", "aws", "4xL4", 16, 64.0, "G", prices),
        },
        models={},
    )


def template(
    nodes: tuple[tuple[str, int], ...] = (("L4", 1),), rate: float = 10.0, model: str = "m"
):
    size = sum(count for _, count in nodes)
    stages = (Stage(10, 1, tuple(range(size))),)
    return ServingTemplate(model, Phase.MIXED, EngineProfile.VLLM, nodes, stages, rate)


class Templates:
    """A library of a few templates."""

    fingerprint = "test-library"

    def __init__(self, *templates: ServingTemplate) -> None:
        self._templates = {t.id: t for t in templates or (template(),)}

    def template(self, template_id: str) -> ServingTemplate | None:
        return self._templates.get(template_id)

    def template_ids(self, model: str, phase: Phase, engine: EngineProfile) -> tuple[str, ...]:
        return tuple(
            t.id
            for t in self._templates.values()
            if (t.model, t.phase, t.engine) == (model, phase, engine)
        )


def offers(*extra: Offering, available: int | None = 8) -> OfferingsObserved:
    listed = (
        Offering(SPOT, 0.4, 1.0, available),
        Offering(ON_DEMAND, 1.0, 1.0, available),
        Offering(BIG, 1.5, 4.0, available),
        *extra,
    )
    return OfferingsObserved("sim", listed, (), T0)


def demand(rate: float, *, sequence: int = 1, at: float = T0, source: str = "s", model: str = "m"):
    return DemandObserved(
        f"e{sequence}", source, model, rate, 1000.0, 200.0, 60.0, Stamp(0, sequence, at)
    )


def choice(count: int = 1, *offerings: OfferingKey, of: ServingTemplate | None = None) -> Choice:
    chosen = of or template()
    keys = offerings or (SPOT,)
    counts = tuple(sorted({k: keys.count(k) for k in keys}.items()))
    return Choice(
        chosen.id, chosen.model, chosen.phase, ZONE, chosen.nodes, counts, chosen.throughput, count
    )


def report(status: SolveStatus = SolveStatus.PROVEN) -> SolveReport:
    return SolveReport(status, 1.0, 1.0, 1.0, 0.01, 10, "test", "test", ())


@dataclass
class Cloud:
    """Answers the engine's instructions at once, as a perfect cloud would."""

    engine: Engine
    now: float = T0
    machines: dict[str, Instance] = field(default_factory=dict)
    launched: list[Launch] = field(default_factory=list)
    terminated: list[str] = field(default_factory=list)
    solves: list[Solve] = field(default_factory=list)
    target: tuple[Choice, ...] = ()
    hold_launches: bool = False

    def decide(self) -> tuple[Instruction, ...]:
        """One decision, with all answers; repeated until nothing more is asked for."""
        first = instructions = self.engine.decide(self.now)
        while instructions:
            for instruction in instructions:
                self._answer(instruction)
            instructions = self.engine.decide(self.now)
            self.engine.take_changes()
        return first

    def aim(self, *choices: Choice) -> None:
        """Let every solve from now on answer with these choices."""
        self.target = choices
        self.engine.state.agenda._problem = None
        self.engine.state.agenda._triggers.add("policy")
        self.decide()

    def advance(self, seconds: float) -> None:
        """Let time pass, list the machines, and make loaded replicas ready."""
        self.now += seconds
        self.observe()
        for replica in list(self.engine.state.fleet.replicas.values()):
            if replica.state is ReplicaState.STARTING:
                self.engine.apply(ReplicaReady(replica.id, self.now), self.now)
        self.decide()

    def observe(self, *, complete: bool = True) -> None:
        listing = Listing(tuple(self.machines.values()), complete)
        self.engine.apply(FleetObserved("sim", listing, self.now), self.now)
        self.engine.take_changes()

    def _answer(self, instruction: Instruction) -> None:
        match instruction:
            case Solve():
                self.solves.append(instruction)
                answer = Solved(instruction.generation, Allocation(self.target), report(), self.now)
                self.engine.apply(answer, self.now)
            case Launch():
                self.launched.append(instruction)
                if not self.hold_launches:
                    self.engine.apply(
                        Launched(instruction.intent, self.machine(instruction), self.now), self.now
                    )
            case Terminate():
                for _, instance in instruction.targets:
                    self.terminated.append(instance)
                    machine = self.machines[instance]
                    self.machines[instance] = replace(machine, state=InstanceState.TERMINATED)

    def machine(self, launch: Launch) -> Instance:
        name = f"i-{len(self.machines)}"
        request = launch.request
        self.machines[name] = Instance(
            name, "sim", InstanceState.RUNNING, request.offering, request.tags, self.now, "10.0.0.1"
        )
        return self.machines[name]


def engine(
    *models: ModelPolicy,
    templates: Templates | None = None,
    stored: StoredState | None = None,
    **rules: object,
) -> Engine:
    return Engine(
        policies=policies(*models, **rules),
        catalog=catalog(),
        templates=templates or Templates(),
        providers=frozenset({"sim"}),
        stored=stored or StoredState(),
        now=T0,
    )


def running_world(replicas: int = 2, *models: ModelPolicy, **rules: object) -> Cloud:
    """A cloud with ready replicas that match demand, older than the minimum life."""
    cloud = Cloud(engine(*models, **rules))
    cloud.engine.apply(offers(), T0)
    cloud.observe()
    cloud.engine.apply(demand(10.0 * replicas), T0)
    cloud.aim(choice(replicas))
    cloud.advance(200.0)
    cloud.engine.apply(demand(10.0 * replicas, sequence=2, at=T0 + 1100), T0 + 1100)
    cloud.advance(1000.0)
    return cloud
