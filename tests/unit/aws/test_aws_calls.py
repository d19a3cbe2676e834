from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import boto3
import pytest
from botocore.exceptions import ClientError

from corald.config.catalog import load_catalog
from corald.errors import (
    CredentialsRejectedError,
    InvalidRequestError,
    OutcomeUnknownError,
    ThrottledError,
    TransientError,
)
from corald.market.faults import Call, Fault, FaultKind
from corald.market.ledger import Effect
from corald.model.fleet import TAG_CLUSTER, TerminateOutcome
from corald.model.market import Market, OfferingKey
from corald.plugin import ProviderContext
from corald.testing.clock import ManualClock
from corald.testing.conformance import listed, make_request, some_offering
from corald_aws import AwsProvider
from corald_aws.pools import DaemonPool

G6 = OfferingKey("aws-main", "us-east-1", "use1-az1", "g6.xlarge", Market.ON_DEMAND)


def play(provider, body):
    async def run():
        try:
            return await body(provider)
        finally:
            await provider.close()

    return asyncio.run(run())


def provider_of(world, **config):
    context = ProviderContext("aws-main", "prod", load_catalog(), ManualClock(start=world.now()))
    return AwsProvider.from_config(world.config() | config, context)


def prices(provider):
    return {o.key: o for o in play(provider, lambda p: p.offerings())}


def test_a_new_list_price_is_seen_and_dated_when_it_was_read(world):
    key = replace(G6, provider="aws")
    for item in world.market.matching("us-east-1/*/g6.xlarge/on-demand"):
        world.market.set_price(item.key, 0.9, world.now())
    provider = provider_of(world)
    offer = prices(provider)[replace(key, provider="aws-main")]
    assert offer.usd_per_hour == 0.9
    assert offer.priced_at == pytest.approx(world.now(), abs=60)


def test_without_the_price_list_the_catalogues_price_counts_with_its_date(world):
    fault = Fault(
        Call.OFFERINGS,
        FaultKind.ERROR,
        code="AccessDeniedException",
        status=400,
        times=None,
        region="pricing",
    )
    world.market.faults.add(fault)
    offer = prices(provider_of(world))[G6]
    (listed_price,) = [
        p for p in load_catalog().instance_types["g6.xlarge"].prices if p.region == "us-east-1"
    ]
    assert offer.usd_per_hour == listed_price.on_demand_usd_per_hour
    dated = datetime.fromtimestamp(offer.priced_at, UTC)
    assert dated.isoformat().startswith(listed_price.as_of)


def test_the_newest_spot_price_of_each_zone_counts_by_zone_id(world):
    spot = replace(G6, market=Market.SPOT)
    provider = provider_of(world)  # its clock stands, so that it is told of all changes since
    for usd in (9.0, 0.1):
        world.fake.control("advance", seconds=60)
        for extra, zone in enumerate(("use1-az1", "use1-az2")):
            key = replace(spot, provider="aws", zone=zone)
            world.market.set_price(key, usd + extra, world.now())
    found = prices(provider)
    assert found[spot].usd_per_hour == 0.1
    assert found[replace(spot, zone="use1-az2")].usd_per_hour == 1.1


def test_only_configured_zones_are_offered(world):
    config = world.config()
    region = config["regions"]["us-east-1"]
    region |= {"subnets": {"use1-az4": "subnet-use1-az4"}}
    del config["regions"]["us-west-2"]
    found = prices(provider_of(world, **config))
    assert {key.zone for key in found} == {"use1-az4"}


def test_a_subnet_in_another_zone_is_reported_rather_than_used(world):
    config = world.config()
    config["regions"]["us-east-1"] |= {"subnets": {"use1-az1": "subnet-use1-az2"}}
    del config["regions"]["us-west-2"]
    with pytest.raises(InvalidRequestError, match="subnet-use1-az2 is in zone use1-az2"):
        prices(provider_of(world, **config))


