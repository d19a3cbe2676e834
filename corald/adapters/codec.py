"""Decode one record into events: CloudEvents of our own types, or a cloud's native notice.

Pure, and the only judge of what is well formed. What a well-formed event means (an unknown model, a
stale sequence) is the core's business. Duplicate JSON keys: the last one wins, and is validated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from corald.adapters import native
from corald.adapters.native import NO_ROUTING, NativeRouting
from corald.adapters.records import (
    InstanceId,
    Name,
    Reason,
    Visible,
    epoch_seconds,
    refuse_future,
    safe_text,
)
from corald.errors import MalformedEventError
from corald.model.events import (
    CapacityObserved,
    DemandObserved,
    ExternalEvent,
    InterruptionNoticed,
    PriceObserved,
    Stamp,
)
from corald.model.fleet import InterruptionKind
from corald.model.market import Market, OfferingKey

Headers = Iterable[tuple[str, bytes | None]]

MAX_BYTES: Final = 64 * 1024
MAX_RATE: Final = 1e7
MAX_TOKENS: Final = 1e7
MAX_WINDOW_SECONDS: Final = 86_400.0
MAX_AVAILABLE: Final = 1_000_000
MAX_USD_PER_HOUR: Final = 1e5

Counter = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")] | Annotated[int, Field(ge=0, lt=10**18)]
"""CloudEvents extensions carry big integers as strings; 18 digits fit the store's column."""
Tokens = Annotated[float, Field(gt=0, le=MAX_TOKENS)]

_OWN_TYPE = re.compile(r"io\.corald\.(demand|interruption|capacity|price)\.v[0-9]{1,9}")
_NAMES = frozenset(
    ("id", "source", "model", "provider", "region", "zone", "instance_type", "instance_id")
)

