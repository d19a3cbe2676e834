from __future__ import annotations

import numpy as np
import pytest

from corald.config.catalog import load_catalog, load_paper_catalog
from corald.model.hardware import Link
from corald.model.templates import Engine
from corald.templates.calibration import DEFAULT_CALIBRATION, Calibration, GpuFactors
from corald.templates.roofline import GpuGroup, valid_tensor_parallel

PAPER = load_paper_catalog()
GIB = 1 << 30


def group(model, configuration, tp, calibration=DEFAULT_CALIBRATION):
    node = PAPER.configurations[configuration]
    return GpuGroup(PAPER.models[model], PAPER.gpus[node.gpu], node, tp, calibration)


def test_prefill_of_the_largest_model_is_near_the_papers_figure():
    """Figure 1a: about 3,200 input tokens/s per H100 for Qwen3-235B at 1800 ms."""
    node = group("qwen3-235b", "8xH100", 8)
    tokens = np.linspace(1000, 60000, 600)
    seconds = 94 * node.prefill_layer_seconds(tokens, 2048) + node.step_overhead_seconds
    best = (tokens / seconds)[seconds <= 1.8].max() / 8
    assert 1600 < best < 6400


def test_a_decode_step_is_never_faster_than_reading_the_weights_once():
    for name in PAPER.models:
        node = group(name, "8xH100", 8)
        model = PAPER.models[name]
        step = model.layers * node.decode_layer_seconds(np.array([4096.0]), 1000)[0]
        assert step > model.weight_gib * GIB * 0.9 / (8 * 3350e9)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "qwen3-32b"])
def test_few_tokens_reach_few_experts(name):
    """One token of a sparse model reads a small part of the weights, of a dense model all."""
    node = group(name, "H100", 1)
    one, many = node.decode_layer_seconds(np.array([1.0, 200.0]), 0.0)
    sparse = PAPER.models[name].experts > 0
    assert (many > 4 * one) == sparse


def test_tensor_parallelism_over_pcie_slows_prefill_beyond_two_gpus():
    tokens = np.array([8192.0])
    seconds = {
        tp: group("qwen3-32b", "8xL40S", tp).prefill_layer_seconds(tokens, 1000)[0]
        for tp in (1, 2, 4, 8)
    }
    assert seconds[2] < seconds[1]
    assert seconds[8] > seconds[4] > seconds[2]
    nvlink = {
        tp: group("qwen3-32b", "8xH100", tp).prefill_layer_seconds(tokens, 1000)[0]
        for tp in (1, 2, 4, 8)
    }
    assert nvlink[8] < nvlink[4] < nvlink[2] < nvlink[1]


def test_seconds_rise_with_tokens_and_context():
    tokens = np.geomspace(1, 20000, 60)
    for name, configuration, tp in (("phi-4-14b", "2xL4", 2), ("gpt-oss-20b", "4xA100-80", 4)):
        node = group(name, configuration, tp)
        assert np.all(np.diff(node.prefill_layer_seconds(tokens, 1000)) > 0)
        assert np.all(np.diff(node.decode_layer_seconds(tokens, 1000)) > 0)
        longer = node.decode_layer_seconds(tokens, 8000) - node.decode_layer_seconds(tokens, 1000)
        assert np.all(longer > 0)


def test_a_sliding_window_bounds_the_cache_and_its_reads():
    node = group("gpt-oss-20b", "H100", 1)
    short, long = node.kv_bytes_per_layer(1000), node.kv_bytes_per_layer(10000)
    assert 5 * short < long < 10 * short


def test_heads_must_divide_over_the_gpus():
    phi = PAPER.models["phi-4-14b"]  # 40 heads, 10 key-value heads
    assert [tp for tp in (1, 2, 4, 8, 16) if valid_tensor_parallel(phi, tp)] == [1, 2]
    qwen = PAPER.models["qwen3-235b"]  # 64 heads, 4 key-value heads: copied beyond 4
    assert [tp for tp in (1, 2, 4, 8, 16) if valid_tensor_parallel(qwen, tp)] == [1, 2, 4, 8, 16]
    assert group("qwen3-235b", "8xH100", 8).kv_bytes_per_layer(1000) == 2 * group(
        "qwen3-235b", "8xH100", 4
    ).kv_bytes_per_layer(1000)


def test_latent_attention_keeps_a_whole_cache_on_every_gpu():
    catalog = load_catalog()
    node = catalog.configurations["8xH200"]
    caches = [
        GpuGroup(
            catalog.models["deepseek-r1"], catalog.gpus["H200"], node, tp, DEFAULT_CALIBRATION
        ).kv_bytes_per_layer(1000)
        for tp in (1, 8)
    ]
    assert caches[1] == 8 * caches[0]


def test_the_engine_leaves_a_reserve_and_activations_take_their_share():
    node = group("phi-4-14b", "L4", 1)
    few, many = node.free_bytes(np.array([0.0, 8192.0])) / GIB
    assert few == pytest.approx(PAPER.gpus["L4"].memory_gib * 0.92)
    assert few - 2 < many < few


def test_weights_of_all_layers_are_the_models_weights():
    for name, model in PAPER.models.items():
        total = group(name, "H100", 1).layer_bytes * model.layers / GIB
        assert total == pytest.approx(model.weight_gib)


def test_an_unmeasured_gpu_takes_the_defaults_and_is_uncalibrated():
    factors = DEFAULT_CALIBRATION.factors("NEW")
    assert factors == GpuFactors()
    assert not factors.calibrated


def test_bus_bandwidth_is_measured_or_a_share_of_the_links_peak():
    h100, l4 = PAPER.gpus["H100"], PAPER.gpus["L4"]
    measured = DEFAULT_CALIBRATION.allreduce_bytes_per_second(h100, Link.NVLINK, 8)
    assert measured == 304e9
    pcie = DEFAULT_CALIBRATION.allreduce_bytes_per_second(h100, Link.PCIE, 8)
    assert pcie < 10e9
    assert DEFAULT_CALIBRATION.allreduce_bytes_per_second(l4, Link.PCIE, 2) == pytest.approx(
        0.58 * l4.pcie_gb_per_second * 1e9
    )
    assert Calibration().allreduce_bytes_per_second(h100, Link.NVLINK, 8) == pytest.approx(270e9)


def test_deep_pipelines_lose_what_was_measured():
    shares = [
        DEFAULT_CALIBRATION.pipeline_share(Engine.VLLM, stages) for stages in (1, 2, 3, 8, 16)
    ]
    assert shares == pytest.approx([1.0, 1.0, 0.915, 0.57, 0.57])
    assert DEFAULT_CALIBRATION.pipeline_share(Engine.CORAL, 6) == 1.0


def test_a_digest_changes_with_the_gpus_own_and_the_shared_factors():
    before = DEFAULT_CALIBRATION.digest("L4")
    assert before != DEFAULT_CALIBRATION.digest("H100")
    other_gpu = Calibration(gpus={**DEFAULT_CALIBRATION.gpus, "H100": GpuFactors()})
    assert other_gpu.digest("L4") == before
    shared = Calibration(gpus=DEFAULT_CALIBRATION.gpus, memory_reserve=0.1)
    assert shared.digest("L4") != before
