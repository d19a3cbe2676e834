"""Amazon EC2 as a provider: GPU machines on demand and on spot."""

from __future__ import annotations

from corald_aws.provider import AwsProvider

__all__ = ["AwsProvider"]
