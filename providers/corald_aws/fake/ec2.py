"""The EC2 actions: what each makes of the marketplace, in the shapes that boto3 returns."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from corald.errors import ProviderError
from corald.market.faults import Call, Fault, FaultKind
from corald.market.machines import SPOT_RECLAIM
from corald.market.marketplace import USER_REQUEST
from corald.market.stock import Machine
from corald.model.fleet import InstanceState, LaunchRequest, Tags, TerminateOutcome
from corald.model.market import Market, OfferingKey
from corald_aws.fake.errors import AwsError, from_market
from corald_aws.fake.world import PROVIDER, Account, zone_name

OWNER = "123456789012"
BROKEN_PAGE = "broken"
"""The token of a page that never comes."""

_STATES = {
    InstanceState.PENDING: (0, "pending"),
    InstanceState.RUNNING: (16, "running"),
    InstanceState.STOPPING: (32, "shutting-down"),
    InstanceState.TERMINATED: (48, "terminated"),
    InstanceState.STOPPED: (80, "stopped"),
}
_REASONS = {
    USER_REQUEST: ("Client.UserInitiatedShutdown", "User initiated shutdown"),
    SPOT_RECLAIM: ("Server.SpotInstanceTermination", "Spot instance termination"),
}

Parameters = Mapping[str, Any]
Result = dict[str, Any]
Action = Callable[[Account, str, Parameters], Result]


def call_of(action: str) -> Call:
    """Tell which kind of call an action counts as."""
    return {
        "RunInstances": Call.LAUNCH,
        "TerminateInstances": Call.TERMINATE,
        "DescribeInstances": Call.LIST,
    }.get(action, Call.OFFERINGS)


def answer(
    account: Account, region: str, action: str, parameters: Parameters, fault: Fault | None
) -> Result:
    """Perform an action, or raise AwsError."""
    if action == "RunInstances":
        return _run_instances(account, region, parameters, fault)
    if action == "DescribeInstances":
        return _describe_instances(account, region, parameters, fault)
    if action not in _ACTIONS:
        raise AwsError("InvalidAction", f"this fake does not know {action}")
    return _ACTIONS[action](account, region, parameters)


def digest_of(parameters: Parameters) -> str:
    """Hash a RunInstances request without its token."""
    rest = {name: value for name, value in parameters.items() if name != "ClientToken"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def _run_instances(
    account: Account, region: str, parameters: Parameters, fault: Fault | None
) -> Result:
    if parameters.get("DryRun"):
        raise AwsError("DryRunOperation", "Request would have succeeded", 412)
    request = _launch_request(account, region, parameters)
    specifications = parameters.get("TagSpecifications", ())
    details = {
        "image": parameters["ImageId"],
        "subnet": parameters["SubnetId"],
        "metadata": json.dumps(parameters.get("MetadataOptions", {})),
        "tagged": ",".join(sorted(s["ResourceType"] for s in specifications)),
        "parameters": json.dumps(parameters),
    }
    doomed = fault is not None and fault.kind is FaultKind.DIES_AT_BOOT
    try:
        machine = account.market.launch(
            request,
            account.clock.now(),
            digest=digest_of(parameters),
            details=details,
            doom=fault.code if fault is not None and doomed else "",
        )
    except ProviderError as error:
        raise from_market(error, request) from error
    instances = [_instance(account, machine, machine.tags)]
    return {"ReservationId": _reservation(machine), "OwnerId": OWNER, "Instances": instances}


def _launch_request(account: Account, region: str, parameters: Parameters) -> LaunchRequest:
    for required in ("ImageId", "InstanceType", "SubnetId", "MinCount", "MaxCount"):
        if required not in parameters:
            raise AwsError("MissingParameter", f"The request must contain {required}")
    if (parameters["MinCount"], parameters["MaxCount"]) != (1, 1):
        raise AwsError("InvalidParameterValue", "this fake launches one machine a call")
    token = parameters.get("ClientToken", "")
    if len(token) > 64 or not token.isascii():
        raise AwsError("InvalidClientToken", "at most 64 ASCII characters")
    image = parameters["ImageId"]
    if image in account.missing_images or not image.startswith("ami-"):
        raise AwsError("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    zone = account.zone_of(region, parameters["SubnetId"])
    if zone is None:
        raise AwsError("InvalidSubnetID.NotFound", f"no subnet {parameters['SubnetId']}")
    user_data = parameters.get("UserData", "")
    if len(base64.b64decode(user_data)) > 16384:
        raise AwsError("InvalidParameterValue", "User data is limited to 16384 bytes")
    spot = parameters.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    market = Market.SPOT if spot else Market.ON_DEMAND
    return LaunchRequest(
        token=token,
        name="",
        offering=OfferingKey(PROVIDER, region, zone, parameters["InstanceType"], market),
        image=image,
        user_data=user_data,
        tags=_instance_tags(parameters),
    )


def _instance_tags(parameters: Parameters) -> Tags:
    for specification in parameters.get("TagSpecifications", ()):
        if specification["ResourceType"] == "instance":
            return tuple(sorted((tag["Key"], tag["Value"]) for tag in specification["Tags"]))
    return ()


def _describe_instances(
    account: Account, region: str, parameters: Parameters, fault: Fault | None
) -> Result:
    seen = [
        (machine, tags)
        for machine, tags in account.market.listing(account.clock.now())
        if machine.offering.region == region
    ]
    ids = parameters.get("InstanceIds")
    if ids is not None:
        if "MaxResults" in parameters:
            raise AwsError("InvalidParameterCombination", "MaxResults with InstanceIds")
        _require(ids, {machine.id for machine, _ in seen})
        seen = [(machine, tags) for machine, tags in seen if machine.id in ids]
    for wanted in parameters.get("Filters", ()):
        seen = [pair for pair in seen if _matches(*pair, wanted["Name"], wanted["Values"])]
    if fault is not None and fault.kind is FaultKind.PARTIAL:
        page, token = seen[: len(seen) // 2], BROKEN_PAGE
    else:
        page, token = _page(account, seen, parameters)
    reservations = [
        {
            "ReservationId": _reservation(machine),
            "OwnerId": OWNER,
            "Instances": [_instance(account, machine, tags)],
        }
        for machine, tags in page
    ]
    return {"Reservations": reservations} | ({"NextToken": token} if token else {})


def _page(account: Account, rows: Sequence[Any], parameters: Parameters) -> tuple[list[Any], str]:
    token = parameters.get("NextToken", "0")
    if token == BROKEN_PAGE:
        raise AwsError("Unavailable", "this page never comes", 503)
    start, size = int(token), min(parameters.get("MaxResults", 1000), account.page_size)
    rest = str(start + size) if start + size < len(rows) else ""
    return list(rows[start : start + size]), rest


def _matches(machine: Machine, tags: Tags, name: str, values: Sequence[str]) -> bool:
    kind, _, key = name.partition(":")
    match kind:
        case "tag":
            value = dict(tags).get(key)
        case "instance-state-name":
            value = _STATES[machine.state][1]
        case "client-token":
            value = machine.token
        case "instance-id":
            value = machine.id
        case _:
            raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return value is not None and any(fnmatchcase(value, wanted) for wanted in values)


def _require(ids: Iterable[str], known: set[str]) -> None:
    for instance_id in ids:
        if not re.fullmatch("i-[0-9a-f]{8,17}", instance_id):
            raise AwsError("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
        if instance_id not in known:
            raise AwsError(
                "InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist"
            )


def _instance(account: Account, machine: Machine, tags: Tags) -> Result:
    key = machine.offering
    code, name = _STATES[machine.state]
    spot = key.market is Market.SPOT
    shown: Result = {
        "InstanceId": machine.id,
        "ImageId": machine.details.get("image", "ami-placed"),
        "InstanceType": key.instance_type,
        "State": {"Code": code, "Name": name},
        "LaunchTime": machine.launched_at,
        "Placement": {
            "AvailabilityZone": zone_name(key.region, key.zone),
            "AvailabilityZoneId": key.zone,
            "Tenancy": "default",
        },
        "SubnetId": account.subnets(key.region)[key.zone],
        "Tags": [{"Key": k, "Value": v} for k, v in tags],
    }
    if machine.token:
        shown["ClientToken"] = machine.token
    if machine.alive:
        shown["PrivateIpAddress"] = machine.address
    if spot:
        shown |= {"InstanceLifecycle": "spot", "SpotInstanceRequestId": f"sir-{machine.id[2:10]}"}
    if machine.state_reason:
        reason, message = _REASONS.get(machine.state_reason, (machine.state_reason, "on order"))
        shown["StateReason"] = {"Code": reason, "Message": f"{reason}: {message}"}
    return shown


def _reservation(machine: Machine) -> str:
    return f"r-{machine.id[2:]}"


def _terminate_instances(account: Account, region: str, parameters: Parameters) -> Result:
    now = account.clock.now()
    ids = parameters["InstanceIds"]
    here = {m.id: m for m, _ in account.market.listing(now) if m.offering.region == region}
    _require(ids, set(here))
    guarded = {here[i].offering.zone for i in ids if here[i].protected}
    before = {i: here[i].state for i in ids}
    outcomes = account.market.terminate(
        [i for i in ids if here[i].offering.zone not in guarded], now
    )
    if guarded:
        raise AwsError(
            "OperationNotPermitted",
            "an instance may not be terminated: modify its 'disableApiTermination' attribute",
        )
    changes = []
    for instance_id in ids:
        gone = outcomes[instance_id] is TerminateOutcome.GONE
        current = _STATES[InstanceState.TERMINATED if gone else InstanceState.STOPPING]
        previous = _STATES[before[instance_id]]
        changes.append(
            {
                "InstanceId": instance_id,
                "CurrentState": {"Code": current[0], "Name": current[1]},
                "PreviousState": {"Code": previous[0], "Name": previous[1]},
            }
        )
    return {"TerminatingInstances": changes}


def _create_tags(account: Account, _region: str, parameters: Parameters) -> Result:
    now = account.clock.now()
    _require(parameters["Resources"], {m.id for m, _ in account.market.listing(now)})
    tags = tuple((tag["Key"], tag["Value"]) for tag in parameters["Tags"])
    for instance_id in parameters["Resources"]:
        account.market.tag(instance_id, tags, now)
    return {}


def _describe_regions(account: Account, _region: str, _parameters: Parameters) -> Result:
    return {
        "Regions": [
            {
                "RegionName": region,
                "Endpoint": f"ec2.{region}.amazonaws.com",
                "OptInStatus": "opt-in-not-required",
            }
            for region in account.zones
        ]
    }


def _describe_availability_zones(account: Account, region: str, _parameters: Parameters) -> Result:
    return {
        "AvailabilityZones": [
            {
                "RegionName": region,
                "ZoneName": zone_name(region, zone),
                "ZoneId": zone,
                "ZoneType": "availability-zone",
                "State": "available",
            }
            for zone in account.zones.get(region, ())
        ]
    }


def _describe_subnets(account: Account, region: str, parameters: Parameters) -> Result:
    subnets = {subnet: zone for zone, subnet in account.subnets(region).items()}
    for wanted in parameters.get("SubnetIds", ()):
        if wanted not in subnets:
            raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{wanted}' does not exist")
    return {
        "Subnets": [
            {
                "SubnetId": subnet,
                "VpcId": "vpc-1",
                "State": "available",
                "AvailabilityZone": zone_name(region, zone),
                "AvailabilityZoneId": zone,
                "AvailableIpAddressCount": 4091,
            }
            for subnet, zone in subnets.items()
            if subnet in parameters.get("SubnetIds", subnets)
        ]
    }


def _describe_images(account: Account, _region: str, parameters: Parameters) -> Result:
    images = parameters.get("ImageIds", ())
    for image in images:
        if image in account.missing_images:
            raise AwsError("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    return {
        "Images": [
            {
                "ImageId": image,
                "State": "available",
                "OwnerId": OWNER,
                "Architecture": "x86_64",
                "RootDeviceName": "/dev/sda1",
                "RootDeviceType": "ebs",
            }
            for image in images
        ]
    }


def _describe_instance_types(account: Account, region: str, parameters: Parameters) -> Result:
    wanted = parameters.get("InstanceTypes")
    rows = [
        {
            "InstanceType": product.instance_type,
            "CurrentGeneration": True,
            "SupportedUsageClasses": ["on-demand", "spot"],
            "VCpuInfo": {"DefaultVCpus": product.vcpus},
            "MemoryInfo": {"SizeInMiB": int(product.memory_gib * 1024)},
            "GpuInfo": {"Gpus": [{"Name": product.gpu, "Count": product.gpus}]},
        }
        for product in account.products
        if product.region == region and (wanted is None or product.instance_type in wanted)
    ]
    page, token = _page(account, rows, parameters)
    return {"InstanceTypes": page} | ({"NextToken": token} if token else {})


def _describe_instance_type_offerings(
    account: Account, region: str, parameters: Parameters
) -> Result:
    location_type = parameters.get("LocationType", "region")
    place: Callable[[str], str] = {
        "region": lambda _: region,
        "availability-zone": lambda zone: zone_name(region, zone),
        "availability-zone-id": lambda zone: zone,
    }[location_type]
    found = sorted(
        {
            (product.instance_type, place(zone))
            for product in account.products
            if product.region == region
            for zone in product.zones
        }
    )
    for wanted in parameters.get("Filters", ()):
        index = {"instance-type": 0, "location": 1}[wanted["Name"]]
        found = [row for row in found if any(fnmatchcase(row[index], v) for v in wanted["Values"])]
    page, token = _page(account, found, parameters)
    rows = [
        {"InstanceType": kind, "LocationType": location_type, "Location": location}
        for kind, location in page
    ]
    return {"InstanceTypeOfferings": rows} | ({"NextToken": token} if token else {})


def _describe_spot_price_history(account: Account, region: str, parameters: Parameters) -> Result:
    """Tell the price in force at StartTime and every later one, newest first."""
    start = parameters.get("StartTime", 0.0)
    wanted = parameters.get("InstanceTypes")
    rows: list[Result] = []
    for item in account.market.matching(f"{region}/*/spot"):
        if wanted is not None and item.key.instance_type not in wanted:
            continue
        history = list(item.price_history)
        for index, (since, usd_per_hour) in enumerate(history):
            until = history[index + 1][0] if index + 1 < len(history) else float("inf")
            if until > start:
                rows.append(
                    {
                        "AvailabilityZone": zone_name(region, item.key.zone),
                        "AvailabilityZoneId": item.key.zone,
                        "InstanceType": item.key.instance_type,
                        "ProductDescription": "Linux/UNIX",
                        "SpotPrice": f"{usd_per_hour:.6f}",
                        "Timestamp": since,
                    }
                )
    rows.sort(key=lambda row: float(row["Timestamp"]), reverse=True)
    page, token = _page(account, rows, parameters)
    return {"SpotPriceHistory": page, "NextToken": token}


_ACTIONS: Mapping[str, Action] = {
    "CreateTags": _create_tags,
    "DescribeAvailabilityZones": _describe_availability_zones,
    "DescribeImages": _describe_images,
    "DescribeInstanceTypeOfferings": _describe_instance_type_offerings,
    "DescribeInstanceTypes": _describe_instance_types,
    "DescribeRegions": _describe_regions,
    "DescribeSpotPriceHistory": _describe_spot_price_history,
    "DescribeSubnets": _describe_subnets,
    "TerminateInstances": _terminate_instances,
}
