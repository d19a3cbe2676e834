"""The town of the scenarios: one scripted cloud, two models, one daemon on virtual time."""

from __future__ import annotations

from dataclasses import replace

from corald.library import Library, LibraryOrigin, TemplateTable
from corald.market.ledger import Effect
from corald.market.stock import Stock
from corald.model.market import Market, OfferingKey
from corald.model.policy import ModelPolicy, PolicySet, Rules
from corald.model.templates import Engine, Phase, ServingTemplate, Slo, Stage, Workload
from corald.simulation.meter import Level

CLUSTER = "test"
SLO = Slo(ttft_ms=1000, tpot_ms=80)
WORKLOAD = Workload(500, 1500, 100, 300)
THROUGHPUT = {"L4-slow": 1.0, "A10G-slow": 1.2, "L40S-slow": 4.0}
"""Requests/s of one machine, for both models."""
MODELS = ("qwen3-8b", "qwen3-14b")

O1 = OfferingKey("aws", "us-east-2", "use2-az1", "g6.xlarge", Market.SPOT)
O2 = OfferingKey("aws", "us-east-2", "use2-az2", "g6.xlarge", Market.SPOT)
O3 = OfferingKey("aws", "us-east-2", "use2-az1", "g6.xlarge", Market.ON_DEMAND)
O4 = OfferingKey("aws", "us-east-2", "use2-az3", "g6e.xlarge", Market.ON_DEMAND)
PRICES = {O1: 0.25, O2: 0.30, O3: 0.80, O4: 3.60}
"""One machine of O1 is the cheapest request, then O2, O3, O4."""


def shelf(**changes):
    """The stock for sale; `changes` are supplies by offering name (`o1=0`)."""
    supplies = {O1: 20, O2: 20, O3: 20, O4: 20}
    named = {"o1": O1, "o2": O2, "o3": O3, "o4": O4}
    supplies |= {named[name]: supply for name, supply in changes.items()}
    on_demand = {"g6.xlarge": 0.80, "g6e.xlarge": 3.60}
    return [
        Stock(key, PRICES[key], on_demand[key.instance_type], supply)
        for key, supply in supplies.items()
    ]


def library_of():
    """Both models, on one machine of each kind."""
    return Library(
        fingerprint="small",
        configurations=tuple(sorted(THROUGHPUT)),
        tables={table.key: table for table in map(table_of, MODELS)},
        origin=LibraryOrigin(
            n_max=1,
            rho=12.0,
            epsilon=0.0,
            pruned=False,
            groups=(tuple(sorted(THROUGHPUT)),),
            model_digests={},
            configuration_digests={},
            calibration_digests={},
            engine_versions={},
            performance_model="by hand",
        ),
    )


def table_of(model):
    templates = [
        ServingTemplate(
            model=model,
            phase=Phase.MIXED,
            engine=Engine.VLLM,
            nodes=((configuration, 1),),
            stages=(Stage(layers=36, tp=1, node_ordinals=(0,)),),
            throughput=throughput,
        )
        for configuration, throughput in THROUGHPUT.items()
    ]
    return TemplateTable.of(
        templates, configurations=sorted(THROUGHPUT), slo=SLO, workload=WORKLOAD
    )


def policy(model="qwen3-8b", **changes):
    """A policy without headroom, so that n requests/s need n machines of throughput 1."""
    return replace(ModelPolicy(model=model, slo=SLO, workload=WORKLOAD, headroom=0.0), **changes)


def policy_set(*models, **rules):
    """The configuration: by default one model."""
    chosen = models or (policy(),)
    return PolicySet(CLUSTER, {entry.model: entry for entry in chosen}, Rules(**rules))


class Town:
    """What a story is told: the world, its one cloud and a meter that repeats demand."""

    def __init__(self, world, cloud, meter):
        self.world = world
        self.cloud = cloud
        self.market = cloud.market
        self.ledger = cloud.market.ledger
        self.meter = meter

    def demand(self, rate, model="qwen3-8b"):
        self.meter.set(model, Level(rate, 500, 100))

    def model(self, name="qwen3-8b"):
        return next(m for m in self.world.status().models if m.model == name)

    def metric(self, name):
        """Sum of a metric over its series, as a scrape shows it."""
        return self.metric_of(name)

    def metric_of(self, name, **labels):
        """Sum over the series that carry these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = self.world.metrics.render().decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{")) and all(part in line for part in wanted)
        )

    async def ready(self, count, *, within=900.0, model="qwen3-8b"):
        """Wait until so many replicas serve."""
        return await self.world.until(
            lambda: self.model(model).replicas_ready == count,
            within=within,
            what=f"{count} replicas of {model} ready",
        )

    def launched(self, offering):
        """When machines of this offering were rented."""
        rented = self.ledger.effects(Effect.LAUNCHED)
        return [entry.at for entry in rented if entry.offering == offering]
