"""What is published to which topic, when."""

from __future__ import annotations

import asyncio
import json

from corald.adapters.kafka import KafkaPublisher
from corald.adapters.kafka_settings import KafkaSettings
from corald.adapters.publishing import TopicSink, dead_letters
from corald.model.events import Reject
from corald.model.state import Note
from tests.unit.adapters.shown import ShownControl


def published(*notes: Note, **topics: str | None) -> list[tuple[str, dict]]:
    async def run() -> list[tuple[str, dict]]:
        publisher = KafkaPublisher(KafkaSettings("localhost:1"))
        names = {"audit": None, "plans": None, "routes": None} | topics
        sink = TopicSink(publisher, cluster="test", **names)
        sink.watch(ShownControl())
        for note in notes:
            sink.publish(note)
        queued = [(topic, key, json.loads(value)) for topic, key, value, _ in publisher._queue]
        assert {key for _, key, _ in queued} <= {b"test"}
        return [(topic, value) for topic, _, value in queued]

    return asyncio.run(run())


NOTES = (
    Note("launched", (("provider", "aws"),), audit=True, at=5.0),
    Note("event_applied"),
    Note("plan_moves", (("add", 1),)),
    Note("routes_changed"),
)


def test_each_topic_carries_what_the_admin_interface_answers() -> None:
    audit, plan, routes = published(*NOTES, audit="a", plans="p", routes="r")
    assert audit == ("a", {"at": 5.0, "event": "launched", "fields": {"provider": "aws"}})
    assert (plan[0], [row["move"] for row in plan[1]["rows"]]) == ("p", ["add", "keep", "drain"])
    assert (routes[0], routes[1]["version"]) == ("r", 7)


def test_topics_without_a_name_get_nothing() -> None:
    assert published(*NOTES) == []
    assert [topic for topic, _ in published(*NOTES, routes="r")] == ["r"]


def test_refused_records_go_to_the_dead_letter_topic_with_their_reason() -> None:
    async def run() -> None:
        publisher = KafkaPublisher(KafkaSettings("localhost:1"))
        assert dead_letters(publisher, None) is None
        send = dead_letters(publisher, "dead")
        assert send is not None
        send(Reject("malformed-json", "at 3", b"{{", "corald.demand", 2, 7, 1.0))
        [(topic, _, value, headers)] = publisher._queue
        assert (topic, value) == ("dead", b"{{")
        assert dict(headers)["reason"] == b"malformed-json"
        assert dict(headers)["origin"] == b"corald.demand/2/7"

    asyncio.run(run())
