"""Random small worlds: a library, supplies in zones and markets, demand, running replicas."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

from corald.library import Library, LibraryOrigin, TemplateTable
from corald.model.market import Market, OfferingKey
from corald.model.problem import DemandRow, Problem, RunningReplica, Supply
from corald.model.templates import Engine, Phase, ServingTemplate, Slo, Stage, Workload

CONFIGURATIONS = ("2xL4", "A10G", "L4", "L40S")
SIZE = {"2xL4": 2.0, "A10G": 1.3, "L4": 1.0, "L40S": 2.4}
MODELS = ("phi", "qwen", "llama")


@dataclass(frozen=True)
class World:
    library: Library
    problem: Problem


def template(model, phase, nodes, throughput, engine=Engine.VLLM):
    count = sum(n for _, n in nodes)
    stage = Stage(layers=8, tp=1, node_ordinals=tuple(range(count)))
    return ServingTemplate(model, phase, engine, nodes, (stage,), throughput)


def library_of(templates, fingerprint="small"):
    origin = LibraryOrigin(
        n_max=3,
        rho=12.0,
        epsilon=0.0,
        pruned=False,
        groups=(CONFIGURATIONS,),
        model_digests={},
        configuration_digests={},
        calibration_digests={},
        engine_versions={},
        performance_model="random",
    )
    tables = {}
    for _, group in itertools.groupby(
        sorted(templates, key=lambda t: (t.model, t.phase)), key=lambda t: (t.model, t.phase)
    ):
        table = TemplateTable.of(
            list(group),
            configurations=CONFIGURATIONS,
            slo=Slo(1000.0, 50.0),
            workload=Workload(500.0, 2000.0, 100.0, 400.0),
        )
        tables[table.key] = table
    return Library(fingerprint, CONFIGURATIONS, tables, origin)


def random_templates(rng, model, phase, most_nodes):
    scale = rng.uniform(0.5, 20.0)
    for size in range(1, most_nodes + 1):
        for chosen in itertools.combinations_with_replacement(CONFIGURATIONS, size):
            if rng.random() < 0.15:
                continue
            nodes = tuple((name, chosen.count(name)) for name in sorted(set(chosen)))
            power = sum(SIZE[name] for name in chosen)
            yield template(model, phase, nodes, scale * power * rng.uniform(0.6, 1.4))


def supply(zone, configuration, market, usd, available, provider="aws"):
    key = OfferingKey(provider, zone[:3], zone, f"i-{configuration}", market)
    return Supply(key, configuration, usd, usd * 1.1, available)


def random_supplies(rng, zones, plenty):
    for zone in zones:
        for name in CONFIGURATIONS:
            usd = SIZE[name] * rng.uniform(0.7, 1.3)
            if rng.random() < 0.9:
                yield supply(zone, name, Market.ON_DEMAND, usd, rng.randint(0, plenty))
            if rng.random() < 0.6:
                spot = usd * rng.uniform(0.3, 0.9)
                yield supply(zone, name, Market.SPOT, spot, rng.randint(0, plenty))


def random_running(rng, templates, supplies, left):
    for _ in range(rng.randint(0, 6)):
        base = rng.choice(templates)
        zone = rng.choice(supplies).offering.zone_key
        uses = {}
        for name, count in base.nodes:
            for _ in range(count):
                free = [
                    i
                    for i, s in enumerate(supplies)
                    if s.configuration == name and s.offering.zone_key == zone and left[i] > 0
                ]
                if free:
                    chosen = rng.choice(free)
                    left[chosen] -= 1
                    uses[chosen] = uses.get(chosen, 0) + 1
        if sum(uses.values()) != sum(n for _, n in base.nodes):
            continue
        foreign = rng.random() < 0.2
        yield RunningReplica(
            template=f"{base.id}-of-an-older-library" if foreign else base.id,
            model=base.model,
            phase=base.phase,
            zone=zone,
            nodes=base.nodes,
            offerings=tuple(sorted((supplies[i].offering, n) for i, n in uses.items())),
            throughput=base.throughput * (rng.uniform(0.8, 1.2) if foreign else 1.0),
            count=1,
        )


def merged(running):
    counts = {}
    for item in running:
        counts[item] = counts.get(item, 0) + 1
    return tuple(replace(item, count=count) for item, count in counts.items())


def random_world(seed, *, rules=True, plenty=None, most_nodes=2):
    rng = random.Random(seed)
    models = MODELS[: rng.randint(1, 3)]
    keys = [
        (m, p) for m in models for p in rng.choice([[Phase.MIXED], [Phase.PREFILL, Phase.DECODE]])
    ]
    templates = [t for key in keys for t in random_templates(rng, *key, most_nodes)]
    zones = ["use-a", "use-b", "eur-a"][: rng.randint(1, 3)]
    supplies = tuple(random_supplies(rng, zones, plenty or rng.choice([3, 8, 30])))
    if not supplies:
        supplies = (supply("use-a", "L4", Market.ON_DEMAND, 1.0, 5),)
    left = [s.available for s in supplies]
    running = merged(random_running(rng, templates, supplies, left))
    if rules and rng.random() < 0.3:
        supplies = tuple(
            replace(s, obtainable=rng.randint(0, most))
            for s, most in zip(supplies, left, strict=True)
        )
    rows = []
    for model, phase in keys:
        own = [t for t in templates if (t.model, t.phase) == (model, phase)]
        typical = sorted(t.throughput for t in own)[len(own) // 2]
        row = DemandRow(model, phase, Engine.VLLM, typical * rng.uniform(0.3, 4.0))
        if rules:
            row = random_rules(rng, row, own, len(supplies))
        rows.append(row)
    budget = rng.uniform(5.0, 40.0) if rules and rng.random() < 0.3 else None
    problem = Problem(
        library="small",
        rows=tuple(rows),
        supplies=supplies,
        running=running,
        start_cost={name: rng.choice([0.0, 0.1, 0.3]) for name in CONFIGURATIONS},
        budget_usd_per_hour=budget,
        new_usd_per_hour=rng.uniform(2.0, 20.0) if rules and rng.random() < 0.2 else None,
        gap=0.001,
    )
    return World(library_of(templates), problem)


def scarce_world(seed):
    """Much demand, a few spot machines at a fraction of the price, and all else on demand."""
    world = random_world(seed, rules=False, plenty=30)
    rng = random.Random(seed)
    supplies = tuple(
        replace(s, usd_per_hour=0.4 * s.usd_per_hour, available=rng.randint(1, 4))
        if s.offering.market is Market.SPOT
        else replace(s, available=60)
        for s in world.problem.supplies
    )
    rows = tuple(replace(row, amount=row.amount * 4) for row in world.problem.rows)
    problem = replace(world.problem, running=(), supplies=supplies, rows=rows)
    return replace(world, problem=problem)


def random_rules(rng, row, templates, supplies):
    if rng.random() < 0.3:
        row = replace(row, min_replicas=rng.randint(1, 3))
    if rng.random() < 0.3:
        row = replace(row, max_replicas=row.min_replicas + rng.randint(1, 4))
    if rng.random() < 0.3:
        allowed = sorted(rng.sample(range(supplies), max(1, supplies * 2 // 3)))
        row = replace(row, supplies=tuple(allowed))
    if rng.random() < 0.3:
        denied = rng.sample([t.id for t in templates], len(templates) // 4)
        row = replace(row, denied_templates=frozenset(denied))
    if rng.random() < 0.2:
        row = replace(row, max_usd_per_hour=rng.uniform(3.0, 20.0))
    if rng.random() < 0.05:
        row = replace(row, amount=0.0)
    return row


def running_from(allocation):
    """The replicas of a plan that was carried out."""
    return merged(
        RunningReplica(
            template=choice.template,
            model=choice.model,
            phase=choice.phase,
            zone=choice.zone,
            nodes=choice.nodes,
            offerings=choice.offerings,
            throughput=choice.throughput,
            count=1,
        )
        for choice in allocation.choices
        for _ in range(choice.count)
    )