def test_a_region_that_fails_does_not_take_the_offerings_of_another_one_away(world, caplog):
    down = Fault(
        Call.OFFERINGS,
        FaultKind.ERROR,
        code="UnauthorizedOperation",
        status=403,
        times=None,
        region="us-west-2",
    )
    provider = provider_of(world)

    async def body(provider):
        both = {o.key.region for o in await provider.offerings()}
        world.market.faults.add(down)
        rest = [{o.key.region for o in await provider.offerings()} for _ in range(2)]
        world.market.faults.clear()
        return [both, *rest, {o.key.region for o in await provider.offerings()}]

    both = {"us-east-1", "us-west-2"}
    assert play(provider, body) == [both, {"us-east-1"}, {"us-east-1"}, both]
    [told] = [record.getMessage() for record in caplog.records if record.name == "corald_aws"]
    assert "us-west-2" in told
    assert "UnauthorizedOperation" in told


def test_offerings_fail_when_every_region_does(world):
    world.fail(Call.OFFERINGS, "Unavailable", times=None)
    with pytest.raises(TransientError):
        prices(provider_of(world))


def test_what_ec2_receives_is_what_was_meant(world):
    request = make_request(world, replace(G6, market=Market.SPOT))
    play(provider_of(world, volume_gib=300), lambda p: p.launch(request))
    ((machine, _),) = world.market.listing(world.now())
    sent = json.loads(machine.details["parameters"])
    assert machine.offering == replace(request.offering, provider="aws")
    assert sent["ClientToken"] == request.token
    assert sent["MetadataOptions"]["HttpTokens"] == "required"
    assert sent["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert sent["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 300
    assert machine.details["tagged"] == ("instance,network-interface,spot-instances-request,volume")


def test_a_launch_that_cannot_read_its_image_has_rented_nothing(world):
    world.fail(Call.OFFERINGS, "Unavailable", times=None)
    with pytest.raises(ThrottledError):
        play(provider_of(world, volume_gib=300), lambda p: p.launch(make_request(world, G6)))
    assert not world.ledger().calls(Call.LAUNCH)


def test_a_create_is_sent_once_where_the_sdk_would_have_repeated_it(world):
    fault = Fault(
        Call.LAUNCH, FaultKind.ERROR, code="InsufficientInstanceCapacity", status=500, times=None
    )
    world.market.faults.add(fault)
    with pytest.raises(Exception, match="InsufficientInstanceCapacity"):
        play(provider_of(world), lambda p: p.launch(make_request(world, G6)))
    assert len(world.ledger().calls(Call.LAUNCH)) == 1


@pytest.mark.parametrize("kind", [FaultKind.TRUNCATED, FaultKind.LOST_AFTER])
def test_a_broken_answer_to_a_create_is_unknown_and_resolved_by_the_token(world, kind):
    world.market.faults.add(Fault(Call.LAUNCH, kind))
    request = make_request(world, G6)

    async def body(provider):
        with pytest.raises(OutcomeUnknownError):
            await provider.launch(request)
        return await provider.launch(request)

    found = play(provider_of(world), body)
    assert world.ledger().machines_by_token() == {request.token: (found.id,)}


def test_a_token_whose_settings_changed_finds_its_machine_again(world):
    request = make_request(world, G6)
    first = play(provider_of(world), lambda p: p.launch(request))
    again = play(provider_of(world, key_name="ops"), lambda p: p.launch(request))
    assert again.id == first.id


def test_an_unheard_of_code_is_counted(world):
    provider = provider_of(world)
    world.fail(Call.LAUNCH, "BrandNewCode")

    async def body(provider):
        with pytest.raises(OutcomeUnknownError):
            await provider.launch(make_request(world, G6))

    play(provider, body)
    assert provider.unknown_codes == {"BrandNewCode": 1}


def test_one_region_down_makes_the_listing_incomplete_and_keeps_the_other(world):
    async def body(provider):
        await provider.launch(make_request(world, G6))
        world.market.faults.add(
            Fault(
                Call.LIST,
                FaultKind.ERROR,
                code="Unavailable",
                status=503,
                times=None,
                region="us-west-2",
            )
        )
        return await provider.list_instances()

    listing = play(provider_of(world), body)
    assert len(listing.instances) == 1
    assert not listing.complete
    assert "Unavailable" in listing.note


def test_rejected_credentials_in_one_region_freeze_the_whole_provider(world):
    world.market.faults.add(
        Fault(Call.LIST, FaultKind.ERROR, code="AuthFailure", status=401, region="us-west-2")
    )
    with pytest.raises(CredentialsRejectedError):
        play(provider_of(world), lambda p: p.list_instances())


def test_a_long_listing_is_read_page_by_page(world):
    tags = ((TAG_CLUSTER, "prod"),)
    ids = {world.place(G6, tags) for _ in range(25)}
    world.fake.control("page-size", size=10)
    found = play(provider_of(world), listed)
    assert set(found) == ids
    assert len(world.ledger().calls(Call.LIST)) == 3 + 1  # and one for the other region


def test_many_terminations_go_in_calls_of_fifty_and_a_bad_one_spoils_only_itself(world):
    tags = ((TAG_CLUSTER, "prod"),)
    ids = [world.place(G6, tags) for _ in range(60)]
    world.protect(ids[7])
    outcomes = play(provider_of(world), lambda p: p.terminate(ids))
    assert outcomes.pop(ids[7]) is TerminateOutcome.PROTECTED
    assert set(outcomes.values()) == {TerminateOutcome.REQUESTED}
    assert len(world.ledger().effects(Effect.SHUTTING_DOWN)) == 59
    assert len(world.ledger().calls(Call.TERMINATE)) <= 2 + 2 * 6


def test_nothing_is_terminated_while_ownership_cannot_be_read(world):
    machine = world.place(G6, ((TAG_CLUSTER, "prod"),))
    world.fail(Call.LIST, "Unavailable", times=None)
    with pytest.raises(TransientError):
        play(provider_of(world), lambda p: p.terminate([machine]))
    assert not world.ledger().calls(Call.TERMINATE)


def test_machines_of_one_region_are_terminated_while_another_one_is_down(world):
    machine = world.place(G6, ((TAG_CLUSTER, "prod"),))
    world.market.faults.add(
        Fault(
            Call.LIST,
            FaultKind.ERROR,
            code="Unavailable",
            status=503,
            times=None,
            region="us-west-2",
        )
    )
    outcomes = play(provider_of(world), lambda p: p.terminate([machine, "i-elsewhere"]))
    assert outcomes == {
        machine: TerminateOutcome.REQUESTED,
        "i-elsewhere": TerminateOutcome.FAILED,
    }


@pytest.mark.parametrize(
    ("operation", "member", "ask", "error"),
    [
        ("RunInstances", "Instances", "launch", OutcomeUnknownError),
        ("TerminateInstances", "TerminatingInstances", "terminate", OutcomeUnknownError),
        ("DescribeInstances", "Reservations", "list", TransientError),
        ("DescribeSubnets", "Subnets", "offerings", TransientError),
        ("DescribeInstanceTypeOfferings", "InstanceTypeOfferings", "offerings", TransientError),
        ("DescribeSpotPriceHistory", "SpotPriceHistory", "offerings", TransientError),
    ],
)
def test_an_answer_of_another_shape_is_no_answer(world, monkeypatch, operation, member, ask, error):
    provider = provider_of(world)

    def strip(parsed, model, **_):
        if model.name == operation:
            parsed[member] = [{}] if operation != "DescribeInstances" else [{"Instances": [{}]}]

    make = provider._clients._client

    def client(*wanted):
        made = make(*wanted)
        made.meta.events.register("after-call.ec2", strip)
        return made

    monkeypatch.setattr(provider._clients, "_client", client)
    machine = world.place(G6, ((TAG_CLUSTER, "prod"),))
    calls = {
        "launch": lambda p: p.launch(make_request(world, G6)),
        "terminate": lambda p: p.terminate([machine]),
        "list": lambda p: p.list_instances(),
        "offerings": lambda p: p.offerings(),
    }
    with pytest.raises(error):
        play(provider, calls[ask])


def test_a_hanging_cloud_blocks_neither_the_loop_nor_the_end(world):
    async def body(provider):
        await provider.offerings()
        world.fake.control("freeze")
        call = asyncio.create_task(provider.launch(make_request(world, G6)))
        await asyncio.sleep(0.1)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    started = time.monotonic()
    play(provider_of(world), body)
    assert time.monotonic() - started < 10
    world.fake.control("thaw")


def test_a_cancelled_job_that_has_not_started_never_does():
    pool = DaemonPool(1, "test")
    gate, ran = threading.Event(), []
    first = pool.submit(gate.wait, 5)
    second = pool.submit(ran.append, 1)
    assert second.cancel()
    gate.set()
    assert first.result(5)
    assert pool.submit(lambda: 7).result(5) == 7
    pool.shutdown(wait=True)
    assert ran == []
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(ran.append, 2)


def test_interruptions_end_when_the_provider_is_closed(world):
    async def body(provider):
        async def watch():
            return [notice async for notice in provider.interruptions()]

        task = asyncio.create_task(watch())
        await asyncio.sleep(0.05)
        assert not task.done()
        await provider.close()
        return await asyncio.wait_for(task, 5)

    assert play(provider_of(world), body) == []


def test_zone_names_and_ids_do_not_agree_and_offerings_use_ids(world):
    async def body(provider):
        return (await some_offering(provider)).zone

    assert play(provider_of(world), body).startswith("use1-az")


# The fake, as the real boto3 sees it


def ec2(world, region="us-east-1"):
    return boto3.client("ec2", region_name=region, endpoint_url=world.fake.url)


def test_the_fake_knows_regions_zones_types_and_tags(world):
    client = ec2(world)
    assert [r["RegionName"] for r in client.describe_regions()["Regions"]] == [
        "us-east-1",
        "us-west-2",
    ]
    zones = client.describe_availability_zones()["AvailabilityZones"]
    assert {z["ZoneId"] for z in zones} >= {"use1-az1", "use1-az2"}
    assert len({z["ZoneName"] for z in zones}) == len(zones)
    (kind,) = client.describe_instance_types(InstanceTypes=["g6.12xlarge"])["InstanceTypes"]
    assert kind["VCpuInfo"]["DefaultVCpus"] == 48
    assert kind["GpuInfo"]["Gpus"][0]["Count"] == 4
    machine = world.place(G6, ())
    client.create_tags(Resources=[machine], Tags=[{"Key": "a", "Value": "b"}])
    (reservation,) = client.describe_instances(InstanceIds=[machine])["Reservations"]
    assert reservation["Instances"][0]["Tags"] == [{"Key": "a", "Value": "b"}]
    client.close()


@pytest.mark.parametrize(
    ("operation", "arguments", "code", "status"),
    [
        ("describe_instances", {"InstanceIds": ["i-0123456789abcdef0"]},
         "InvalidInstanceID.NotFound", 400),
        ("describe_instances", {"InstanceIds": ["x"]}, "InvalidInstanceID.Malformed", 400),
        ("terminate_instances", {"InstanceIds": ["i-0123456789abcdef0"]},
         "InvalidInstanceID.NotFound", 400),
        ("run_instances", {"ImageId": "ami-1", "MinCount": 1, "MaxCount": 1,
                           "InstanceType": "g6.xlarge", "SubnetId": "subnet-x"},
         "InvalidSubnetID.NotFound", 400),
        ("run_instances", {"ImageId": "ami-1", "MinCount": 1, "MaxCount": 1,
                           "InstanceType": "t3.micro", "SubnetId": "subnet-use1-az1"},
         "Unsupported", 400),
        ("run_instances", {"ImageId": "ami-1", "MinCount": 1, "MaxCount": 1, "DryRun": True,
                           "InstanceType": "t3.micro", "SubnetId": "subnet-use1-az1"},
         "DryRunOperation", 412),
        ("describe_vpcs", {}, "InvalidAction", 400),
    ],
)  # fmt: skip
def test_the_fake_refuses_as_ec2_does(world, operation, arguments, code, status):
    client = ec2(world)
    with pytest.raises(ClientError) as caught:
        getattr(client, operation)(**arguments)
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    client.close()


def test_the_control_channel_explains_a_wrong_order(world):
    request = urllib.request.Request(
        f"{world.fake.url}/_control", data=b'{"do": "supply", "pattern": "nowhere/*", "count": 1}'
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    assert caught.value.code == 400
    assert "nowhere" in caught.value.read().decode()
    caught.value.close()
