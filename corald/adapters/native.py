"""Clouds' own notices, as they come off their bus: AWS EventBridge, GCP audit log entries.

They name an account or project where our events name a provider; `NativeRouting` translates.
Shapes: the EC2 User Guide ("Spot Instance interruption notices", "rebalance recommendations",
"State change events"), the AWS Health schema for EventBridge, Cloud Logging's `LogEntry`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from corald.adapters.records import (
    InstanceId,
    Reason,
    Visible,
    epoch_seconds,
    refuse_future,
    safe_text,
)
from corald.errors import MalformedEventError
from corald.model.events import InterruptionNoticed
from corald.model.fleet import InterruptionKind

AWS: Final = "aws"
GCP: Final = "gcp"
SPOT_NOTICE_SECONDS: Final = 120.0
PREEMPTION_SECONDS: Final = 30.0
"""The window of a Spot VM unless `preemption_notice_duration` is set."""

_LEAVING = frozenset(("stopping", "stopped", "shutting-down", "terminated"))
_KNOWN = frozenset(("pending", "running")) | _LEAVING
_EC2_INSTANCE = re.compile(r"(?:arn:[^:]+:ec2:[^:]*:[^:]*:instance/)?(i-[0-9a-f]{8,17})")
_GCE_METHOD = re.compile(
    r"(?:(?:v1|beta|alpha)\.)?compute\.instances\.(preempted|simulateMaintenanceEvent)"
)
_GCE_INSTANCE = re.compile(
    r"projects/([a-z0-9.:-]{1,63})/zones/([a-z0-9-]{1,63})/instances/([a-z0-9-]{1,63})"
)


@dataclass(frozen=True, slots=True)
class NativeRouting:
    """Which configured provider an account belongs to.

    Keys: (`aws`, account id, region), (`gcp`, project id, `*`); region `*` is any region.
    """

    providers: Mapping[tuple[str, str, str], str] = field(default_factory=dict)

    def provider(self, cloud: str, account: str, region: str) -> str:
        """The provider's name, or MalformedEventError: the notice is not for us."""
        for key in ((cloud, account, region), (cloud, account, "*")):
            if key in self.providers:
                return self.providers[key]
        raise MalformedEventError(Reason.FOREIGN, safe_text(f"{cloud} {account} {region}"))


NO_ROUTING: Final = NativeRouting()


