from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from corald.config.catalog import load_catalog
from corald.config.paper import load_paper_catalog, load_paper_setup
from corald.errors import ConfigError, LibraryError
from corald.library import read_library, stale_parts, write_library
from corald.model.templates import Engine, Phase, Slo
from corald.templates.build import MOST_NODES, BuildOptions, build_library
from corald.templates.calibration import DEFAULT_CALIBRATION, GpuFactors
from corald.templates.engines import Launcher, launcher_of, vllm_arguments
from corald.templates.groups import groups_by_cloud, groups_by_region, groups_by_zone
from corald.templates.rates import NO_HOP, BuildRequest, RateModel
from corald.templates.report import list_templates, show_template

PAPER = load_paper_catalog()
CORE = load_paper_setup("core")
SMALL = ("2xL40S", "4xA10G", "4xL4", "L40S")
FEW = BuildOptions(n_max=3)


def request(model="qwen3-32b", phase=Phase.MIXED, engine=Engine.VLLM):
    served = CORE.models[model]
    return BuildRequest(model, phase, engine, served.slo, served.workload)


def build(*requests, options=FEW, configurations=SMALL, catalog=PAPER, **keywords):
    asked = requests or (request(),)
    return build_library(catalog, asked, options, configurations=configurations, **keywords)


@pytest.fixture(scope="module")
def library():
    return build(
        request(engine=Engine.VLLM),
        request(phase=Phase.PREFILL, engine=Engine.CORAL),
        request(phase=Phase.DECODE, engine=Engine.CORAL),
        request("gpt-oss-20b", Phase.DECODE, Engine.CORAL),
    )


def all_templates(library):
    for table in library.tables.values():
        assert len(table)
        for row in range(len(table)):
            yield table, table.template(row)


