from __future__ import annotations

import asyncio
import random

import pytest

from corald.config.catalog import load_catalog
from corald.errors import InsufficientCapacityError, OutcomeUnknownError
from corald.market.faults import Call
from corald.market.marketplace import Marketplace
from corald.market.stock import Stock
from corald.model.fleet import Listing
from corald.model.market import Market, OfferingKey
from corald.plugin import ProviderContext
from corald.testing.clock import ManualClock
from corald.testing.conformance import ProviderConformance, make_request
from corald.testing.scripted import Delay, Fail, Pass, Reply, ScriptedProvider
from corald.testing.world import MarketWorld

PRICES = {Market.ON_DEMAND: 1.0, Market.SPOT: 0.4}
SPOT = OfferingKey("scripted", "r1", "r1-a", "g6.xlarge", Market.SPOT)
CATALOG = load_catalog()


def scripted_world() -> MarketWorld:
    clock = ManualClock()
    stock = [
        Stock(OfferingKey("scripted", "r1", zone, kind, market), usd, 1.0, 20, "G", 4.0)
        for zone in ("r1-a", "r1-b")
        for kind in ("g6.xlarge", "g5.xlarge")
        for market, usd in PRICES.items()
    ]
    market = Marketplace(stock, rng=random.Random(1), start=clock.now())
    context = ProviderContext("scripted", "prod", CATALOG, clock)
    return MarketWorld(market, clock, "prod", lambda: ScriptedProvider(market, context))


class TestScriptedProvider(ProviderConformance):
    @pytest.fixture
    def world(self):
        return scripted_world()


def test_a_script_is_played_in_order_and_then_the_marketplace_answers():
    world = scripted_world()
    provider = world.provider()
    provider.script(
        Call.LAUNCH, Fail(InsufficientCapacityError("none", code="ICE")), Pass(), where="*/spot"
    )

    async def play():
        on_demand = make_request(world, OfferingKey(*_where(SPOT), Market.ON_DEMAND), "t-0")
        await provider.launch(on_demand)  # the script is about spot
        with pytest.raises(InsufficientCapacityError):
            await provider.launch(make_request(world, SPOT, "t-1"))
        await provider.launch(make_request(world, SPOT, "t-1"))

    asyncio.run(play())
    ledger = world.ledger()
    assert [entry.token for entry in ledger.calls(Call.LAUNCH)] == ["t-0", "t-1", "t-1"]
    assert [entry.detail for entry in ledger.refusals()] == ["ICE"]
    assert set(ledger.machines_by_token()) == {"t-0", "t-1"}
    assert provider.unplayed == 0


def test_an_error_after_the_effect_leaves_the_machine():
    world = scripted_world()
    provider = world.provider()
    provider.script(Call.LAUNCH, Fail(OutcomeUnknownError("lost"), after_effect=True))

    async def play():
        with pytest.raises(OutcomeUnknownError):
            await provider.launch(make_request(world, SPOT))

    asyncio.run(play())
    assert len(world.ledger().alive()) == 1


def test_a_reply_stands_for_as_many_calls_as_it_says():
    world = scripted_world()
    provider = world.provider()
    nothing = Listing((), complete=False, note="scripted")
    provider.script(Call.LIST, Reply(nothing), times=2)

    async def play():
        return [await provider.list_instances() for _ in range(3)]

    replies = asyncio.run(play())
    assert replies == [nothing, nothing, Listing((), complete=True)]


def test_a_delayed_call_arrives_first_and_has_its_effect_later():
    world = scripted_world()
    provider = world.provider()
    provider.script(Call.LAUNCH, Delay(300))
    start = world.now()

    async def play():
        task = asyncio.create_task(provider.launch(make_request(world, SPOT)))
        await world.advance(299)
        assert not task.done()
        await world.advance(2)
        await task

    asyncio.run(play())
    (call,) = world.ledger().calls(Call.LAUNCH)
    (born,) = world.ledger().effects("launched")
    assert (call.at - start, born.at - start) == (0, 300)


def _where(key):
    return key.provider, key.region, key.zone, key.instance_type
