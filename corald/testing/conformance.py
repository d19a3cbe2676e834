"""The tests that every provider passes: subclass `ProviderConformance` and give it a world.

    class TestMyProvider(ProviderConformance):
        @pytest.fixture
        def world(self):
            world = MyWorld()
            yield world
            world.close()

They judge by the cloud's own ledger, never by what the provider says of itself.
"""
# ruff: noqa: ARG002, S101 - these are tests: they assert, and not each needs all of the scenario

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from corald.errors import (
    CredentialsRejectedError,
    InstanceGoneError,
    InsufficientCapacityError,
    InvalidRequestError,
    OutcomeUnknownError,
    ProviderError,
    QuotaExceededError,
    ThrottledError,
    TransientError,
)
from corald.market.faults import Call
from corald.market.ledger import Effect
from corald.model.events import InterruptionNoticed
from corald.model.fleet import (
    TAG_CLUSTER,
    TAG_INTENT,
    TAG_MANAGED_BY,
    Instance,
    InstanceState,
    LaunchRequest,
    TerminateOutcome,
)
from corald.model.market import Market, OfferingKey
from corald.plugin import Provider
from corald.testing.world import CloudWorld

Scenario = Callable[[Any, CloudWorld, Provider], Awaitable[None]]
UNHEARD_OF = "SomethingNobodyHasHeardOf"


def scenario(body: Scenario) -> Callable[[Any, CloudWorld], None]:
    """Make a test of an asynchronous body, which gets the world and a provider of it."""

    def test(self: Any, world: CloudWorld) -> None:  # noqa: ANN401 - any suite
        async def play() -> None:
            provider = world.provider()
            try:
                await body(self, world, provider)
            finally:
                await provider.close()

        asyncio.run(play())

    test.__name__ = cast("Any", body).__name__
    test.__doc__ = body.__doc__
    return test


def make_request(
    world: CloudWorld,
    offering: OfferingKey,
    token: str = "t-1",  # noqa: S107 - an idempotency token
) -> LaunchRequest:
    """Build a request as corald does, with the tags of the world's cluster."""
    tags = {
        TAG_CLUSTER: world.cluster,
        TAG_MANAGED_BY: "corald",
        TAG_INTENT: f"intent-of-{token}",
    }
    return LaunchRequest(
        token=token,
        name=f"corald-{token}",
        offering=offering,
        image="",
        user_data="#!/bin/sh\ntrue\n",
        tags=tuple(sorted(tags.items())),
    )


async def some_offering(provider: Provider, market: Market = Market.ON_DEMAND) -> OfferingKey:
    """Choose an offering of a market, always the same one."""
    return min(o.key for o in await provider.offerings() if o.key.market is market)


async def listed(provider: Provider) -> dict[str, Instance]:
    """List the machines by id; the listing must be complete."""
    listing = await provider.list_instances()
    assert listing.complete, listing.note
    return {instance.id: instance for instance in listing.instances}


