"""Requests to EC2 as values: pure functions of the launch request and the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corald.errors import InvalidRequestError
from corald.model.fleet import TAG_CLUSTER, LaunchRequest
from corald.model.market import Market
from corald_aws.settings import Settings

MAX_USER_DATA_BYTES = 16 * 1024
STATES = ("pending", "running", "shutting-down", "stopping", "stopped", "terminated")


def run_instances(
    request: LaunchRequest, settings: Settings, root_device: str | None
) -> dict[str, Any]:
    """Build the RunInstances call of one intent; the same request gives the same call.

    `root_device` is the image's, where the settings ask for another size of its volume.

    Raises:
        InvalidRequestError: EC2 would refuse it, or it needs a zone that is not configured.
    """
    region = settings.regions.get(request.offering.region)
    subnet = region.subnets.get(request.offering.zone) if region else None
    if region is None or subnet is None:
        raise InvalidRequestError(
            f"no subnet is configured for {request.offering.zone};"
            f" add it to regions.{request.offering.region}.subnets"
        )
    if len(request.user_data.encode()) > MAX_USER_DATA_BYTES:
        raise InvalidRequestError(f"user data is longer than {MAX_USER_DATA_BYTES} bytes")
    call: dict[str, Any] = {
        "ClientToken": request.token,
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": request.image if request.image.startswith("ami-") else region.image_id,
        "InstanceType": request.offering.instance_type,
        "SubnetId": subnet,
        "SecurityGroupIds": region.security_groups,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
        },
        "TagSpecifications": _tag_specifications(request),
    }
    if request.user_data:
        call["UserData"] = request.user_data
    if request.offering.market is Market.SPOT:
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        call["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if settings.instance_profile:
        call["IamInstanceProfile"] = {"Name": settings.instance_profile}
    if settings.key_name:
        call["KeyName"] = settings.key_name
    if root_device is not None:
        volume = {"VolumeSize": settings.volume_gib, "DeleteOnTermination": True}
        call["BlockDeviceMappings"] = [{"DeviceName": root_device, "Ebs": volume}]
    return call


def _tag_specifications(request: LaunchRequest) -> list[dict[str, Any]]:
    """Tag every part that the call creates: access rules and cleaning up rest on it."""
    tags = [{"Key": key, "Value": value} for key, value in request.tags]
    tags.append({"Key": "Name", "Value": request.name})
    parts = ["instance", "volume", "network-interface"]
    if request.offering.market is Market.SPOT:
        parts.append("spot-instances-request")
    return [{"ResourceType": part, "Tags": tags} for part in parts]


def of_cluster(cluster: str) -> dict[str, Any]:
    """Build the DescribeInstances call for all machines of a cluster, in any state."""
    return {
        "Filters": [
            _filter(f"tag:{TAG_CLUSTER}", [cluster]),
            _filter("instance-state-name", STATES),
        ],
        "MaxResults": 1000,
    }


def by_ids(ids: Iterable[str]) -> dict[str, Any]:
    """Build the DescribeInstances call for some ids; a filter passes over unknown ones."""
    return {"Filters": [_filter("instance-id", ids)], "MaxResults": 1000}


def by_token(token: str) -> dict[str, Any]:
    """Build the DescribeInstances call for the machine of a token."""
    return {"Filters": [_filter("client-token", [token])], "MaxResults": 1000}


def type_offerings(zones: Iterable[str], instance_types: Iterable[str]) -> dict[str, Any]:
    """Build the DescribeInstanceTypeOfferings call for zones by their ids."""
    return {
        "LocationType": "availability-zone-id",
        "Filters": [_filter("location", zones), _filter("instance-type", instance_types)],
    }


def price_list(region: str) -> dict[str, Any]:
    """Build the GetProducts call for Linux machines on demand of one region."""
    wanted: Mapping[str, str] = {
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    return {"ServiceCode": "AmazonEC2", "Filters": filters, "MaxResults": 100}


def _filter(name: str, values: Iterable[str]) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}
