from __future__ import annotations

from dataclasses import replace

import pytest

from corald.config.catalog import load_catalog
from corald.errors import ConfigError, InvalidRequestError
from corald.model.fleet import TAG_CLUSTER, LaunchRequest
from corald.model.market import Market, OfferingKey
from corald.plugin import ProviderContext
from corald.testing.clock import ManualClock
from corald_aws import AwsProvider
from corald_aws.requests import run_instances
from corald_aws.settings import Settings

REGION = {
    "image_id": "ami-0123456789abcdef0",
    "security_groups": ["sg-1"],
    "subnets": {"use1-az1": "subnet-1"},
}
CONFIG = {"regions": {"us-east-1": REGION}, "instance_profile": "corald-serve"}
REQUEST = LaunchRequest(
    token="t-1",
    name="corald-t-1",
    offering=OfferingKey("aws-main", "us-east-1", "use1-az1", "g6.xlarge", Market.ON_DEMAND),
    image="",
    user_data="#!/bin/sh\n",
    tags=((TAG_CLUSTER, "prod"),),
)
SPOT = replace(REQUEST, offering=replace(REQUEST.offering, market=Market.SPOT))


def build(request, **config):
    return run_instances(request, Settings.model_validate(CONFIG | config), None)


def test_a_request_pins_its_zone_and_locks_the_metadata_service():
    call = build(REQUEST)
    assert (call["ClientToken"], call["MinCount"], call["MaxCount"]) == ("t-1", 1, 1)
    assert call["SubnetId"] == "subnet-1"
    assert call["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
    }
    assert call["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert call["IamInstanceProfile"] == {"Name": "corald-serve"}
    assert "InstanceMarketOptions" not in call


def test_every_part_is_tagged_at_birth():
    parts = {s["ResourceType"]: s["Tags"] for s in build(SPOT)["TagSpecifications"]}
    assert set(parts) == {"instance", "volume", "network-interface", "spot-instances-request"}
    for tags in parts.values():
        assert {"Key": TAG_CLUSTER, "Value": "prod"} in tags
    assert "spot-instances-request" not in str(build(REQUEST)["TagSpecifications"])


def test_spot_is_asked_for_once_and_without_a_price_limit():
    assert build(SPOT)["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {
            "SpotInstanceType": "one-time",
            "InstanceInterruptionBehavior": "terminate",
        },
    }


def test_the_image_of_the_request_goes_before_the_regions():
    assert build(REQUEST)["ImageId"] == "ami-0123456789abcdef0"
    assert build(replace(REQUEST, image="ami-9"))["ImageId"] == "ami-9"
    assert build(replace(REQUEST, image="vllm/vllm:1"))["ImageId"] == "ami-0123456789abcdef0"


def test_a_zone_without_a_subnet_is_refused_before_any_call():
    elsewhere = replace(REQUEST, offering=replace(REQUEST.offering, zone="use1-az2"))
    with pytest.raises(InvalidRequestError, match="use1-az2"):
        build(elsewhere)
    abroad = replace(REQUEST, offering=replace(REQUEST.offering, region="eu-west-1"))
    with pytest.raises(InvalidRequestError, match=r"regions\.eu-west-1\.subnets"):
        build(abroad)


def test_user_data_of_up_to_16_kib_is_accepted():
    build(replace(REQUEST, user_data="x" * 16384))
    with pytest.raises(InvalidRequestError, match="16384"):
        build(replace(REQUEST, user_data="x" * 16383 + "é"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"endpoint_url": "http://evil"}, ["endpoint_url", "test_mode = true"]),
        ({"instance_profil": "x"}, ["instance_profil", "did you mean instance_profile"]),
        ({"regions": {}}, ["providers.aws-main.regions"]),
        ({"regions": {"us-east-1": REGION | {"subnets": {"us-east-1a": "subnet-1"}}}}, ["az"]),
        ({"regions": {"us-east-1": REGION | {"image_id": "ubuntu"}}}, ["us-east-1.image_id"]),
        ({"volume_gib": "100"}, ["providers.aws-main.volume_gib"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_do(config, words):
    context = ProviderContext("aws-main", "prod", load_catalog(), ManualClock())
    with pytest.raises(ConfigError) as caught:
        AwsProvider.from_config(CONFIG | config, context)
    for word in words:
        assert word in str(caught.value)
