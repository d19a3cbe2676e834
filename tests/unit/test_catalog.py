"""The shipped catalogue is sane, and a broken one is refused with file, path and remedy."""

from __future__ import annotations

import re
import time
from importlib.resources import files

import pytest

from corald.config.catalog import load_catalog, load_paper_catalog
from corald.config.paper import load_paper_setup
from corald.errors import ConfigError
from corald.model.hardware import Link

CATALOG = load_catalog()
PAPER = load_paper_catalog()
SHIPPED_FILES = (
    "gpus.toml",
    "configurations.toml",
    "models.toml",
    "instances_aws.toml",
    "instances_gcp.toml",
)
PRICES = [(each, price) for each in CATALOG.instance_types.values() for price in each.prices]


def test_it_is_as_large_as_promised():
    assert len(CATALOG.gpus) >= 14
    assert len(CATALOG.instance_types) >= 60
    assert len(CATALOG.models) >= 12
    assert {each.cloud for each in CATALOG.instance_types.values()} == {"aws", "gcp"}


def test_every_configuration_is_sold_by_someone():
    sold = {each.configuration for each in CATALOG.instance_types.values()}
    assert sold == set(CATALOG.configurations)


def test_spot_never_exceeds_on_demand_and_every_price_has_date_and_source():
    for each, price in PRICES:
        spot = price.spot_usd_per_hour
        assert price.on_demand_usd_per_hour > 0, each.name
        assert spot is None or 0 < spot <= price.on_demand_usd_per_hour, each.name
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", price.as_of), each.name
        assert price.source, each.name


def test_zones_are_zone_ids_of_their_region():
    aws_region = {
        "use1": "us-east-1",
        "use2": "us-east-2",
        "usw2": "us-west-2",
        "euc1": "eu-central-1",
        "euw1": "eu-west-1",
        "apne1": "ap-northeast-1",
        "apne2": "ap-northeast-2",
    }
    for each, price in PRICES:
        for zone in price.zones:
            if each.cloud == "aws":
                assert aws_region[zone.partition("-az")[0]] == price.region, each.name
            else:
                assert re.fullmatch(rf"{price.region}-[a-f]", zone), each.name


def test_no_price_is_off_by_a_digit():
    per_gpu: dict[str, list[float]] = {}
    for each, price in PRICES:
        configuration = CATALOG.configurations[each.configuration]
        cost = price.on_demand_usd_per_hour / configuration.gpus
        per_gpu.setdefault(configuration.gpu, []).append(cost)
    assert {gpu for gpu, costs in per_gpu.items() if max(costs) > 9 * min(costs)} == set()


def test_unverified_zones_are_marked_in_the_source():
    g2 = CATALOG.instance_types["g2-standard-4"].prices
    a2 = CATALOG.instance_types["a2-highgpu-1g"].prices
    assert all("zones unverified" in price.source for price in g2)
    assert not any("unverified" in price.source for price in a2)


def test_only_hosts_with_nvlink_say_so():
    assert CATALOG.configurations["8xH100"].link is Link.NVLINK
    assert CATALOG.configurations["8xL40S"].link is Link.PCIE


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.name)
def test_the_shapes_of_a_model_give_its_published_parameter_count(model):
    assert model.computed_parameters_billions == pytest.approx(model.parameters_billions, rel=0.01)
    assert 0 < model.active_parameters_billions <= model.parameters_billions


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.name)
def test_the_cache_of_a_token_follows_from_layers_and_heads(model):
    latent = model.latent_attention
    per_layer = (
        2 * model.kv_heads * model.head_dim if latent is None else latent.kv_rank + latent.rope_dim
    )
    assert model.kv_bytes_per_token == model.layers * per_layer * 2


def test_it_loads_fast():
    best = min(_seconds(load_catalog) for _ in range(3))
    assert best < 0.1


def test_the_papers_world_has_its_twenty_configurations_and_six_models():
    assert set(PAPER.gpus) == {"H100", "A100-80", "L40S", "A10G", "L4"}
    assert len(PAPER.configurations) == 20
    assert len(PAPER.instance_types) == 40
    assert len(PAPER.models) == 6
    regions = {price.region for each in PAPER.instance_types.values() for price in each.prices}
    assert regions == {"us-east-2", "ap-northeast-2", "us-central1"}