class _Lenient(BaseModel):
    """Clouds add fields as they please."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _EventBridge(_Lenient):
    id: Visible
    kind: str = Field(alias="detail-type")
    account: str
    region: str
    time: str
    detail: dict[str, Any]


class _InstanceDetail(_Lenient):
    instance: InstanceId = Field(alias="instance-id")
    action: str = Field(default="", alias="instance-action")
    state: str = ""


class _Entity(_Lenient):
    value: str = Field(alias="entityValue")
    status: str = ""


class _HealthDetail(_Lenient):
    service: str
    category: str = Field(alias="eventTypeCategory")
    status: str = Field(default="", alias="statusCode")
    region: str = Field(default="", alias="eventRegion")
    start: str = Field(default="", alias="startTime")
    entities: list[_Entity] = Field(default_factory=list, alias="affectedEntities")


class _AuditPayload(_Lenient):
    method: str = Field(alias="methodName")
    resource: str = Field(alias="resourceName")
    status: dict[str, Any] = Field(default_factory=dict)


class _LogEntry(_Lenient):
    id: Visible = Field(alias="insertId")
    time: str = Field(alias="timestamp")
    payload: _AuditPayload = Field(alias="protoPayload")


_INSTANCE_DETAIL = TypeAdapter(_InstanceDetail)
_HEALTH_DETAIL = TypeAdapter(_HealthDetail)


def decode(
    message: Mapping[str, Any], *, received_at: float, routing: NativeRouting
) -> tuple[InterruptionNoticed, ...]:
    """Turn a parsed notice into interruptions; MalformedEventError when it is none."""
    try:
        if "detail-type" in message:
            return _aws(_EventBridge.model_validate(message), received_at, routing)
        if "protoPayload" in message:
            return _gcp(_LogEntry.model_validate(message), received_at, routing)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = safe_text(".".join(str(part) for part in problem["loc"]))
        missing = problem["type"] == "missing"
        reason = Reason.MISSING_FIELD if missing else Reason.WRONG_TYPE
        raise MalformedEventError(reason, where) from None
    raise MalformedEventError(Reason.NOT_CLOUDEVENT, "no CloudEvents `type`")


def _aws(
    event: _EventBridge, received_at: float, routing: NativeRouting
) -> tuple[InterruptionNoticed, ...]:
    at = epoch_seconds(event.time)
    refuse_future(at, received_at)
    if event.kind == "AWS Health Event":
        return _health(event, _HEALTH_DETAIL.validate_python(event.detail), at, routing)
    provider = routing.provider(AWS, event.account, event.region)
    deadline: float | None = None
    match event.kind:
        case "EC2 Spot Instance Interruption Warning":
            detail = _INSTANCE_DETAIL.validate_python(event.detail)
            # A hibernating machine stops at once, without the two minutes.
            notice = 0.0 if detail.action == "hibernate" else SPOT_NOTICE_SECONDS
            kind, deadline = InterruptionKind.TERMINATE, at + notice
        case "EC2 Instance Rebalance Recommendation":
            detail = _INSTANCE_DETAIL.validate_python(event.detail)
            kind = InterruptionKind.REBALANCE
        case "EC2 Instance State-change Notification":
            detail = _INSTANCE_DETAIL.validate_python(event.detail)
            if detail.state not in _LEAVING:
                reason = Reason.IRRELEVANT if detail.state in _KNOWN else Reason.WRONG_TYPE
                raise MalformedEventError(reason, safe_text(f"state {detail.state}"))
            kind, deadline = InterruptionKind.TERMINATE, at
        case _:
            raise MalformedEventError(Reason.UNKNOWN_TYPE, safe_text(event.kind))
    return (InterruptionNoticed(event.id, provider, detail.instance, kind, deadline, at),)


def _health(
    event: _EventBridge, detail: _HealthDetail, at: float, routing: NativeRouting
) -> tuple[InterruptionNoticed, ...]:
    """A scheduled change of EC2 machines, several to a notice; its start is the deadline."""
    provider = routing.provider(AWS, event.account, detail.region or event.region)
    if (detail.service, detail.category) != ("EC2", "scheduledChange") or detail.status == "closed":
        what = f"{detail.service} {detail.category} {detail.status}"
        raise MalformedEventError(Reason.IRRELEVANT, safe_text(what))
    open_entities = (entity for entity in detail.entities if entity.status != "RESOLVED")
    found = [_EC2_INSTANCE.fullmatch(entity.value) for entity in open_entities]
    instances = [match[1] for match in found if match]
    if not instances:
        raise MalformedEventError(Reason.IRRELEVANT, "no affected instance")
    deadline = _health_time(detail.start) if detail.start else None
    kind = InterruptionKind.MAINTENANCE
    return tuple(
        # Each machine's notice has its own id: ids are what duplicates are told by.
        InterruptionNoticed(f"{event.id}/{instance}", provider, instance, kind, deadline, at)
        for instance in instances
    )


def _health_time(text: str) -> float:
    """AWS Health writes RFC 1123 times (`Sat, 04 Jun 2016 05:01:10 GMT`), lately RFC 3339 too."""
    if text[:1].isdigit():
        return epoch_seconds(text)
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        raise MalformedEventError(Reason.BAD_TIME, safe_text(text)) from None


def _gcp(
    entry: _LogEntry, received_at: float, routing: NativeRouting
) -> tuple[InterruptionNoticed, ...]:
    at = epoch_seconds(entry.time)
    refuse_future(at, received_at)
    method = _GCE_METHOD.fullmatch(entry.payload.method)
    if method is None:
        raise MalformedEventError(Reason.UNKNOWN_TYPE, safe_text(entry.payload.method))
    resource = _GCE_INSTANCE.fullmatch(entry.payload.resource)
    if resource is None:
        raise MalformedEventError(Reason.BAD_NAME, "protoPayload.resourceName")
    project, zone, name = resource.groups()
    provider = routing.provider(GCP, project, "*")
    if entry.payload.status.get("code", 0) != 0:
        raise MalformedEventError(Reason.IRRELEVANT, "the call failed")
    # A name is unique in its zone only.
    instance = f"{zone}/{name}"
    if method[1] == "preempted":
        kind, deadline = InterruptionKind.TERMINATE, at + PREEMPTION_SECONDS
    else:
        kind, deadline = InterruptionKind.MAINTENANCE, None
    return (InterruptionNoticed(entry.id, provider, instance, kind, deadline, at),)
