"""The settings of an AWS account."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Text = Annotated[str, Field(min_length=1, max_length=256)]
Subnet = Annotated[str, Field(pattern=r"^subnet-[0-9a-z-]+$")]
ZoneId = Annotated[str, Field(pattern=r"^[a-z0-9-]+-az[0-9]+$")]


class Region(BaseModel):
    """Where and as what machines start in one region."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    subnets: Annotated[dict[ZoneId, Subnet], Field(min_length=1)]
    """A subnet for each zone, by zone *id* (`use1-az1`); other zones are not used."""
    image_id: Annotated[str, Field(pattern=r"^ami-[0-9a-z-]+$")]
    security_groups: Annotated[list[Annotated[str, Field(pattern=r"^sg-")]], Field(min_length=1)]


class Settings(BaseModel):
    """What `[providers.NAME]` with `plugin = "aws"` may say."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    regions: Annotated[dict[Text, Region], Field(min_length=1)]
    instance_profile: Text | None = None
    """Name of the IAM instance profile that machines run as."""
    key_name: Text | None = None
    volume_gib: Annotated[int, Field(ge=8, le=65_536)] | None = None
    """Size of the root volume; None: as the image says."""
    profile: Text | None = None
    """Profile of the SDK's own configuration; None: the SDK's usual chain of credentials."""
    pricing_region: Text = "us-east-1"
    """Which endpoint of the Price List API to ask; there are few."""
    endpoint_url: Text | None = None
    test_mode: bool = False
    """Allows `endpoint_url`: signed requests go wherever it says."""

    @model_validator(mode="after")
    def _endpoint_only_in_tests(self) -> Self:
        if self.endpoint_url is not None and not self.test_mode:
            raise ValueError(
                "endpoint_url sends signed requests to another host: it needs test_mode = true,"
                " and neither belongs in production"
            )
        return self
