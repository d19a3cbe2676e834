from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from corald.config.catalog import load_catalog
from corald.errors import ConfigError, ProviderError
from corald.model.market import Market
from corald.plugin import ProviderContext
from corald.testing.clock import ManualClock
from corald.testing.conformance import make_request
from corald.testing.world import MarketWorld
from corald_simulated import SimulatedProvider

CATALOG = load_catalog()


def a_provider(clock=None, name="sim", extras=None, **config):
    context = ProviderContext(name, "prod", CATALOG, clock or ManualClock(), extras or {})
    return SimulatedProvider.from_config({"regions": ["us-east-1"], **config}, context)


def a_day(**config):
    """Launch whatever spot is cheapest every hour, for a day; give the ledger as text."""
    clock = ManualClock()
    provider = a_provider(clock, **config)
    world = MarketWorld(provider.market, clock, "prod", lambda: provider)

    async def play():
        for hour in range(24):
            offers = [o for o in await provider.offerings() if o.key.market is Market.SPOT]
            cheapest = min(offers, key=lambda o: o.usd_per_hour).key
            with suppress(ProviderError):  # sold out is as good an event as any
                await provider.launch(make_request(world, cheapest, f"t-{hour}"))
            await clock.advance(3600)
            await provider.list_instances()

    asyncio.run(play())
    return provider.market.ledger.dump()


def test_equal_seeds_make_equal_days_and_others_do_not():
    first = a_day(seed=1, interruptions_per_hour=0.2)
    assert first == a_day(seed=1, interruptions_per_hour=0.2)
    assert first != a_day(seed=2, interruptions_per_hour=0.2)
    assert '"noticed"' in first
    assert '"repriced"' in first


def test_the_world_does_not_depend_on_how_often_it_is_looked_at():
    seldom, often = ManualClock(), ManualClock()
    one, two = a_provider(seldom), a_provider(often)

    async def play():
        await seldom.advance(86_400)
        for _ in range(288):
            await often.advance(300)
            await two.offerings()
        return await one.offerings(), await two.offerings()

    once, many = asyncio.run(play())
    assert once == many


def test_what_is_sold_is_the_catalogue_of_the_cloud_at_its_prices():
    offers = asyncio.run(a_provider(cloud="gcp", regions=["us-central1"]).offerings())
    assert {o.key.region for o in offers} == {"us-central1"}
    for offer in offers:
        kind = CATALOG.instance_types[offer.key.instance_type]
        (price,) = [p for p in kind.prices if p.region == "us-central1"]
        assert kind.cloud == "gcp"
        assert offer.key.zone in price.zones
        assert offer.on_demand_usd_per_hour == price.on_demand_usd_per_hour
        if offer.key.market is Market.SPOT:  # Google's spot prices stand for weeks
            assert offer.usd_per_hour == pytest.approx(price.spot_usd_per_hour)


def test_large_gpus_are_scarcer_and_their_spot_more_so():
    offers = asyncio.run(a_provider().offerings())

    def mean(kind, market):
        found = [
            o.available for o in offers if o.key.instance_type == kind and o.key.market is market
        ]
        return sum(found) / len(found)

    assert mean("g6.4xlarge", Market.ON_DEMAND) > mean("p5.48xlarge", Market.ON_DEMAND)
    assert mean("g6.4xlarge", Market.SPOT) > 5 * mean("p5.48xlarge", Market.SPOT)


def test_spot_never_costs_more_than_on_demand_and_moves():
    clock = ManualClock()
    provider = a_provider(clock, spot_volatility=0.5)

    async def play():
        seen = []
        for _ in range(24):
            await clock.advance(3600)
            seen.append({o.key: o for o in await provider.offerings()})
        return seen

    seen = asyncio.run(play())
    spot = [key for key in seen[0] if key.market is Market.SPOT]
    assert all(
        hour[key].usd_per_hour <= hour[key].on_demand_usd_per_hour for hour in seen for key in spot
    )
    moved = sum(seen[0][key].usd_per_hour != seen[-1][key].usd_per_hour for key in spot)
    assert moved > 0.9 * len(spot)


def test_overrides_fix_the_average_and_the_last_match_holds():
    capacity = {
        "turnover_per_hour": 0,
        "overrides": {"*": 3, "us-east-1/use1-az1/*/spot": 0},
    }
    for offer in asyncio.run(a_provider(capacity=capacity).offerings()):
        dry = offer.key.zone == "use1-az1" and offer.key.market is Market.SPOT
        assert offer.available == (0 if dry else 3)


def test_constant_supply_survives_interruptions():
    clock = ManualClock()
    provider = a_provider(
        clock,
        interruptions_per_hour=60,
        capacity={"turnover_per_hour": 0, "overrides": {"*": 3}},
    )
    world = MarketWorld(provider.market, clock, "prod", lambda: provider)
    spot = next(i.key for i in provider.market.matching("*/spot"))

    async def play():
        await provider.launch(make_request(world, spot))
        await clock.advance(86_400)
        await provider.list_instances()

    asyncio.run(play())
    assert provider.market.ledger.effects("terminated")
    assert provider.market.stock(spot).obtainable == 3


def test_a_restarted_provider_finds_its_machines_in_the_shared_market():
    clock = ManualClock()
    first = a_provider(clock)
    second = a_provider(clock, extras={"market": first.market})
    assert second.market is first.market


def test_a_world_that_starts_later_hands_out_other_ids():
    early, late = ManualClock(start=1000), ManualClock(start=2000)
    ids = set()
    for clock in (early, late):
        provider = a_provider(clock, capacity={"overrides": {"*": 5}, "turnover_per_hour": 0})
        world = MarketWorld(provider.market, clock, "prod", lambda provider=provider: provider)

        async def play(provider=provider, world=world):
            offering = (await provider.offerings())[0].key
            return (await provider.launch(make_request(world, offering))).id

        ids.add(asyncio.run(play()))
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"regions": ["us-esat-1"]}, ["providers.sim.regions", "us-esat-1", "us-east-1"]),
        ({"sed": 3}, ["providers.sim.sed", "did you mean seed"]),
        ({"boot_seconds": -1}, ["providers.sim.boot_seconds"]),
        ({"boot_seconds": float("nan")}, ["providers.sim.boot_seconds"]),
        ({"capacity": {"overrides": {"us-east-1/p9*": 1}}}, ["capacity.overrides", "p9*"]),
        ({"cloud": "azure"}, ["providers.sim.cloud"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_do(config, words):
    with pytest.raises(ConfigError) as caught:
        a_provider(**config)
    for word in words:
        assert word in str(caught.value)
