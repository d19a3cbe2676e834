"""The performance model: seconds and bytes of one step on one group of tensor-parallel GPUs.

A phase's time per layer is (compute^4 + weights^4)^(1/4) + attention + overhead + two all-reduces.
All layers count as the mean layer of the model, with the embeddings spread over them. Everything
is vectorised over the number of tokens in a step; latency budgets and batches are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from corald.model.hardware import Configuration, GpuType
from corald.model.llm import BYTES_PER_GIB, LlmModel
from corald.templates.calibration import Calibration

PERFORMANCE_MODEL = "roofline-1"
"""Changes with every formula, and so does the fingerprint of libraries."""

_ACTIVATION_BYTES = 2

Floats = NDArray[np.float64]


def valid_tensor_parallel(model: LlmModel, tp: int) -> bool:
    """Whether heads divide over `tp` GPUs; fewer key-value heads are copied, if evenly."""
    if model.heads % tp:
        return False
    return model.latent_attention is not None or (
        model.kv_heads % tp == 0 if model.kv_heads >= tp else tp % model.kv_heads == 0
    )


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """`tp` GPUs of one node that hold the same layers in slices."""

    model: LlmModel
    gpu: GpuType
    configuration: Configuration
    tp: int
    calibration: Calibration

    def prefill_layer_seconds(self, tokens: Floats, prompt_tokens: float) -> Floats:
        """One layer over `tokens` input tokens, in prompts of `prompt_tokens`."""
        attention = self._attention_flops(prompt_tokens / 2) / (self._flops * self._attention)
        return self._layer_seconds(tokens) + tokens * attention

    def decode_layer_seconds(self, batch: Floats, context_tokens: float) -> Floats:
        """One layer for one further token of each of `batch` sequences."""
        reads = self.kv_bytes_per_layer(context_tokens) / self._bytes_per_second
        compute = self._attention_flops(context_tokens) / self._flops
        return self._layer_seconds(batch) + batch * max(reads, compute) / self._attention

    @property
    def step_overhead_seconds(self) -> float:
        """Scheduling and sampling, whatever the number of layers."""
        return self.calibration.factors(self.gpu.name).step_overhead_seconds

    @property
    def layer_bytes(self) -> float:
        """Weights of one layer and its share of the embeddings, over all GPUs of the group."""
        embeddings = self.model.embedding_parameters * self.model.weight_bytes
        return self.model.layer_weight_bytes_mean + embeddings / self.model.layers

    def kv_bytes_per_layer(self, context_tokens: float) -> float:
        """Cache of one sequence in one layer, with the copies that tensor parallelism makes."""
        heads = 1 if self.model.latent_attention is not None else self.model.kv_heads
        copies = max(1.0, self.tp / heads)
        return self.model.kv_bytes(context_tokens) / self.model.layers * copies

    def free_bytes(self, tokens: Floats) -> Floats:
        """Memory for weights and caches when a step takes up to `tokens` tokens."""
        usable = self.gpu.memory_gib * BYTES_PER_GIB * (1 - self.calibration.memory_reserve)
        width = max(self.model.intermediate, self._active_experts * self.model.moe_intermediate)
        activations = tokens * (4 * self.model.hidden * self.tp + 2 * width) * _ACTIVATION_BYTES
        return np.asarray(self.tp * usable - activations, dtype=np.float64)

    def hop_bytes(self) -> float:
        """What one token sends to the next stage."""
        return self.model.hidden * _ACTIVATION_BYTES

    def _layer_seconds(self, tokens: Floats) -> Floats:
        factors = self.calibration.factors(self.gpu.name)
        routed = self._routed_parameters
        dense = self.model.layer_parameters_mean - routed
        active = routed * self._active_share
        peak = self._peak_flops
        per_token = 2 * (dense / factors.compute + active / factors.moe_compute) / peak
        reads = self._weight_reads(tokens) / self._bytes_per_second
        roofline = ((tokens * per_token) ** 4 + reads**4) ** 0.25
        return np.asarray(
            roofline + factors.layer_overhead_seconds + 2 * self._allreduce_seconds(tokens)
        )

    def _weight_reads(self, tokens: Floats) -> Floats:
        """Bytes of one layer's weights that a step touches; few tokens reach few experts."""
        routed = self._routed_parameters * self.model.routed_weight_bytes
        unrouted = self.model.layer_weight_bytes_mean - routed
        head = self.model.vocab * self.model.hidden * self.model.weight_bytes / self.model.layers
        reached = 1 - (1 - self._active_share) ** tokens
        return np.asarray(unrouted + head + routed * reached)

    def _allreduce_seconds(self, tokens: Floats) -> Floats:
        if self.tp == 1:
            return np.zeros_like(tokens)
        link = self.configuration.link
        bus = self.calibration.allreduce_bytes_per_second(self.gpu, link, self.tp)
        alpha = self.calibration.allreduce_alpha_seconds(link, self.tp)
        traffic = tokens * self.hop_bytes() * 2 * (self.tp - 1) / self.tp
        return np.asarray(alpha + traffic / bus)

    def _attention_flops(self, context_tokens: float) -> float:
        """Of one token against its context, mean over the layers."""
        model = self.model
        seen = context_tokens
        if model.sliding_window is not None:
            share = model.sliding_layers / model.layers
            seen = (1 - share) * seen + share * min(seen, model.sliding_window)
        return 4 * seen * model.heads * model.head_dim

    @property
    def _active_experts(self) -> int:
        return self.model.experts_per_token + self.model.shared_experts

    @property
    def _active_share(self) -> float:
        return self.model.experts_per_token / self.model.experts if self.model.experts else 0.0

    @property
    def _routed_parameters(self) -> float:
        """Of one layer, mean over the layers."""
        model = self.model
        return model.moe_layers * model.experts * model.expert_parameters / model.layers

    @property
    def _peak_flops(self) -> float:
        fp8 = self.gpu.fp8_tflops if self.model.weight_bytes <= 1 else None
        return self.tp * (fp8 or self.gpu.bf16_tflops) * 1e12

    @property
    def _flops(self) -> float:
        """What dense products reach on the group; attention computes in 16 bits."""
        factors = self.calibration.factors(self.gpu.name)
        return self.tp * self.gpu.bf16_tflops * 1e12 * factors.compute

    @property
    def _bytes_per_second(self) -> float:
        factors = self.calibration.factors(self.gpu.name)
        return self.tp * self.gpu.bandwidth_gb_per_second * 1e9 * factors.bandwidth

    @property
    def _attention(self) -> float:
        return self.calibration.factors(self.gpu.name).attention
