"""Decoding our own events: what is understood, and what is refused with which reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corald.adapters.codec import MAX_BYTES, decode
from corald.adapters.records import Reason
from corald.errors import MalformedEventError
from corald.model.events import (
    CapacityObserved,
    DemandObserved,
    InterruptionNoticed,
    PriceObserved,
    Stamp,
)
from corald.model.fleet import InterruptionKind
from corald.model.market import Market, OfferingKey

NOW = 1_767_323_100.0
AT = 1_767_323_045.5
TIME = "2026-01-02T03:04:05.500Z"
DEMAND = {
    "model": "llama-3-70b",
    "request_rate": 12.5,
    "input_tokens": 900,
    "output_tokens": 200.5,
    "window_seconds": 10,
}
OFFERING = {
    "provider": "aws-main",
    "region": "us-east-1",
    "zone": "use1-az4",
    "instance_type": "p5.48xlarge",
    "market": "spot",
}
KEY = OfferingKey("aws-main", "us-east-1", "use1-az4", "p5.48xlarge", Market.SPOT)


def envelope(kind: str = "demand", data: Any = None, **attributes: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "e-1",
        "source": "/gateway/eu",
        "type": f"io.corald.{kind}.v1",
        "time": TIME,
        "sequence": "42",
        "datacontenttype": "application/json",
        "data": DEMAND if data is None else data,
    } | attributes


def encoded(kind: str = "demand", data: Any = None, **attributes: Any) -> bytes:
    return _json(envelope(kind, data, **attributes))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def reason_for(value: bytes | None, **options: Any) -> str:
    with pytest.raises(MalformedEventError) as caught:
        decode(value, received_at=NOW, **options)
    assert caught.value.detail.isascii()
    assert caught.value.detail.isprintable()
    assert len(caught.value.detail) <= 2000
    return Reason(caught.value.reason)


def test_a_demand_event_becomes_a_level_with_its_stamp() -> None:
    assert decode(encoded(epoch="7"), received_at=NOW) == (
        DemandObserved(
            "e-1", "/gateway/eu", "llama-3-70b", 12.5, 900.0, 200.5, 10.0, Stamp(7, 42, AT)
        ),
    )


def test_an_event_without_time_happened_when_it_was_received() -> None:
    event = envelope()
    del event["time"], event["sequence"]
    (demand,) = decode(json.dumps(event).encode(), received_at=NOW)
    assert isinstance(demand, DemandObserved)
    assert demand.stamp == Stamp(0, 0, NOW)


def test_a_demand_of_zero_needs_no_tokens_and_is_never_negative_zero() -> None:
    data = {"model": "m", "request_rate": -0.0, "window_seconds": 10}
    (demand,) = decode(encoded(data=data), received_at=NOW)
    assert isinstance(demand, DemandObserved)
    assert (str(demand.request_rate), demand.input_tokens) == ("0.0", None)


def test_the_other_types_become_their_events() -> None:
    notice = {
        "provider": "aws-main",
        "instance_id": "i-0abc",
        "kind": "terminate",
        "deadline": "2026-01-02T03:06:05+00:00",
    }
    assert decode(encoded("interruption", notice), received_at=NOW) == (
        InterruptionNoticed(
            "e-1", "aws-main", "i-0abc", InterruptionKind.TERMINATE, 1_767_323_165.0, AT
        ),
    )
    stamp = Stamp(0, 42, AT)
    assert decode(encoded("capacity", OFFERING | {"available": 3}), received_at=NOW) == (
        CapacityObserved("e-1", "/gateway/eu", KEY, 3, stamp),
    )
    assert decode(encoded("price", OFFERING | {"usd_per_hour": 31.5}), received_at=NOW) == (
        PriceObserved("e-1", "/gateway/eu", KEY, 31.5, stamp),
    )


def test_binary_mode_is_the_same_event() -> None:
    attributes = envelope()
    data = attributes.pop("data")
    headers = [(f"ce_{name}", str(value).encode()) for name, value in attributes.items()]
    headers += [("content-type", b"application/json"), ("ce_data", b'"forged"')]
    binary = decode(json.dumps(data).encode(), headers=headers, received_at=NOW)
    assert binary == decode(encoded(), received_at=NOW)


def test_binary_mode_cannot_smuggle_attributes_in_its_data() -> None:
    headers = [(f"ce_{k}", str(v).encode()) for k, v in envelope().items() if k != "data"]
    smuggled = json.dumps(DEMAND).encode() + b',"id":"other"'
    assert reason_for(smuggled, headers=headers) == Reason.MALFORMED_JSON
    assert reason_for(b'{"x": NaN}', headers=headers) == Reason.MALFORMED_JSON
    assert reason_for(b"{}", headers=[*headers, ("ce_id", b"\xff")]) == Reason.MALFORMED_JSON
    bare = [("ce_specversion", b"1.0")]
    assert reason_for(b"{}", headers=bare) == Reason.NOT_CLOUDEVENT


def _with(**changes: Any) -> bytes:
    return encoded(data=DEMAND | changes)


def _without(field: str) -> bytes:
    return encoded(data={key: value for key, value in DEMAND.items() if key != field})


def _raw(number: str) -> bytes:
    return encoded().replace(b"12.5", number.encode())


@pytest.mark.parametrize(
    ("reason", "value"),
    [
        (Reason.TOMBSTONE, None),
        (Reason.OVERSIZED, b" " * (MAX_BYTES + 1)),
        (Reason.MALFORMED_JSON, b""),
        (Reason.MALFORMED_JSON, b"not json"),
        (Reason.MALFORMED_JSON, encoded() + b" x"),
        (Reason.MALFORMED_JSON, encoded()[:-1]),
        (Reason.MALFORMED_JSON, b"[" * 60_000),
        (Reason.MALFORMED_JSON, b'{"type":' * 8_000),
        (Reason.MALFORMED_JSON, encoded().replace(b"llama", b"\xff\xfe")),
        (Reason.MALFORMED_JSON, encoded().replace(b"llama", b"\\ud800")),
        (Reason.MALFORMED_JSON, b"\xef\xbb\xbf" + encoded()),
        (Reason.MALFORMED_JSON, _raw("9" * 5000)),
        (Reason.NOT_CLOUDEVENT, b"null"),
        (Reason.NOT_CLOUDEVENT, b"[]"),
        (Reason.NOT_CLOUDEVENT, b'"text"'),
        (Reason.NOT_CLOUDEVENT, b"{}"),
        (Reason.NOT_CLOUDEVENT, json.dumps(DEMAND).encode()),
        (Reason.NOT_CLOUDEVENT, encoded(specversion="0.3")),
        (Reason.UNKNOWN_TYPE, encoded(type="com.example.order.v1")),
        (Reason.UNKNOWN_TYPE, encoded(type="io.corald.wish.v1")),
        (Reason.UNSUPPORTED_VERSION, encoded(type="io.corald.demand.v2")),
        (Reason.MISSING_FIELD, _without("model")),
        (Reason.MISSING_FIELD, _without("output_tokens")),
        (Reason.MISSING_FIELD, _without("window_seconds")),
        (Reason.UNKNOWN_FIELD, _with(surge=True)),
        (Reason.WRONG_TYPE, _with(request_rate="12.5")),
        (Reason.WRONG_TYPE, _with(request_rate=True)),
        (Reason.WRONG_TYPE, _with(request_rate=None)),
        (Reason.WRONG_TYPE, encoded(data=[1])),
        (Reason.WRONG_TYPE, encoded(sequence="-1")),
        (Reason.WRONG_TYPE, encoded(sequence="1" * 19)),
        (Reason.WRONG_TYPE, encoded(sequence=1.5)),
        (Reason.OUT_OF_RANGE, _raw("NaN")),
        (Reason.OUT_OF_RANGE, _raw("-Infinity")),
        (Reason.OUT_OF_RANGE, _raw("1e999")),
        (Reason.OUT_OF_RANGE, _with(request_rate=-0.1)),
        (Reason.OUT_OF_RANGE, _with(request_rate=1e8)),
        (Reason.OUT_OF_RANGE, _with(output_tokens=0)),
        (Reason.OUT_OF_RANGE, _with(window_seconds=0)),
        (Reason.OUT_OF_RANGE, encoded("price", OFFERING | {"usd_per_hour": 0})),
        (Reason.OUT_OF_RANGE, encoded("capacity", OFFERING | {"available": -1})),
        (Reason.WRONG_TYPE, encoded("capacity", OFFERING | {"available": 1.5})),
        (Reason.WRONG_TYPE, encoded("price", OFFERING | {"usd_per_hour": 1, "market": "free"})),
        (Reason.BAD_NAME, _with(model="Llama 3")),
        (Reason.BAD_NAME, _with(model="")),
        (Reason.BAD_NAME, _with(model="a" * 64)),
        (Reason.BAD_NAME, _with(model="llama\n")),
        (Reason.BAD_NAME, _with(model="llama\u0000")),
        (Reason.BAD_NAME, _with(model="$(reboot)")),
        (Reason.BAD_NAME, encoded(source="a b")),
        (Reason.BAD_NAME, encoded(id="")),
        (Reason.BAD_TIME, encoded(time="2026-01-02T03:04:05")),
        (Reason.BAD_TIME, encoded(time="1767323045")),
        (Reason.BAD_TIME, encoded(time="2026-02-30T03:04:05Z")),
        (Reason.FUTURE, encoded(time="2026-01-02T03:10:05Z")),
    ],
    ids=lambda it: it if isinstance(it, Reason) else "record",
)
def test_a_poisonous_record_is_refused_with_its_reason(reason: Reason, value: bytes | None) -> None:
    assert reason_for(value) == reason


def test_the_last_of_two_equal_keys_is_the_one_that_is_checked() -> None:
    twice = encoded().replace(b'"request_rate": 12.5', b'"request_rate": 1, "request_rate": -5')
    assert reason_for(twice) == Reason.OUT_OF_RANGE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*envelope(), "epoch", "detail-type", "detail", "protoPayload", "insertId"})


@settings(max_examples=300, deadline=None)
@given(
    value=st.binary(max_size=200)
    | JSON.map(_json)
    | st.dictionaries(st.sampled_from(FIELDS), JSON).map(_json)
    | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2).map(
        lambda it: _json(envelope() | it)
    )
    | st.dictionaries(st.sampled_from(sorted(DEMAND)), JSON).map(lambda it: _with(**it)),
    headers=st.lists(
        st.tuples(st.sampled_from(["ce_specversion", "ce_type", "CE_id", "x"]), st.binary()),
        max_size=4,
    ),
)
def test_no_record_does_anything_but_decode_or_be_refused(
    value: bytes, headers: list[tuple[str, bytes]]
) -> None:
    try:
        decoded = decode(value, headers=headers, received_at=NOW)
    except MalformedEventError as error:
        Reason(error.reason)  # or ValueError
    else:
        assert decoded
