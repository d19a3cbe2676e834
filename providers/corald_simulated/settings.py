"""The settings of a simulated provider."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[float, Field(ge=0, le=100_000)]


class Capacity(BaseModel):
    """How many machines there are on average, of each offering."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    default: Count = 24.0
    """Of a small GPU on demand; larger machines are scarcer, and spot more so."""
    turnover_per_hour: Annotated[float, Field(ge=0, le=60)] = 0.5
    """How fast supply changes; 0 keeps it constant."""
    overrides: dict[str, Count] = Field(default_factory=dict)
    """Averages by a shell-style pattern over `region/zone/type/market`; the last match holds."""


class Settings(BaseModel):
    """What `[providers.NAME]` with `plugin = "simulated"` may say."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    cloud: Literal["aws", "gcp"] = "aws"
    """Whose instance types and prices of the catalogue are sold."""
    regions: Annotated[list[str], Field(min_length=1)]
    seed: int = 1
    capacity: Capacity = Capacity()
    boot_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    interruptions_per_hour: Annotated[float, Field(ge=0, le=60)] = 0.02
    """Of each spot machine; 0 switches interruptions off, those by scarcity too."""
    notice_seconds: Annotated[float, Field(ge=0, le=86_400)] | None = None
    """Between notice and end; None: 120 as AWS, 30 as Google Cloud."""
    spot_volatility: Annotated[float, Field(ge=0, le=1)] | None = None
    """Relative standard deviation of spot prices; None: 0.15 as AWS, 0 as Google Cloud."""
    reports_availability: bool = True
    """Whether offerings tell how many machines are left, as real clouds do not."""
