from __future__ import annotations

import pytest

from corald.config.catalog import load_catalog
from corald.plugin import ProviderContext
from corald.testing.clock import ManualClock
from corald.testing.conformance import ProviderConformance
from corald.testing.world import MarketWorld
from corald_simulated import SimulatedProvider

CATALOG = load_catalog()
CONFIG = {
    "regions": ["us-east-1"],
    "interruptions_per_hour": 0,
    "capacity": {"turnover_per_hour": 0, "overrides": {"*": 20}},
}


class TestSimulatedProvider(ProviderConformance):
    @pytest.fixture
    def world(self):
        clock = ManualClock()
        context = ProviderContext("sim-aws", "prod", CATALOG, clock)
        market = SimulatedProvider.from_config(CONFIG, context).market
        shared = ProviderContext("sim-aws", "prod", CATALOG, clock, {"market": market})
        return MarketWorld(
            market, clock, "prod", lambda: SimulatedProvider.from_config(CONFIG, shared)
        )
