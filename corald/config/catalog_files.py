"""The catalogue's files: their schema, and errors that say file, path and remedy."""

from __future__ import annotations

import tomllib
from importlib.resources.abc import Traversable
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from corald.errors import ConfigError

T = TypeVar("T")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Day = Annotated[str, Field(pattern=r"^20\d\d-\d\d(-\d\d)?$")]
"""A day, or a month where the source tells no day."""


class Row(BaseModel):
    """Base of every table: no coercion, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class GpuRow(Row):
    """One table of `gpus.toml`, under the GPU's name."""

    vendor: Literal["nvidia", "amd"]
    memory_gib: Positive
    bandwidth_gb_per_second: Positive
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    link_gb_per_second: NotNegative
    pcie_gb_per_second: Positive
    supports_bf16: bool = True
    source: Text


class ConfigurationRow(Row):
    """One entry of `configurations.toml`, under the configuration's name."""

    gpu: Text
    gpus: Count
    link: Literal["nvlink", "pcie"]
    network_gbit_per_second: Positive


class PriceRow(Row):
    """What an instance type costs in one region; `as_of` and `source` default to the file's."""

    region: Text
    zones: Annotated[list[Text], Field(min_length=1)]
    on_demand: Positive
    spot: Positive | None = None
    as_of: Day | None = None
    source: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.spot is not None and self.spot > self.on_demand:
            raise ValueError(
                f"spot {self.spot} exceeds on_demand {self.on_demand}; correct one of them, "
                "or leave spot out"
            )
        if len(set(self.zones)) < len(self.zones):
            raise ValueError("a zone is named twice; name it once")
        return self


class InstanceRow(Row):
    """One machine that a cloud rents out."""

    configuration: Text
    vcpus: Count
    memory_gib: Positive
    network_gbit_per_second: Positive
    quota_family: Text
    zones_verified: bool = True
    prices: Annotated[list[PriceRow], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({price.region for price in self.prices}) < len(self.prices):
            raise ValueError("a region has two prices; keep one")
        return self


class InstanceFile(Row):
    """One `instances_*.toml`: the instance types of one cloud."""

    cloud: Literal["aws", "gcp"]
    as_of: Day
    source: Text
    instances: dict[Text, InstanceRow]


class LatentAttentionRow(Row):
    """Multi-head latent attention, for models that have it."""

    query_rank: Count
    kv_rank: Count
    rope_dim: Count
    nope_dim: Count
    value_dim: Count


class ModelRow(Row):
    """One table of `models.toml`, under the model's name."""

    huggingface_id: Text
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: CountOrNone = 0
    experts: CountOrNone = 0
    experts_per_token: CountOrNone = 0
    moe_intermediate: CountOrNone = 0
    shared_experts: CountOrNone = 0
    dense_layers: CountOrNone | None = None
    vocab: Count
    tied_embeddings: bool = False
    gated_mlp: bool = True
    sliding_window: Count | None = None
    sliding_layers: CountOrNone = 0
    latent_attention: LatentAttentionRow | None = None
    weight_bytes: Positive
    expert_weight_bytes: Positive | None = None
    kv_bytes_per_token: Positive
    parameters_billions: Positive
    active_parameters_billions: Positive | None = None
    source: Text

    @property
    def layers_with_dense_mlp(self) -> int:
        """All layers of a dense model and none of a mixture of experts, unless given."""
        if self.dense_layers is not None:
            return self.dense_layers
        return 0 if self.experts else self.layers

    @model_validator(mode="after")
    def _check(self) -> Self:
        dense = self.layers_with_dense_mlp
        moe = self.layers - dense
        rules = (
            (self.heads % self.kv_heads == 0, "heads must be a multiple of kv_heads"),
            (moe >= 0, "dense_layers must not exceed layers"),
            ((dense > 0) == (self.intermediate > 0), "give intermediate iff a layer is dense"),
            (
                (moe > 0) == (min(self.experts_per_token, self.moe_intermediate) > 0),
                "give experts, experts_per_token and moe_intermediate iff a layer is not dense",
            ),
            (self.experts_per_token <= self.experts, "experts_per_token must not exceed experts"),
            (self.sliding_layers <= self.layers, "sliding_layers must not exceed layers"),
            (
                (self.sliding_layers > 0) == (self.sliding_window is not None),
                "give sliding_window and sliding_layers together",
            ),
        )
        for holds, remedy in rules:
            if not holds:
                raise ValueError(remedy)
        return self


class TraceRow(Row):
    """Token statistics of one request trace."""

    input_tokens_mean: Positive
    input_tokens_p95: Positive
    output_tokens_mean: Positive
    output_tokens_p95: Positive
    source: Text


class ServedModelRow(Row):
    """What the paper asks of one model."""

    prefill_slo_ms: Positive
    decode_slo_ms: Positive
    trace: Text


class SetupRow(Row):
    """One of the paper's experiment setups."""

    models: list[Text]
    gpus: list[Text]
    regions: list[Text]
    requests_per_second: Positive


class WorkloadFile(Row):
    """The paper's `workload.toml`."""

    traces: dict[Text, TraceRow]
    models: dict[Text, ServedModelRow]
    setups: dict[Text, SetupRow]


GPUS = TypeAdapter(dict[Text, GpuRow])
CONFIGURATIONS = TypeAdapter(dict[Text, ConfigurationRow])
INSTANCES = TypeAdapter(InstanceFile)
MODELS = TypeAdapter(dict[Text, ModelRow])
WORKLOAD = TypeAdapter(WorkloadFile)


def read(file: Traversable, schema: TypeAdapter[T]) -> T:
    """Parse one TOML file.

    Raises:
        ConfigError: It cannot be read, is no TOML, or breaks the schema.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; create it or point elsewhere") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}; correct the file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}; correct the syntax") from error
    try:
        return schema.validate_python(data)
    except ValidationError as error:
        raise fault(file, *_first_fault(error)) from None


def fault(file: Traversable, path: tuple[str | int, ...], remedy: str) -> ConfigError:
    """Make the error for one place in one file; `path` holds keys and list indices."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in path)
    return ConfigError(f"{file}: {steps.removeprefix('.')}: {remedy}")


def _key(step: str) -> str:
    return f'"{step}"' if "." in step else step


def _first_fault(error: ValidationError) -> tuple[tuple[str | int, ...], str]:
    first, *others = error.errors(include_url=False)
    known = {
        "extra_forbidden": "unknown key; remove it or correct its spelling",
        "missing": "missing; add this key",
    }
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] not in known and first["type"] != "value_error":
        message = f"{message}, but it is {first['input']!r}; correct it"
    more = f" (and {len(others)} more)" if others else ""
    return first["loc"], known.get(first["type"], message) + more