_REASONS = {
    "json_invalid": Reason.MALFORMED_JSON,
    "union_tag_not_found": Reason.NOT_CLOUDEVENT,
    "dict_type": Reason.NOT_CLOUDEVENT,
    "missing": Reason.MISSING_FIELD,
    "extra_forbidden": Reason.UNKNOWN_FIELD,
    "finite_number": Reason.OUT_OF_RANGE,
    "greater_than": Reason.OUT_OF_RANGE,
    "greater_than_equal": Reason.OUT_OF_RANGE,
    "less_than": Reason.OUT_OF_RANGE,
    "less_than_equal": Reason.OUT_OF_RANGE,
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class DemandData(_Strict):
    """`data` of `io.corald.demand.v1`."""

    model: Name
    request_rate: Annotated[float, Field(ge=0, le=MAX_RATE)]
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    window_seconds: Annotated[float, Field(gt=0, le=MAX_WINDOW_SECONDS)]


class InterruptionData(_Strict):
    """`data` of `io.corald.interruption.v1`."""

    provider: Name
    instance_id: InstanceId
    kind: InterruptionKind
    deadline: str | None = None


class _OfferingData(_Strict):
    provider: Name
    region: Name
    zone: Name
    instance_type: Name
    market: Market

    @property
    def key(self) -> OfferingKey:
        return OfferingKey(self.provider, self.region, self.zone, self.instance_type, self.market)


class CapacityData(_OfferingData):
    """`data` of `io.corald.capacity.v1`."""

    available: Annotated[int, Field(ge=0, le=MAX_AVAILABLE)]


class PriceData(_OfferingData):
    """`data` of `io.corald.price.v1`."""

    usd_per_hour: Annotated[float, Field(gt=0, le=MAX_USD_PER_HOUR)]


class _Envelope(BaseModel):
    """CloudEvents attributes; those of other systems (`traceparent`, ...) may stand beside them."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    specversion: Literal["1.0"]
    id: Visible
    source: Visible
    time: str | None = None
    sequence: Counter = 0
    epoch: Counter = 0


class _DemandEvent(_Envelope):
    type: Literal["io.corald.demand.v1"]
    data: DemandData


class _InterruptionEvent(_Envelope):
    type: Literal["io.corald.interruption.v1"]
    data: InterruptionData


class _CapacityEvent(_Envelope):
    type: Literal["io.corald.capacity.v1"]
    data: CapacityData


class _PriceEvent(_Envelope):
    type: Literal["io.corald.price.v1"]
    data: PriceData


_AnyEvent = _DemandEvent | _InterruptionEvent | _CapacityEvent | _PriceEvent
_EVENT: TypeAdapter[_AnyEvent] = TypeAdapter(Annotated[_AnyEvent, Field(discriminator="type")])


def decode(
    value: bytes | None,
    *,
    headers: Headers = (),
    received_at: float,
    routing: NativeRouting = NO_ROUTING,
) -> tuple[ExternalEvent, ...]:
    """Turn one record into its events: one, or several for a notice about several machines.

    Raises:
        MalformedEventError: with one of `Reason` as its reason; nothing else, whatever the bytes.
    """
    if value is None:
        raise MalformedEventError(Reason.TOMBSTONE)
    if len(value) > MAX_BYTES:
        raise MalformedEventError(Reason.OVERSIZED, f"{len(value)} bytes, at most {MAX_BYTES}")
    attributes = _binary_mode(headers)
    if attributes:
        value = _structured(attributes, value)
    try:
        parsed = _EVENT.validate_json(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    else:
        return (_event(parsed, received_at),)
    if problem["type"] == "union_tag_not_found" and not attributes:
        return native.decode(from_json(value), received_at=received_at, routing=routing)
    raise _malformed(problem)


def _binary_mode(headers: Headers) -> dict[str, bytes]:
    """The CloudEvents attributes in a record's headers; none when it is in structured mode."""
    found = {key.lower(): raw for key, raw in headers if raw is not None}
    if "ce_specversion" not in found:
        return {}
    return {key[3:]: raw for key, raw in found.items() if key.startswith("ce_")}


def _structured(attributes: dict[str, bytes], data: bytes) -> bytes:
    try:
        texts = {key: raw.decode() for key, raw in attributes.items() if key != "data"}
        return to_json({**texts, "data": from_json(data, allow_inf_nan=False)})
    except ValueError as error:
        raise MalformedEventError(Reason.MALFORMED_JSON, safe_text(str(error))) from None


def _event(parsed: _AnyEvent, received_at: float) -> ExternalEvent:
    at = received_at if parsed.time is None else epoch_seconds(parsed.time)
    refuse_future(at, received_at)
    stamp = Stamp(int(parsed.epoch), int(parsed.sequence), at)
    match parsed:
        case _DemandEvent(data=data):
            return _demand(parsed, data, stamp)
        case _InterruptionEvent(data=data):
            deadline = None if data.deadline is None else epoch_seconds(data.deadline)
            return InterruptionNoticed(
                parsed.id, data.provider, data.instance_id, data.kind, deadline, at
            )
        case _CapacityEvent(data=data):
            return CapacityObserved(parsed.id, parsed.source, data.key, data.available, stamp)
        case _PriceEvent(data=data):
            return PriceObserved(parsed.id, parsed.source, data.key, data.usd_per_hour, stamp)


def _demand(parsed: _Envelope, data: DemandData, stamp: Stamp) -> DemandObserved:
    if data.request_rate > 0 and (data.input_tokens is None or data.output_tokens is None):
        raise MalformedEventError(
            Reason.MISSING_FIELD, "input_tokens and output_tokens, as request_rate is above zero"
        )
    return DemandObserved(
        parsed.id,
        parsed.source,
        data.model,
        data.request_rate + 0.0,  # no negative zero
        data.input_tokens,
        data.output_tokens,
        data.window_seconds,
        stamp,
    )


def _malformed(problem: ErrorDetails) -> MalformedEventError:
    """Name what pydantic found; the detail says where, not what stood there."""
    kind, where = problem["type"], [str(part) for part in problem["loc"]]
    if kind == "union_tag_invalid":
        named = str(problem["ctx"]["tag"])
        known = _OWN_TYPE.fullmatch(named)
        reason = Reason.UNSUPPORTED_VERSION if known else Reason.UNKNOWN_TYPE
        return MalformedEventError(reason, safe_text(named))
    field = where[-1] if where else ""
    if field == "specversion":
        reason = Reason.NOT_CLOUDEVENT
    elif kind == "string_pattern_mismatch" and field in _NAMES:
        reason = Reason.BAD_NAME
    else:
        reason = _REASONS.get(kind, Reason.WRONG_TYPE)
    return MalformedEventError(reason, safe_text(": ".join([".".join(where[1:]), kind])))