def test_the_papers_prices_keep_its_ratios():
    base = PAPER.instance_types["paper-aws-L4"].prices[0].on_demand_usd_per_hour
    ratios = {"H100": 7.6, "A100-80": 3.5, "L40S": 2.2, "A10G": 1.2, "L4": 1.0}
    for each in PAPER.instance_types.values():
        configuration = PAPER.configurations[each.configuration]
        expected = base * ratios[configuration.gpu] * configuration.gpus
        for price in each.prices:
            assert price.on_demand_usd_per_hour == pytest.approx(expected)
            assert price.spot_usd_per_hour is None


def test_the_papers_setups_name_what_its_catalogue_holds():
    core, extended = load_paper_setup("core"), load_paper_setup("extended")
    assert (len(core.configurations), len(core.models), len(core.regions)) == (12, 3, 2)
    assert set(extended.configurations) == set(PAPER.configurations)
    assert set(extended.models) == set(PAPER.models)
    assert core.models["gpt-oss-20b"].slo.tpot_ms == 30
    assert core.models["gpt-oss-20b"].workload.input_tokens_mean == pytest.approx(2047.8)


def test_an_unknown_setup_is_refused():
    with pytest.raises(ConfigError, match="core, extended"):
        load_paper_setup("huge")


def test_a_directory_with_prices_only_takes_the_rest_from_the_shipped_catalogue(tmp_path):
    _copy(tmp_path, "instances_gcp.toml")
    own = load_catalog(tmp_path)
    assert {each.cloud for each in own.instance_types.values()} == {"gcp"}
    assert own.gpus == CATALOG.gpus
    assert own.models == CATALOG.models


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("gpus.toml", "bf16_tflops = 65", "bf16_tflop = 65", r"T4\.bf16_tflops: missing"),
        ("gpus.toml", "[T4]", '[T4]\ncolor = "red"', r"T4\.color: unknown key"),
        ("gpus.toml", "memory_gib = 14.6", "memory_gib = -1", r"T4\.memory_gib: .*greater than 0"),
        ("gpus.toml", "memory_gib = 14.6", "memory_gib = nan", r"T4\.memory_gib: .*finite"),
        ("gpus.toml", "[A10G]", "[L4]", r"not valid TOML"),
        (
            "configurations.toml",
            'T4 = { gpu = "T4"',
            'T4 = { gpu = "T44"',
            r"T4\.gpu: there is no GPU type T44; did you mean T4\?",
        ),
        (
            "configurations.toml",
            '4xL40S = { gpu = "L40S", gpus = 4, link = "pcie"',
            '4xL40S = { gpu = "L40S", gpus = 4, link = "nvlink"',
            r"4xL40S\.link: L40S has no NVLink",
        ),
        ("configurations.toml", "4xT4 = ", "quad-T4 = ", r"quad-T4: rename it to 4xT4"),
        (
            "instances_aws.toml",
            "on_demand = 0.8048, spot = 0.3816",
            "on_demand = 0.8048, spot = 3.816",
            r'instances\."g6\.xlarge"\.prices\[0\]: spot 3\.816 exceeds on_demand 0\.8048',
        ),
        (
            "instances_aws.toml",
            'configuration = "8xB300"',
            'configuration = "8xB301"',
            r'instances\."p6-b300\.48xlarge"\.configuration: .*did you mean 8xB300\?',
        ),
        (
            "instances_aws.toml",
            'configuration = "L4-slow"',
            'configuration = "L4"',
            r'instances\."g6\.xlarge"\.network_gbit_per_second: less than',
        ),
        (
            "instances_aws.toml",
            'region = "us-east-2"',
            'region = "us-east-1"',
            r'instances\."g5\.xlarge": a region has two prices',
        ),
        (
            "instances_gcp.toml",
            "[instances.a2-highgpu-1g]",
            '[instances."g6.xlarge"]',
            r'instances\."g6\.xlarge": another file has this name',
        ),
        ("models.toml", "kv_heads = 10", "kv_heads = 9", r"phi-4-14b: heads must be a multiple"),
        ("models.toml", "layers = 40", 'layers = "40"', r"phi-4-14b\.layers: .*integer.*'40'"),
    ],
)
def test_a_broken_file_is_refused_with_file_path_and_remedy(tmp_path, file, old, new, message):
    _copy(tmp_path, *SHIPPED_FILES)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(tmp_path / file))}: {message}"):
        load_catalog(tmp_path)


def test_a_directory_without_instances_or_none_at_all_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no instances_\*\.toml; add"):
        load_catalog(tmp_path)
    with pytest.raises(ConfigError, match="no such directory"):
        load_catalog(tmp_path / "absent")


def _copy(target, *names):
    for name in names:
        (target / name).write_bytes((files("corald_catalog") / name).read_bytes())


def _seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
