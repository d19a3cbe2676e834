"""Fixtures for tests that need the real broker: one broker a run, one topic a test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.kafka.broker import KafkaBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A broker with every listener open; a test that stops or pauses it must bring it back."""
    with KafkaBroker(secure=True) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: KafkaBroker) -> str:
    """A new, empty topic of one partition."""
    name = f"corald.test.{next(_numbers)}"
    kafka_broker.create_topic(name)
    return name
