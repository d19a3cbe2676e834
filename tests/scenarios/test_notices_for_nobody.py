"""A thousand notices that mean nothing to us: each is counted with its reason, nothing is done."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

from corald.adapters.intake import Intake
from corald.adapters.native import NativeRouting
from corald.market.faults import Call
from corald.model.events import Offset

TOPIC = "corald.availability"
ROUTING = NativeRouting({("aws", "111122223333", "*"): "aws"})


def own_event(number, now, **changes):
    data = {"provider": "aws", "instance_id": f"i-{number:08x}", "kind": "terminate"}
    event = {
        "specversion": "1.0",
        "type": "io.corald.interruption.v1",
        "id": f"event-{number}",
        "source": "bridge",
        "time": now,
        "sequence": str(number),
        "data": data,
    }
    return json.dumps(event | changes).encode()


def foreign_notice(number, now):
    notice = {
        "version": "0",
        "id": f"notice-{number}",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": "999988887777",
        "time": now,
        "region": "us-east-2",
        "detail": {"instance-id": f"i-{number:08x}", "instance-action": "terminate"},
    }
    return json.dumps(notice).encode()


def missing_field(number, now):
    return own_event(number, now, data={"provider": "aws", "kind": "terminate"})


KINDS = {
    "unknown-instance": own_event,
    "unknown-instance of an unknown provider": lambda n, now: own_event(
        n, now, data={"provider": "azure", "instance_id": "vm-1", "kind": "terminate"}
    ),
    "foreign": foreign_notice,
    "bad-name": lambda n, now: own_event(n, now, source=""),
    "malformed-json": lambda n, now: own_event(n, now)[:-7],
    "missing-field": missing_field,
    "unsupported-version": lambda n, now: own_event(n, now, type="io.corald.interruption.v7"),
    "tombstone": lambda n, now: None,
}


def test_a_thousand_notices_for_nobody_are_counted_and_nothing_is_done(play):
    async def story(town):
        town.demand(2.0)
        await town.ready(2)
        before = Counter(entry.what for entry in town.ledger.calls())
        at = town.world.clock.now()
        now = datetime.fromtimestamp(at, tz=UTC).isoformat()
        makers = list(KINDS.values())
        for first in range(0, 1000, 250):
            intake = Intake(at, routing=ROUTING)
            for offset in range(first, first + 250):
                record = makers[offset % len(makers)](offset, now)
                intake.add(record, topic=TOPIC, offset=offset, demand=False)
            await town.world.deliver(intake.batch([Offset(TOPIC, 0, first + 250)]))
        await town.world.advance(30)

        assert town.world.alive
        assert town.metric("corald_events_ignored_total") == 1000
        for reason, count in Counter(kind.partition(" ")[0] for kind in KINDS).items():
            counted = town.metric_of("corald_events_ignored_total", reason=reason)
            assert counted == 125 * count
        after = Counter(entry.what for entry in town.ledger.calls())
        assert after[Call.LAUNCH] == before[Call.LAUNCH]
        assert after[Call.TERMINATE] == before[Call.TERMINATE]
        assert town.model().replicas_ready == 2
        await town.world.kill()
        offsets = {o.topic: o.next_offset for o in (await town.world.stored()).offsets}
        assert offsets[TOPIC] == 1000

    play(story)
