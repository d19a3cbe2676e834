"""Weight and cache accounting of a model, against hand counts and published checkpoint sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corald.config.catalog import load_catalog
from corald.model.llm import LlmModel

MODELS = load_catalog().models
TINY = LlmModel(
    name="tiny",
    huggingface_id="example/tiny",
    layers=3,
    hidden=10,
    heads=4,
    kv_heads=2,
    head_dim=5,
    intermediate=20,
    experts=8,
    experts_per_token=2,
    moe_intermediate=6,
    shared_experts=1,
    dense_layers=1,
    vocab=100,
    tied_embeddings=False,
    gated_mlp=True,
    sliding_window=None,
    sliding_layers=0,
    weight_bytes=2.0,
    kv_bytes_per_token=120.0,
    parameters_billions=1.0,
    active_parameters_billions=1.0,
    source="made up",
)


def test_the_parts_of_a_mixture_of_experts_are_counted_by_hand():
    assert TINY.moe_layers == 2
    assert TINY.attention_parameters_per_layer == 10 * 20 + 2 * 10 * 10 + 20 * 10
    assert TINY.dense_mlp_parameters_per_layer == 3 * 10 * 20
    assert TINY.expert_parameters == 3 * 10 * 6
    assert TINY.router_parameters_per_layer == 80
    assert TINY.embedding_parameters == 2 * 100 * 10
    layers = 3 * 600 + 600 + 2 * (9 * 180 + 80)
    assert TINY.layer_parameters_mean * 3 == pytest.approx(layers)
    assert TINY.computed_parameters_billions == pytest.approx((layers + 2000) / 1e9)


def test_experts_in_fewer_bits_shrink_only_the_experts():
    squeezed = replace(TINY, expert_weight_bytes=0.5)
    saved = TINY.layer_weight_bytes_mean - squeezed.layer_weight_bytes_mean
    assert saved * 3 == pytest.approx(1.5 * 2 * 8 * 180)


def test_an_ungated_mlp_and_tied_embeddings_have_one_matrix_less():
    plain = replace(TINY, gated_mlp=False, tied_embeddings=True)
    assert plain.dense_mlp_parameters_per_layer == 2 * 10 * 20
    assert plain.expert_parameters == 2 * 10 * 6
    assert plain.embedding_parameters == 100 * 10


@pytest.mark.parametrize(
    ("name", "checkpoint_gib"),
    [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)],
)
def test_mxfp4_models_weigh_what_their_published_checkpoints_weigh(name, checkpoint_gib):
    assert MODELS[name].weight_gib == pytest.approx(checkpoint_gib, rel=0.01)


def test_a_sliding_layer_caches_no_more_than_its_window():
    model = MODELS["gpt-oss-20b"]
    assert model.kv_bytes(128) == pytest.approx(128 * model.kv_bytes_per_token)
    long = model.kv_bytes_per_token / 2 * (10_000 + 128)
    assert model.kv_bytes(10_000) == pytest.approx(long)


def test_a_model_without_windows_caches_in_proportion_to_context():
    model = MODELS["qwen3-32b"]
    assert model.kv_bytes(10_000) == pytest.approx(10_000 * model.kv_bytes_per_token)
