"""A thousand records that nobody should send: counted with their reasons, and without effect."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from typing import Any

from tests.e2e.daemon import PROVIDER
from tests.e2e.library import MODELS
from tests.e2e.programs import ACCOUNT, REGION, until
from tests.e2e.stack import Stack
from tests.e2e.truths import calls

RECORDS = 1000
IGNORED = "corald_events_ignored_total"
OFFERING = {"provider": PROVIDER, "region": REGION, "zone": "use1-az1", "market": "spot"}
Poison = tuple[str, bytes | None]
"""The reason it is ignored for, and the record."""


def _event(kind: str, data: dict[str, Any], **attributes: Any) -> bytes:
    event = {
        "specversion": "1.0",
        "id": "poison",
        "source": "/poison",
        "type": f"io.corald.{kind}",
        "data": data,
    }
    return json.dumps(event | attributes).encode()


def _demand(data: dict[str, Any] | None = None, **attributes: Any) -> bytes:
    level = {
        "model": MODELS[0],
        "request_rate": 500.0,
        "input_tokens": 1000.0,
        "output_tokens": 250.0,
        "window_seconds": 1.0,
    }
    return _event("demand.v1", level | (data or {}), **attributes)


def _notice(instance: str, kind: str = "terminate", provider: str = PROVIDER) -> bytes:
    return _event("interruption.v1", {"provider": provider, "instance_id": instance, "kind": kind})


def _aws(instance: str, **changes: Any) -> bytes:
    message = {
        "version": "0",
        "id": "poison",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": REGION,
        "detail": {"instance-id": instance, "instance-action": "terminate"},
    }
    return json.dumps(message | changes).encode()


def _demand_poison() -> list[Poison]:
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    huge = _demand({"request_rate": 7.0})[:-2].decode() + ', "x": "' + "x" * 70_000 + '"}}'
    return [
        ("tombstone", None),
        ("malformed-json", b""),
        ("malformed-json", b"not json at all"),
        ("malformed-json", b"[" * 20_000),
        ("malformed-json", b'{"specversion": "1.0", "id": "\xff\xfe"}'),
        ("malformed-json", _demand({"request_rate": float("nan")}).replace(b"NaN", b"-nan")),
        ("not-cloudevent", b"{}"),
        ("not-cloudevent", b"[1, 2, 3]"),
        ("not-cloudevent", b"null"),
        ("oversized", huge.encode()),
        ("out-of-range", _demand({"request_rate": -1.0})),
        ("out-of-range", _demand({"request_rate": 1e300})),
        ("out-of-range", _demand({"input_tokens": 0.0})),
        ("wrong-type", _demand({"request_rate": "500"})),
        ("wrong-type", _demand({"request_rate": True})),
        ("unknown-field", _demand({"rate": 500.0})),
        ("missing-field", _event("demand.v1", {"model": MODELS[0], "window_seconds": 1.0})),
        ("bad-name", _demand({"model": "Qwen3\r\n8B"})),
        ("bad-name", _demand(source="")),
        ("future", _demand(time=later)),
        ("bad-time", _demand(time="yesterday")),
        ("unsupported-version", _event("demand.v2", {"model": MODELS[0], "level": 500.0})),
        ("unknown-type", _event("weather.v1", {"rain": True})),
        ("unknown-model", _demand({"model": "some-other-model"})),
        ("wrong-topic", _notice("i-0123456789abcdef0")),
    ]


def _availability_poison(ours: str) -> list[Poison]:
    price = OFFERING | {"instance_type": "g6e.xlarge", "usd_per_hour": 0.0}
    foreign = OFFERING | {"instance_type": "g6e.xlarge", "provider": "gcp-main", "available": 0}
    unheard_of = OFFERING | {"instance_type": "z9.9xlarge", "available": 0}
    return [
        ("unknown-instance", _notice("i-0123456789abcdef0")),
        ("unknown-instance", _notice(ours, provider="gcp-main")),
        ("unknown-instance", _aws("i-0fedcba9876543210")),
        ("foreign", _aws(ours, account="999999999999")),
        ("foreign", _aws(ours, region="eu-central-1")),
        ("unknown-type", _aws(ours, **{"detail-type": "EC2 Fleet Spot Instance Request Change"})),
        ("irrelevant", _state_change(ours, "running")),
        ("wrong-type", _state_change(ours, "levitating")),
        ("missing-field", _aws(ours, detail={"instance-action": "terminate"})),
        ("wrong-type", _aws(ours, detail="terminate")),
        ("bad-time", _aws(ours, time="soon")),
        ("wrong-type", _notice(ours, kind="explode")),
        ("out-of-range", _event("price.v1", price)),
        ("unknown-provider", _event("capacity.v1", foreign)),
        ("unknown-instance-type", _event("capacity.v1", unheard_of)),
        ("malformed-json", b"\x00\x01\x02"),
    ]


def _state_change(instance: str, state: str) -> bytes:
    kind = {"detail-type": "EC2 Instance State-change Notification"}
    return _aws(instance, detail={"instance-id": instance, "state": state}, **kind)


def test_a_thousand_bad_foreign_and_unknown_events_are_counted_and_have_no_effect(make_stack):
    stack = make_stack()
    stack.daemon.start()
    rates = {MODELS[0]: 4.0, MODELS[1]: 6.0}
    stack.serving(rates)
    stack.producer.order("silence")
    _read_to_the_end(stack)
    ours = stack.daemon.status()["instances"][0]["instance"]
    before, began = _ignored(stack), time.time()

    settings = stack.daemon.settings
    sent: Counter[str] = Counter()
    half = RECORDS // 2
    for topic, poison in (
        (settings.demand_topic, _demand_poison()),
        (settings.availability_topic, _availability_poison(ours)),
    ):
        records = list(islice(cycle(poison), half))
        sent.update(reason for reason, _ in records)
        stack.producer.order("records", topic=topic, values=list(_as_text(records)))
    assert sent.total() == RECORDS
    _read_to_the_end(stack)

    counted = _ignored(stack)
    counted.subtract(before)
    assert +counted == sent
    assert not calls(stack.cloud.ledger(), began)
    assert stack.daemon.ready()
    assert {
        name: model["demand"] for name, model in stack.daemon.models().items() if name in rates
    } == rates

    stack.serving({MODELS[0]: 8.0, MODELS[1]: 6.0})  # and it goes on working


def _as_text(records: list[Poison]) -> Iterator[str | None]:
    for _, value in records:
        yield None if value is None else base64.b64encode(value).decode()


def _ignored(stack: Stack) -> Counter[str]:
    """How many events were ignored for each reason."""
    return Counter(
        {
            name.partition('reason="')[2].rstrip('"}'): int(value)
            for name, value in stack.daemon.metrics().items()
            if name.startswith(IGNORED)
        }
    )


def _read_to_the_end(stack: Stack) -> None:
    """Wait until the durable offsets are those of the topics' ends."""
    ends = stack.broker_ends()
    until(lambda: stack.daemon.offsets() == ends, f"read up to {ends}")
