"""The language models that are served, as far as cost and speed depend on them."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_PER_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Ranks and head widths of multi-head latent attention (DeepSeek), where the cache is low-rank.

    The cache of a token is `kv_rank + rope_dim` elements per layer, whatever the number of heads.
    """

    query_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class LlmModel:
    """Architecture of one open LLM; sizes in elements unless the name says otherwise."""

    name: str
    """The name used in events and policies, for example `qwen3-32b`."""
    huggingface_id: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the dense MLP; 0 when every layer is a mixture of experts."""
    experts: int
    """0 for a dense model."""
    experts_per_token: int
    moe_intermediate: int
    shared_experts: int
    dense_layers: int
    """Layers with a dense MLP; equals `layers` for a dense model."""
    vocab: int
    tied_embeddings: bool
    gated_mlp: bool
    sliding_window: int | None
    sliding_layers: int
    """Layers whose attention sees only the window."""
    weight_bytes: float
    """Bytes per weight as served (2 = bf16, 1 = fp8); experts may differ, see below."""
    kv_bytes_per_token: float
    """Key and value bytes for one token over all layers, as served."""
    parameters_billions: float
    """As published."""
    active_parameters_billions: float
    source: str
    expert_weight_bytes: float | None = None
    """Bytes per weight of the routed experts where they differ (0.53 = mxfp4 with scales)."""
    latent_attention: LatentAttention | None = None

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return self.layers - self.dense_layers

    @property
    def attention_parameters_per_layer(self) -> int:
        """Query, key, value and output projections of one layer."""
        if (mla := self.latent_attention) is not None:
            query = mla.query_rank * (self.hidden + self.heads * (mla.nope_dim + mla.rope_dim))
            down = self.hidden * (mla.kv_rank + mla.rope_dim)
            up = mla.kv_rank * self.heads * (mla.nope_dim + mla.value_dim)
            return query + down + up + self.heads * mla.value_dim * self.hidden
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def dense_mlp_parameters_per_layer(self) -> int:
        """All matrices of the MLP in one *dense* layer; 0 when there is none."""
        return self._mlp_matrices * self.hidden * self.intermediate

    @property
    def expert_parameters(self) -> int:
        """All matrices of one expert in one layer; 0 for a dense model."""
        return self._mlp_matrices * self.hidden * self.moe_intermediate

    @property
    def router_parameters_per_layer(self) -> int:
        """The gate that picks experts in one mixture-of-experts layer."""
        return self.hidden * self.experts

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and output head, which are one matrix when tied."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def layer_parameters_mean(self) -> float:
        """Weights of all layers over the number of layers, embeddings left out."""
        return (self._routed_parameters + self._unrouted_layer_parameters) / self.layers

    @property
    def layer_weight_bytes_mean(self) -> float:
        """Bytes that one layer occupies as served, mean over the layers."""
        return (
            self._routed_parameters * self.routed_weight_bytes
            + self._unrouted_layer_parameters * self.weight_bytes
        ) / self.layers

    @property
    def routed_weight_bytes(self) -> float:
        """Bytes per weight of a routed expert."""
        return self.weight_bytes if self.expert_weight_bytes is None else self.expert_weight_bytes

    @property
    def weight_gib(self) -> float:
        """All weights as served."""
        embeddings = self.embedding_parameters * self.weight_bytes
        return (self.layers * self.layer_weight_bytes_mean + embeddings) / BYTES_PER_GIB

    @property
    def computed_parameters_billions(self) -> float:
        """From the shapes; norms and biases, less than 0.1 % together, are left out."""
        return (self.layers * self.layer_parameters_mean + self.embedding_parameters) / 1e9

    def kv_bytes(self, context_tokens: float) -> float:
        """Cache of one sequence over all layers; a sliding layer keeps no more than its window."""
        window = context_tokens if self.sliding_window is None else self.sliding_window
        full = (self.layers - self.sliding_layers) * context_tokens
        sliding = self.sliding_layers * min(context_tokens, window)
        return self.kv_bytes_per_token / self.layers * (full + sliding)

    @property
    def _mlp_matrices(self) -> int:
        return 3 if self.gated_mlp else 2

    @property
    def _routed_parameters(self) -> int:
        return self.moe_layers * self.experts * self.expert_parameters

    @property
    def _unrouted_layer_parameters(self) -> int:
        """What every token passes: attention, dense MLPs, shared experts and routers."""
        per_moe_layer = (
            self.shared_experts * self.expert_parameters + self.router_parameters_per_layer
        )
        return (
            self.layers * self.attention_parameters_per_layer
            + self.dense_layers * self.dense_mlp_parameters_per_layer
            + self.moe_layers * per_moe_layer
        )