def test_every_template_lays_all_layers_over_all_of_its_nodes(library):
    seen = 0
    for _, template in all_templates(library):
        nodes = template.node_configurations
        gpus = [PAPER.configurations[name].gpus for name in nodes]
        assert sum(stage.layers for stage in template.stages) == PAPER.models[template.model].layers
        assert {node for stage in template.stages for node in stage.node_ordinals} == set(
            range(len(nodes))
        )
        if template.engine is Engine.VLLM:
            tp = template.stages[0].tp
            carried = [stage.node_ordinals for stage in template.stages]
            assert carried == [(k,) for k in range(len(nodes)) for _ in range(gpus[k] // tp)]
            assert {stage.tps for stage in template.stages} == {(tp,)}
        else:
            for stage in template.stages:
                held = zip(stage.node_ordinals, stage.tps, strict=True)
                assert all(gpus[node] % tp == 0 for node, tp in held)
        seen += len(template.stages) > 1
    assert seen


def test_a_single_stage_yields_what_its_nodes_yield_together(library):
    """Recomputed from the performance model, for the layers and TP sizes that it names."""
    checked = 0
    for table, template in all_templates(library):
        if template.engine is not Engine.CORAL or len(template.stages) > 1:
            continue
        key, stage = table.key, template.stages[0]
        asked = BuildRequest(key.model, key.phase, key.engine, table.slo, table.workload)
        model = RateModel(asked, PAPER, DEFAULT_CALIBRATION)
        rate = 0.0
        for ordinal, tp in zip(stage.node_ordinals, stage.tps, strict=True):
            node = PAPER.configurations[template.node_configurations[ordinal]]
            alone = model.rates(model.group(node, tp), NO_HOP, 1, 0.0)[0, stage.layers]
            rate += node.gpus // tp * alone
        assert template.throughput == pytest.approx(rate)
        checked += 1
    assert checked


def test_the_weights_of_every_stage_fit_on_its_gpus(library):
    for _, template in all_templates(library):
        model = PAPER.models[template.model]
        for stage in template.stages:
            for ordinal, tp in zip(stage.node_ordinals, stage.tps, strict=True):
                node = PAPER.configurations[template.node_configurations[ordinal]]
                gpu = PAPER.gpus[node.gpu]
                needed = stage.layers * model.layer_weight_bytes_mean / 2**30
                assert needed < tp * gpu.memory_gib * 0.92


def test_a_built_library_survives_its_file(library, tmp_path):
    write_library(tmp_path / "x.clt", library)
    read = read_library(tmp_path / "x.clt")
    assert read.fingerprint == library.fingerprint
    for _, template in all_templates(library):
        assert read.template(template.id) == template


def test_building_twice_gives_the_same_templates(library):
    again = build(request(), options=replace(FEW, workers=1))
    table = library.table("qwen3-32b", Phase.MIXED, Engine.VLLM)
    other = again.table("qwen3-32b", Phase.MIXED, Engine.VLLM)
    assert np.array_equal(table.counts, other.counts)
    assert np.array_equal(table.throughput, other.throughput)


def test_the_fingerprint_follows_every_input_but_prices():
    tiny = BuildOptions(n_max=1)
    before = build(options=tiny).fingerprint
    slo = replace(request(), slo=Slo(1600, 101))
    workload = replace(request(), workload=replace(request().workload, output_tokens_mean=131))
    model = replace(PAPER.models["qwen3-32b"], weight_bytes=1.0)
    gpu = replace(PAPER.gpus["L40S"], bandwidth_gb_per_second=865)
    node = replace(PAPER.configurations["L40S"], network_gbit_per_second=99)
    calibration = replace(
        DEFAULT_CALIBRATION, gpus={**DEFAULT_CALIBRATION.gpus, "L4": GpuFactors(compute=0.4)}
    )
    others = [
        build(slo, options=tiny),
        build(workload, options=tiny),
        build(request(engine=Engine.CORAL), options=tiny),
        build(options=tiny, configurations=SMALL[1:]),
        build(options=BuildOptions(n_max=2)),
        build(options=replace(tiny, rho=11)),
        build(options=replace(tiny, epsilon=0.01)),
        build(options=replace(tiny, prune=False)),
        build(options=replace(tiny, groups=[frozenset(SMALL[:2]), frozenset(SMALL[2:])])),
        build(options=replace(tiny, calibration=calibration)),
        build(options=tiny, catalog=replace(PAPER, models={**PAPER.models, "qwen3-32b": model})),
        build(options=tiny, catalog=replace(PAPER, gpus={**PAPER.gpus, "L40S": gpu})),
        build(
            options=tiny,
            catalog=replace(PAPER, configurations={**PAPER.configurations, "L40S": node}),
        ),
    ]
    prints = [before, *(other.fingerprint for other in others)]
    assert len(set(prints)) == len(prints)
    assert build(options=tiny, catalog=replace(PAPER, instance_types={})).fingerprint == before


def test_a_changed_catalogue_is_told_by_name(library):
    assert stale_parts(library, PAPER) == ()
    gpu = replace(PAPER.gpus["L40S"], memory_gib=40)
    models = {name: model for name, model in PAPER.models.items() if name != "gpt-oss-20b"}
    changed = replace(PAPER, gpus={**PAPER.gpus, "L40S": gpu}, models=models)
    assert stale_parts(library, changed) == (
        "model gpt-oss-20b is no longer in the catalogue",
        "configuration 2xL40S has changed in the catalogue",
        "configuration L40S has changed in the catalogue",
    )


def test_no_template_spans_two_groups():
    groups = [frozenset({"2xL40S", "4xA10G"}), frozenset({"2xL40S", "4xL4"})]
    library = build(options=replace(FEW, groups=groups, prune=False))
    shapes = {
        frozenset(name for name, _ in template.nodes) for _, template in all_templates(library)
    }
    assert all(any(shape <= group for group in groups) for shape in shapes)
    assert any(len(shape) == 2 for shape in shapes)
    assert not any("L40S" in shape for shape in shapes)


def test_templates_stay_below_rho_times_the_models_size():
    library = build(options=replace(FEW, rho=3.0, prune=False))
    sizes = [
        sum(
            PAPER.configurations[name].gpus * PAPER.gpus[PAPER.configurations[name].gpu].memory_gib
            for name in template.node_configurations
        )
        for _, template in all_templates(library)
    ]
    limit = 3.0 * PAPER.models["qwen3-32b"].weight_gib
    assert 0.6 * limit < max(sizes) < limit


def test_progress_counts_every_size_of_every_table():
    reports = []
    library = build(
        request(),
        request(phase=Phase.PREFILL, engine=Engine.CORAL),
        options=replace(FEW, workers=1),
        progress=reports.append,
    )
    assert [report.steps_done for report in reports] == [1, 2, 3, 4, 5, 6]
    assert {report.steps for report in reports} == {6}
    assert reports[-1].kept == len(library)
    assert reports[-1].seen == 2 * (4 + 10 + 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": [replace(request(), model="gpt-9")]}, "model gpt-9 is not in the catalogue"),
        ({"requests": []}, "nothing to build"),
        ({"requests": [request(), request()]}, "asked for twice"),
        ({"configurations": ["9xL4"]}, "configuration 9xL4 is not in the catalogue"),
        ({"configurations": []}, "nothing to build"),
        ({"options": BuildOptions(n_max=0)}, "n_max is 0"),
        ({"options": BuildOptions(n_max=MOST_NODES + 1)}, "n_max is 9"),
        ({"options": BuildOptions(epsilon=-0.1)}, "epsilon"),
        ({"options": BuildOptions(groups=[frozenset({"L4"})] * 63)}, "63 groups"),
    ],
)
def test_what_cannot_be_built_is_refused(change, message):
    arguments = {"requests": [request()], "options": FEW, "configurations": SMALL, **change}
    requests, options = arguments.pop("requests"), arguments.pop("options")
    with pytest.raises(ConfigError, match=message):
        build_library(PAPER, requests, options, **arguments)


def test_a_model_that_fits_nowhere_has_an_empty_table():
    library = build(request(), configurations=["L4"], options=BuildOptions(n_max=2))
    table = library.table("qwen3-32b", Phase.MIXED, Engine.VLLM)
    assert len(table) == 0


def test_rows_are_priced_and_sorted_by_throughput(library):
    rows = list(list_templates(library, PAPER, model="qwen3-32b", phase=Phase.PREFILL))
    assert [row.template.phase for row in rows] == [Phase.PREFILL] * len(rows)
    rates = [row.template.throughput for row in rows]
    assert rates == sorted(rates, reverse=True)
    row = show_template(library, PAPER, rows[0].template.id)
    assert row == rows[0]
    dearest = row.list_usd_per_hour
    assert row.list_usd_per_million_tokens == pytest.approx(
        dearest / (row.template.throughput * 3600) * 1e6
    )
    assert row.spot_usd_per_hour is None or row.spot_usd_per_hour < dearest


def test_a_mixed_template_is_priced_over_input_and_output_tokens(library):
    row = next(list_templates(library, PAPER, phase=Phase.MIXED))
    tokens = row.template.throughput * (620 + 130) * 3600
    assert row.list_usd_per_million_tokens == pytest.approx(row.list_usd_per_hour / tokens * 1e6)


def test_a_configuration_that_nobody_sells_has_no_price(library):
    row = next(list_templates(library, replace(PAPER, instance_types={})))
    assert row.list_usd_per_hour is None
    assert row.spot_usd_per_million_tokens is None


def test_an_unknown_template_id_says_where_to_look(library):
    with pytest.raises(LibraryError, match="corald templates list"):
        show_template(library, PAPER, "qwen3-32b/mixed/vllm/9xL4")


def test_the_launcher_follows_from_the_gpus_of_the_nodes():
    library = build(options=replace(FEW, prune=False))
    launchers = {}
    for _, template in all_templates(library):
        counts = {PAPER.configurations[name].gpus for name in template.node_configurations}
        launcher = launcher_of(template, PAPER)
        if len(template.node_configurations) == 1:
            assert launcher is Launcher.ONE_NODE
        else:
            assert launcher is (Launcher.MULTIPROCESSING if len(counts) == 1 else Launcher.RAY)
        launchers[launcher] = template
    assert set(launchers) == {Launcher.ONE_NODE, Launcher.MULTIPROCESSING, Launcher.RAY}


def test_vllm_is_told_its_sizes_and_the_split_in_the_order_of_its_nodes():
    library = build(options=replace(FEW, prune=False))
    template = next(
        template
        for _, template in all_templates(library)
        if len(template.nodes) == 2 and template.stages[0].layers != template.stages[-1].layers
    )
    count = len(template.node_configurations)
    there, back = (
        vllm_arguments(template, order)
        for order in (tuple(range(count)), tuple(reversed(range(count))))
    )
    assert there["--pipeline-parallel-size"] == str(len(template.stages))
    layers = [int(part) for part in there["VLLM_PP_LAYER_PARTITION"].split(",")]
    assert layers == [stage.layers for stage in template.stages]
    assert back["VLLM_PP_LAYER_PARTITION"] != there["VLLM_PP_LAYER_PARTITION"]
    coral = replace(template, engine=Engine.CORAL)
    with pytest.raises(ConfigError, match="not for vllm"):
        vllm_arguments(coral, (0,))


def test_groups_hold_what_a_cloud_or_a_zone_sells():
    catalog = load_catalog()
    clouds, zones = groups_by_cloud(catalog), groups_by_zone(catalog)
    sold = {entry.configuration for entry in catalog.instance_types.values()}
    assert len(clouds) == 2
    assert frozenset().union(*clouds) == frozenset().union(*zones) == sold
    assert all(any(zone <= cloud for cloud in clouds) for zone in zones)
    assert not any(one < other for one in zones for other in zones)


def test_groups_of_regions_are_those_of_the_regions_named_if_they_sell_anything():
    catalog = load_catalog()
    everywhere = groups_by_region(catalog)
    assert groups_by_region(catalog, {"nowhere"}) == everywhere
    (one,) = groups_by_region(catalog, {"us-east-1"})
    sold = {
        kind.configuration
        for kind in catalog.instance_types.values()
        if any(price.region == "us-east-1" for price in kind.prices)
    }
    assert one == sold
    assert any(one <= group for group in everywhere)
