"""Kafka settings: what is refused before any connection is made."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from corald.adapters.kafka_settings import KafkaSettings
from corald.errors import ConfigError

SASL: dict[str, Any] = {
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "u",
    "sasl_password": "canary",
}


@pytest.mark.parametrize(
    "bootstrap", ["localhost:9092", "127.0.0.1:9092,127.0.0.2:9093", "[::1]:9092"]
)
def test_plain_text_to_this_machine_is_allowed(bootstrap: str) -> None:
    assert KafkaSettings(bootstrap).client_options()["security_protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("unencrypted", {"bootstrap": "kafka.example:9092"}),
        ("unencrypted", {"bootstrap": "localhost:9092,10.0.0.1:9092"}),
        (
            "unencrypted",
            {"bootstrap": "10.0.0.1:9092", "security_protocol": "SASL_PLAINTEXT"} | SASL,
        ),
        ("not host:port", {"bootstrap": "localhost"}),
        ("not host:port", {"bootstrap": ""}),
        ("not a topic", {"demand_topic": "a b"}),
        ("security_protocol", {"security_protocol": "TLS"}),
        ("sasl_mechanism", {"security_protocol": "SASL_SSL"} | SASL | {"sasl_mechanism": "GSSAPI"}),
        ("sasl_password", {"security_protocol": "SASL_SSL"} | SASL | {"sasl_password": ""}),
        ("need security_protocol SASL_SSL", SASL),
        ("need security_protocol SSL", {"ssl_cafile": Path("ca.pem")}),
        ("belong together", {"security_protocol": "SSL", "ssl_certfile": Path("c.pem")}),
        ("missing.pem", {"security_protocol": "SSL", "ssl_cafile": Path("missing.pem")}),
    ],
)
def test_what_cannot_work_or_is_not_safe_is_refused(message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        KafkaSettings(**({"bootstrap": "localhost:9092"} | settings))


def test_insecure_traffic_must_be_asked_for() -> None:
    assert KafkaSettings("10.0.0.1:9092", allow_insecure=True).addresses == ["10.0.0.1:9092"]


def test_tls_verifies_chain_and_host_name_and_is_not_old() -> None:
    settings = KafkaSettings("kafka.example:9093", security_protocol="SASL_SSL", **SASL)
    context = settings.client_options()["ssl_context"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert "canary" not in repr(settings)


def test_a_topic_for_both_kinds_carries_both() -> None:
    one = KafkaSettings("localhost:9092", demand_topic="t", availability_topic="t")
    assert (one.topics, one.carries_demand("t")) == (("t",), None)
    two = KafkaSettings("localhost:9092")
    assert [two.carries_demand(topic) for topic in two.topics] == [True, False]
