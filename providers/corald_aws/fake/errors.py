"""Errors as AWS writes them: a code, an HTTP status and a message."""

from __future__ import annotations

from collections.abc import Mapping

from corald.errors import ProviderError
from corald.model.fleet import LaunchRequest
from corald.model.market import Market


class AwsError(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


_MARKET_CODES: Mapping[str, tuple[str, int]] = {
    "rate-limit": ("RequestLimitExceeded", 503),
    "token-mismatch": ("IdempotentParameterMismatch", 400),
    "token-terminated": ("IdempotentInstanceTerminated", 400),
    "not-sold": ("Unsupported", 400),
    "sold-out": ("InsufficientInstanceCapacity", 500),
}


def from_market(error: ProviderError, request: LaunchRequest | None = None) -> AwsError:
    """Say the marketplace's error in the words of EC2."""
    if error.code == "quota":
        spot = request is not None and request.offering.market is Market.SPOT
        code = "MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded"
        return AwsError(code, str(error))
    code, status = _MARKET_CODES[error.code]
    return AwsError(code, str(error), status)
