"""Decoding clouds' own notices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corald.adapters.codec import decode
from corald.adapters.native import NativeRouting
from corald.adapters.records import Reason
from corald.errors import MalformedEventError
from corald.model.events import ExternalEvent, InterruptionNoticed
from corald.model.fleet import InterruptionKind

NOW = 1_767_323_100.0
AT = 1_767_323_045.0
ROUTING = NativeRouting(
    {
        ("aws", "123456789012", "us-east-1"): "aws-east",
        ("aws", "123456789012", "*"): "aws-rest",
        ("gcp", "my-project", "*"): "gcp-main",
    }
)


def _aws(kind: str, detail: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "92453ca5-5b23-219e-8003-ab7283ca016b",
        "detail-type": kind,
        "source": "aws.ec2",
        "account": "123456789012",
        "time": "2026-01-02T03:04:05Z",
        "region": "us-east-1",
        "resources": ["arn:aws:ec2:us-east-1a:instance/i-0123456789abcdef0"],
        "detail": detail,
    } | changes


def _spot(**changes: Any) -> dict[str, Any]:
    detail = {"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"}
    return _aws("EC2 Spot Instance Interruption Warning", detail) | changes


def _state(state: str) -> dict[str, Any]:
    detail = {"instance-id": "i-0123456789abcdef0", "state": state}
    return _aws("EC2 Instance State-change Notification", detail)


def _health(**changes: Any) -> dict[str, Any]:
    detail = {
        "eventArn": "arn:aws:health:us-west-2::event/EC2/AWS_EC2_INSTANCE_STOP_SCHEDULED/x",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "startTime": "Sat, 03 Jan 2026 03:04:05 GMT",
        "statusCode": "upcoming",
        "eventRegion": "us-west-2",
        "affectedEntities": [
            {"entityValue": "i-0123456789abcdef0", "status": "IMPAIRED"},
            {"entityValue": "arn:aws:ec2:us-west-2:123456789012:instance/i-0aaaaaaaa"},
            {"entityValue": "i-0bbbbbbbb", "status": "RESOLVED"},
            {"entityValue": "vol-0cccccccc"},
        ],
    }
    return _aws("AWS Health Event", detail | changes, source="aws.health")


def _gcp(method: str, **payload: Any) -> dict[str, Any]:
    return {
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
            "authenticationInfo": {"principalEmail": "system@google.com"},
            "serviceName": "compute.googleapis.com",
            "methodName": method,
            "resourceName": "projects/my-project/zones/us-central1-a/instances/corald-a-1",
        }
        | payload,
        "insertId": "qnwer3e38dfz",
        "resource": {"type": "gce_instance", "labels": {"project_id": "my-project"}},
        "timestamp": "2026-01-02T03:04:05.000000123Z",
        "logName": "projects/my-project/logs/cloudaudit.googleapis.com%2Fsystem_event",
    }


def _decode(message: dict[str, Any]) -> tuple[ExternalEvent, ...]:
    return decode(json.dumps(message).encode(), received_at=NOW, routing=ROUTING)


def _notice(message: dict[str, Any]) -> tuple[str, str, str, float | None, float]:
    (event,) = _decode(message)
    assert isinstance(event, InterruptionNoticed)
    return event.provider, event.instance, event.kind, event.deadline, event.at


MACHINE = "i-0123456789abcdef0"


def test_a_spot_notice_leaves_two_minutes() -> None:
    expected = ("aws-east", MACHINE, InterruptionKind.TERMINATE, AT + 120, AT)
    assert _notice(_spot()) == expected


def test_a_hibernating_machine_stops_at_once() -> None:
    detail = {"instance-id": MACHINE, "instance-action": "hibernate"}
    assert _notice(_spot(detail=detail))[3] == AT


def test_another_region_of_the_account_goes_to_the_provider_of_any_region() -> None:
    assert _notice(_spot(region="eu-west-1"))[0] == "aws-rest"


def test_a_rebalance_recommendation_has_no_deadline() -> None:
    message = _aws("EC2 Instance Rebalance Recommendation", {"instance-id": MACHINE})
    assert _notice(message) == ("aws-east", MACHINE, InterruptionKind.REBALANCE, None, AT)


@pytest.mark.parametrize("state", ["stopping", "stopped", "shutting-down", "terminated"])
def test_a_machine_that_goes_is_already_due(state: str) -> None:
    assert _notice(_state(state)) == ("aws-east", MACHINE, InterruptionKind.TERMINATE, AT, AT)


def test_a_scheduled_change_names_each_machine_still_affected() -> None:
    first, second = _decode(_health())
    assert isinstance(first, InterruptionNoticed)
    assert isinstance(second, InterruptionNoticed)
    assert (first.provider, first.instance, second.instance) == ("aws-rest", MACHINE, "i-0aaaaaaaa")
    assert first.event_id != second.event_id
    assert first.kind is InterruptionKind.MAINTENANCE
    assert first.deadline == AT + 86_400
    later = _decode(_health(startTime="2026-01-03T03:04:05Z"))[0]
    assert isinstance(later, InterruptionNoticed)
    assert later.deadline == AT + 86_400


def test_a_gcp_preemption_leaves_half_a_minute_and_names_zone_and_machine() -> None:
    assert _notice(_gcp("compute.instances.preempted")) == (
        "gcp-main",
        "us-central1-a/corald-a-1",
        InterruptionKind.TERMINATE,
        AT + 30,
        AT,
    )


def test_a_simulated_maintenance_event_is_maintenance() -> None:
    notice = _notice(_gcp("v1.compute.instances.simulateMaintenanceEvent"))
    assert notice[2:4] == (InterruptionKind.MAINTENANCE, None)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (Reason.FOREIGN, _spot(account="999999999999")),
        (
            Reason.FOREIGN,
            _gcp("compute.instances.preempted", resourceName="projects/x/zones/z/instances/i"),
        ),
        (Reason.IRRELEVANT, _state("running")),
        (Reason.IRRELEVANT, _state("pending")),
        (Reason.WRONG_TYPE, _state("dancing")),
        (Reason.IRRELEVANT, _health(service="RDS")),
        (Reason.IRRELEVANT, _health(eventTypeCategory="issue")),
        (Reason.IRRELEVANT, _health(statusCode="closed")),
        (Reason.IRRELEVANT, _health(affectedEntities=[])),
        (Reason.BAD_TIME, _health(startTime="soon")),
        (Reason.WRONG_TYPE, _health(affectedEntities=[1])),
        (Reason.UNKNOWN_TYPE, _aws("EC2 Fleet Error", {})),
        (Reason.MISSING_FIELD, _spot(detail={})),
        (Reason.WRONG_TYPE, _spot(detail={"instance-id": "i 1"})),
        (Reason.WRONG_TYPE, _spot(detail="text")),
        (Reason.BAD_TIME, _spot(time="yesterday")),
        (Reason.FUTURE, _spot(time="2027-01-02T03:04:05Z")),
        (Reason.UNKNOWN_TYPE, _gcp("v1.compute.instances.insert")),
        (Reason.IRRELEVANT, _gcp("compute.instances.preempted", status={"code": 7})),
        (Reason.BAD_NAME, _gcp("compute.instances.preempted", resourceName="projects/my-project")),
        (Reason.WRONG_TYPE, {"protoPayload": 1, "insertId": "a", "timestamp": "x"}),
    ],
)
def test_a_notice_that_says_nothing_to_us_is_refused_with_its_reason(
    reason: Reason, message: dict[str, Any]
) -> None:
    with pytest.raises(MalformedEventError) as caught:
        _decode(message)
    assert caught.value.reason == reason
