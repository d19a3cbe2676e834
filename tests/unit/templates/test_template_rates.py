from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from corald.config.paper import load_paper_catalog, load_paper_setup
from corald.model.templates import Engine, Phase, Slo, Workload
from corald.templates.calibration import DEFAULT_CALIBRATION
from corald.templates.rates import BUDGET_RATIO, NO_HOP, BuildRequest, RateModel
from corald.templates.roofline import valid_tensor_parallel

PAPER = load_paper_catalog()
SETUP = load_paper_setup("extended")


def rate_model(name, phase, engine=Engine.CORAL, **changes):
    served = SETUP.models[name]
    slo, workload = changes.get("slo", served.slo), changes.get("workload", served.workload)
    request = BuildRequest(name, phase, engine, slo, workload)
    return RateModel(request, PAPER, DEFAULT_CALIBRATION)


def group_of(model, name, tp):
    return model.group(PAPER.configurations[name], tp)


def rates_of(model, group, stages, hop=NO_HOP):
    return model.rates(group, hop, stages, model.longest_budget([(group, hop)], stages))


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("name", sorted(SETUP.models))
def test_a_rate_never_rises_with_layers_or_stages(name, phase):
    model = rate_model(name, phase)
    some = False
    for node in PAPER.configurations.values():
        for tp in (1, 2, 4, 8):
            if node.gpus % tp or not valid_tensor_parallel(model.model, tp):
                continue
            group, hop = model.group(node, tp), model.network_hop(node)
            few, more = rates_of(model, group, 2, hop), rates_of(model, group, 6, hop)
            for rates in (few, more):
                assert np.all(rates >= 0)
                assert np.all(np.diff(rates, axis=1) <= 0)
                assert np.all(rates[:, 0] == rates[:, 1])
            assert np.all(more.max(axis=0) <= few.max(axis=0) * (1 + 1e-9))
            some |= bool(few.any())
    assert some


def test_layers_that_do_not_fit_are_worth_nothing():
    model = rate_model("qwen3-32b", Phase.PREFILL)
    rates = rates_of(model, group_of(model, "L4", 1), 2)[0]
    group = group_of(model, "L4", 1)
    held = int(np.flatnonzero(rates)[-1])
    assert 0 < held < model.model.layers
    assert held * group.layer_bytes < group.free_bytes(np.array(0.0))
    assert (held + 2) * group.layer_bytes > 0.9 * group.free_bytes(np.array(0.0))


def test_a_single_stage_serves_the_largest_batch_that_is_timely_and_fits():
    model = rate_model("phi-4-14b", Phase.DECODE)
    group = group_of(model, "2xL40S", 2)
    rate = rates_of(model, group, 1)[0, 40]
    workload = model.request.workload
    context = workload.input_tokens_mean + workload.output_tokens_mean / 2
    free = group.free_bytes(np.array(2048.0)) - 40 * group.layer_bytes
    best = 0.0
    for batch in range(1, 2000):
        seconds = 40 * group.decode_layer_seconds(np.array([float(batch)]), context)[0] + 2e-3
        if seconds <= 0.060 and batch * 40 * group.kv_bytes_per_layer(context) <= free:
            best = max(best, batch / seconds)
    assert best * 0.95 < rate <= best


@pytest.mark.parametrize("stages", [2, 4])
def test_the_sequences_resident_by_littles_law_fit_in_memory(stages):
    model = rate_model("qwen3-32b", Phase.DECODE)
    group = group_of(model, "H100", 1)
    context = 620 + 130 / 2
    layers = np.arange(1, 65)
    free = group.free_bytes(np.array(2048.0)) - layers * group.layer_bytes
    longest = model.longest_budget([(group, NO_HOP)], stages)
    rates = model.rates(group, NO_HOP, stages, longest)[:, 1:]
    for row, served in enumerate(rates):
        budget = longest * BUDGET_RATIO**row
        assert budget <= 0.100 / stages
        resident = served * stages * budget * layers * group.kv_bytes_per_layer(context)
        assert np.all(resident <= np.maximum(free, 0) * (1 + 1e-9) + 1e-6)
        assert served.any()


def test_a_tighter_budget_serves_more_where_memory_is_short():
    model = rate_model("qwen3-32b", Phase.DECODE)
    rates = model.rates(group_of(model, "H100", 1), NO_HOP, 2, 0.050)[:, 44]
    assert rates[1:].max() > 1.2 * rates[0]


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.MIXED])
def test_a_looser_target_never_serves_much_less(phase):
    """Memory is full long before a loose target; rates then come from tighter budgets."""
    served = []
    for tpot_ms in (40, 80, 200, 1000, 1e6):
        model = rate_model("phi-4-14b", phase, slo=Slo(1500, tpot_ms))
        served.append(rates_of(model, group_of(model, "H100", 1), 2)[:, 20].max())
    assert all(after > 0.85 * before > 0 for before, after in pairwise(served))


def test_a_mixed_node_shares_its_time_between_prefill_and_decode():
    """Where neither target binds, requests/s = 1 / (in / prefill rate + out / decode rate)."""
    slo = Slo(ttft_ms=1e6, tpot_ms=1e6)
    rates = {}
    for phase in Phase:
        model = rate_model("phi-4-14b", phase, slo=slo)
        rates[phase] = rates_of(model, group_of(model, "H100", 1), 1)[0, 40]
    workload = SETUP.models["phi-4-14b"].workload
    time = workload.input_tokens_mean / rates[Phase.PREFILL]
    time += workload.output_tokens_mean / rates[Phase.DECODE]
    assert rates[Phase.MIXED] == pytest.approx(1 / time, rel=0.02)


@pytest.mark.parametrize(("ttft_ms", "tpot_ms"), [(1200, 1e6), (1e6, 40), (1200, 40)])
def test_both_targets_bind_a_mixed_node(ttft_ms, tpot_ms):
    def rate(slo):
        model = rate_model("phi-4-14b", Phase.MIXED, slo=slo)
        return rates_of(model, group_of(model, "H100", 1), 4)[:, 10].max()

    assert rate(Slo(ttft_ms, tpot_ms)) <= rate(Slo(1e6, 1e6))
    assert rate(Slo(10, tpot_ms)) == 0
    assert rate(Slo(ttft_ms, 5)) == 0


def test_a_prompt_longer_than_the_target_allows_serves_nothing():
    long = Workload(200_000, 400_000, 100, 200)
    model = rate_model("qwen3-32b", Phase.PREFILL, workload=long)
    assert rates_of(model, group_of(model, "8xH100", 8), 1)[0, 64] == 0


def test_a_slow_network_costs_a_pipeline_but_not_a_single_node():
    model = rate_model("qwen3-32b", Phase.PREFILL)
    node = PAPER.configurations["H100"]
    slow = replace(node, network_gbit_per_second=2.5)
    group = model.group(node, 1)
    fast_rate = rates_of(model, group, 2, model.network_hop(node))[0, 32]
    slow_rate = rates_of(model, group, 2, model.network_hop(slow))[0, 32]
    assert slow_rate < 0.9 * fast_rate