class ProviderConformance:
    """Offers, launches, listings, terminations, notices: what corald relies on.

    A subclass gives the fixture `world`, a `CloudWorld` with at least two zones, spot and
    on-demand, in which more than five machines of each offering may be had.
    """

    # Offerings

    @scenario
    async def test_offerings_carry_usable_prices_and_the_providers_name(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offerings = await provider.offerings()
        assert offerings
        assert len({o.key for o in offerings}) == len(offerings)
        assert {o.key.provider for o in offerings} == {provider.name}
        for offering in offerings:
            assert math.isfinite(offering.usd_per_hour)
            assert offering.usd_per_hour > 0
            assert math.isfinite(offering.on_demand_usd_per_hour)
            assert offering.on_demand_usd_per_hour > 0
            if offering.key.market is Market.ON_DEMAND:
                assert offering.usd_per_hour == offering.on_demand_usd_per_hour

    @scenario
    async def test_a_failing_read_of_offerings_is_transient(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        world.fail(Call.OFFERINGS, "transient", times=None)
        with pytest.raises(TransientError):
            await provider.offerings()

    @scenario
    async def test_a_failing_listing_is_transient(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        world.fail(Call.LIST, UNHEARD_OF, times=None)
        with pytest.raises(TransientError):
            await provider.list_instances()

    # Launching

    @scenario
    async def test_a_launched_machine_is_the_one_asked_for_and_tagged_at_birth(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        for market in (Market.ON_DEMAND, Market.SPOT):
            offering = await some_offering(provider, market)
            request = make_request(world, offering, f"t-{market}")
            instance = await provider.launch(request)
            assert instance.offering == offering
            assert instance.provider == provider.name
            assert instance.state is InstanceState.PENDING
            (born,) = [
                e for e in world.ledger().effects(Effect.LAUNCHED) if e.token == request.token
            ]
            assert born.instance == instance.id
            assert set(request.tags) <= set(born.tags)

    @scenario
    async def test_a_machine_boots_by_itself_and_is_listed_with_its_tags(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = make_request(world, await some_offering(provider))
        launched = await provider.launch(request)
        await world.advance(world.boot_seconds + 1)
        (instance,) = (await listed(provider)).values()
        assert instance.id == launched.id
        assert instance.offering == request.offering
        assert instance.state is InstanceState.RUNNING
        assert instance.address
        assert instance.token == request.token
        assert instance.launched_at is not None
        assert set(request.tags) <= set(instance.tags)

    @scenario
    async def test_a_request_without_the_clusters_tag_is_refused(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = replace(make_request(world, await some_offering(provider)), tags=())
        with pytest.raises(InvalidRequestError):
            await provider.launch(request)
        assert not world.ledger().effects()

    @scenario
    async def test_one_token_rents_one_machine_whoever_asks_again(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = make_request(world, await some_offering(provider))
        first = await provider.launch(request)
        again = await provider.launch(request)
        restarted = world.provider()
        after_restart = await restarted.launch(request)
        await restarted.close()
        assert first.id == again.id == after_restart.id
        assert world.ledger().machines_by_token() == {request.token: (first.id,)}

    @scenario
    async def test_a_token_with_another_request_rents_nothing_more(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = make_request(world, await some_offering(provider))
        first = await provider.launch(request)
        with suppress(OutcomeUnknownError):  # or the first machine is found again
            found = await provider.launch(replace(request, user_data="#!/bin/sh\nfalse\n"))
            assert found.id == first.id
        assert len(world.ledger().effects(Effect.LAUNCHED)) == 1

    @scenario
    async def test_the_token_of_a_terminated_machine_is_gone(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = make_request(world, await some_offering(provider))
        instance = await provider.launch(request)
        await provider.terminate([instance.id])
        await world.advance(600)
        with pytest.raises(InstanceGoneError):
            await provider.launch(request)
        assert len(world.ledger().effects(Effect.LAUNCHED)) == 1

    @scenario
    async def test_a_sold_out_offering_says_so_and_others_still_sell(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider, Market.SPOT)
        world.sell(offering, 1)
        await provider.launch(make_request(world, offering, "t-1"))
        with pytest.raises(InsufficientCapacityError):
            await provider.launch(make_request(world, offering, "t-2"))
        assert len(world.ledger().calls(Call.LAUNCH)) == 2
        await provider.launch(
            make_request(world, replace(offering, market=Market.ON_DEMAND), "t-3")
        )
        assert set(world.ledger().machines_by_token()) == {"t-1", "t-3"}

    @scenario
    async def test_an_exceeded_quota_names_its_bucket(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider, Market.SPOT)
        world.allow(offering, 1)
        await provider.launch(make_request(world, offering, "t-1"))
        with pytest.raises(QuotaExceededError) as caught:
            await provider.launch(make_request(world, offering, "t-2"))
        assert caught.value.bucket
        assert set(world.ledger().machines_by_token()) == {"t-1"}

    @scenario
    async def test_a_throttled_launch_succeeds_later_with_the_same_token(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider)
        world.throttle(Call.LAUNCH)
        await provider.launch(make_request(world, offering, "t-1"))
        with pytest.raises(ThrottledError):
            await provider.launch(make_request(world, offering, "t-2"))
        assert len(world.ledger().calls(Call.LAUNCH)) == 2
        await world.advance(10)
        await provider.launch(make_request(world, offering, "t-2"))
        assert set(world.ledger().machines_by_token()) == {"t-1", "t-2"}

    @scenario
    async def test_an_answer_lost_after_the_effect_leaves_one_machine(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = make_request(world, await some_offering(provider))
        world.lose(Call.LAUNCH, after_effect=True)
        with pytest.raises(OutcomeUnknownError):
            await provider.launch(request)
        assert len(world.ledger().effects(Effect.LAUNCHED)) == 1
        found = await provider.launch(request)
        assert world.ledger().machines_by_token() == {request.token: (found.id,)}

    @scenario
    async def test_a_call_lost_before_its_effect_is_unknown_too(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        request = make_request(world, await some_offering(provider))
        world.lose(Call.LAUNCH, after_effect=False)
        with pytest.raises(OutcomeUnknownError):
            await provider.launch(request)
        assert not world.ledger().effects()
        found = await provider.launch(request)
        assert world.ledger().machines_by_token() == {request.token: (found.id,)}

    @pytest.mark.parametrize(
        ("kind", "error"),
        [
            ("insufficient-capacity", InsufficientCapacityError),
            ("quota-exceeded", QuotaExceededError),
            ("throttled", ThrottledError),
            ("invalid-request", InvalidRequestError),
            ("credentials-rejected", CredentialsRejectedError),
            ("outcome-unknown", OutcomeUnknownError),
            (UNHEARD_OF, OutcomeUnknownError),
        ],
    )
    def test_a_refused_launch_is_asked_once_and_named_by_what_to_do(
        self, world: CloudWorld, kind: str, error: type[ProviderError]
    ) -> None:
        async def play(_: object, world: CloudWorld, provider: Provider) -> None:
            request = make_request(world, await some_offering(provider))
            world.fail(Call.LAUNCH, kind)
            with pytest.raises(error):
                await provider.launch(request)
            assert len(world.ledger().calls(Call.LAUNCH)) == 1
            assert not world.ledger().effects()

        scenario(play)(self, world)

    @scenario
    async def test_a_machine_that_dies_at_boot_is_listed_with_the_reason(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        world.doom()
        launched = await provider.launch(make_request(world, await some_offering(provider)))
        await world.advance(world.boot_seconds + 1)
        instance = (await listed(provider))[launched.id]
        assert instance.state is InstanceState.TERMINATED
        assert instance.state_reason

    # Listing

    @scenario
    async def test_only_the_clusters_machines_are_listed(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider)
        world.place(offering, ())
        world.place(offering, ((TAG_CLUSTER, "another"),))
        adopted = world.place(offering, ((TAG_CLUSTER, world.cluster),))
        launched = await provider.launch(make_request(world, offering))
        assert set(await listed(provider)) == {adopted, launched.id}

    @scenario
    async def test_a_restarted_provider_lists_the_same_machines(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider)
        for number in range(3):
            await provider.launch(make_request(world, offering, f"t-{number}"))
        restarted = world.provider()
        assert await listed(restarted) == await listed(provider)
        await restarted.close()

    @scenario
    async def test_a_listing_with_a_part_missing_says_that_it_is_incomplete(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider)
        for number in range(4):
            await provider.launch(make_request(world, offering, f"t-{number}"))
        world.cut_listing()
        listing = await provider.list_instances()
        assert not listing.complete
        assert listing.note
        assert len(listing.instances) < 4

    @scenario
    async def test_a_machine_that_is_not_visible_yet_is_still_the_tokens(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        world.lag(instance_seconds=40, tag_seconds=80)
        request = make_request(world, await some_offering(provider))
        launched = await provider.launch(request)
        assert not await listed(provider)
        assert (await provider.launch(request)).id == launched.id
        await world.advance(60)
        assert not await listed(provider)  # its tags are not visible yet
        await world.advance(60)
        assert set(await listed(provider)) == {launched.id}
        assert world.ledger().machines_by_token() == {request.token: (launched.id,)}

    # Terminating

    @scenario
    async def test_terminated_machines_stay_listed_until_they_are_gone_and_may_be_named_again(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        launched = await provider.launch(make_request(world, await some_offering(provider)))
        asked = await provider.terminate([launched.id])
        assert asked == {launched.id: TerminateOutcome.REQUESTED}
        assert (await listed(provider))[launched.id].state is InstanceState.STOPPING
        again = await provider.terminate([launched.id])
        assert again[launched.id] in (TerminateOutcome.REQUESTED, TerminateOutcome.GONE)
        await world.advance(600)
        assert (await listed(provider))[launched.id].state is InstanceState.TERMINATED
        late = await provider.terminate([launched.id])
        assert late == {launched.id: TerminateOutcome.GONE}
        assert len(world.ledger().effects(Effect.SHUTTING_DOWN)) == 1
        assert not world.ledger().alive()

    @scenario
    async def test_each_id_is_answered_for_itself(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider)
        ids = [
            (await provider.launch(make_request(world, offering, f"t-{number}"))).id
            for number in range(3)
        ]
        foreign = world.place(offering, ((TAG_CLUSTER, "another"),))
        untagged = world.place(offering, ())
        world.protect(ids[1])
        outcomes = await provider.terminate([*ids, foreign, untagged, "i-0123456789abcdef0"])
        assert outcomes == {
            ids[0]: TerminateOutcome.REQUESTED,
            ids[1]: TerminateOutcome.PROTECTED,
            ids[2]: TerminateOutcome.REQUESTED,
            foreign: TerminateOutcome.PROTECTED,
            untagged: TerminateOutcome.FAILED,
            "i-0123456789abcdef0": TerminateOutcome.FAILED,
        }
        ended = {entry.instance for entry in world.ledger().effects(Effect.SHUTTING_DOWN)}
        assert ended == {ids[0], ids[2]}

    @scenario
    async def test_terminating_nothing_calls_nothing(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        assert await provider.terminate([]) == {}
        assert not world.ledger().calls()

    @scenario
    async def test_a_terminate_call_that_fails_can_be_made_again(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        launched = await provider.launch(make_request(world, await some_offering(provider)))
        world.fail(Call.TERMINATE, UNHEARD_OF)
        with pytest.raises(ProviderError):
            await provider.terminate([launched.id])
        assert launched.id in world.ledger().alive()
        outcomes = await provider.terminate([launched.id])
        assert outcomes == {launched.id: TerminateOutcome.REQUESTED}

    @scenario
    async def test_a_stuck_shutdown_is_listed_as_stopping_and_still_billed(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        launched = await provider.launch(make_request(world, await some_offering(provider)))
        world.stick(launched.id)
        await provider.terminate([launched.id])
        await world.advance(3600)
        assert (await listed(provider))[launched.id].state is InstanceState.STOPPING
        assert world.ledger().usd_per_hour > 0

    # Interruptions and the end

    @scenario
    async def test_an_interruption_is_announced_once_and_then_happens(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        offering = await some_offering(provider, Market.SPOT)
        launched = await provider.launch(make_request(world, offering))
        await world.advance(world.boot_seconds + 1)
        notices: list[InterruptionNoticed] = []
        watch = asyncio.create_task(_collect(provider.interruptions(), notices))
        world.interrupt(launched.id, notice_seconds=120)
        await world.advance(5)
        assert (await listed(provider))[launched.id].state is InstanceState.RUNNING
        await world.advance(60)
        if world.announces_interruptions:
            (notice,) = notices
            assert notice.instance == launched.id
            assert notice.provider == provider.name
            assert notice.deadline == pytest.approx(notice.at + 120)
        else:
            assert notices == []
        await world.advance(600)
        assert (await listed(provider))[launched.id].state is InstanceState.TERMINATED
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch

    @scenario
    async def test_a_provider_may_be_closed_twice(
        self, world: CloudWorld, provider: Provider
    ) -> None:
        await provider.offerings()
        await provider.close()
        await provider.close()


async def _collect(
    notices: AsyncIterator[InterruptionNoticed], into: list[InterruptionNoticed]
) -> None:
    async for notice in notices:
        into.append(notice)  # noqa: PERF401 - it must grow as they come
