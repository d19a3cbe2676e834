"""The simulated provider: a marketplace stocked from the catalogue, or one that is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corald.market.marketplace import Marketplace
from corald.market.provider import MarketProvider
from corald.plugin import ProviderContext, read_settings
from corald_simulated.settings import Settings
from corald_simulated.world import build_market


class SimulatedProvider(MarketProvider):
    """Rents out machines that do not exist; `market` is the world behind it.

    A context with `extras["market"]`, such as the `market` of an earlier provider, is sold from
    that one: so the machines outlive a restart.
    """

    @classmethod
    def from_config(cls, config: Mapping[str, Any], context: ProviderContext) -> SimulatedProvider:
        """Build it, or raise ConfigError."""
        settings = read_settings(Settings, config, context.name)
        shared: Marketplace | None = context.extras.get("market")
        return cls(shared or build_market(settings, context), context)
