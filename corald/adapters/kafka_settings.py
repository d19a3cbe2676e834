"""How to reach Kafka, checked; and what that means to its client."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from corald.errors import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
REQUEST_TIMEOUT_MS: Final = 10_000
RETRY_BACKOFF_MS: Final = 500

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:]+)\]|(?P<host>[A-Za-z0-9._-]+)):[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the events are; ConfigError when they could not be had, or not safely."""

    bootstrap: str
    """Comma-separated host:port."""
    demand_topic: str = "corald.demand"
    availability_topic: str = "corald.availability"
    group: str = "corald"
    """Names our committed offsets to lag tools; empty commits none."""
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    ssl_cafile: Path | None = None
    """None trusts the system's authorities."""
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    allow_insecure: bool = False
    """Allows traffic without TLS to another machine."""

    def __post_init__(self) -> None:
        for address in self.addresses:
            if not _ADDRESS.fullmatch(address):
                raise ConfigError(f"kafka.bootstrap: {address!r} is not host:port")
        for topic in self.topics:
            if not _TOPIC.fullmatch(topic):
                raise ConfigError(f"kafka.topics: {topic!r} is not a topic's name")
        if self.security_protocol not in PROTOCOLS:
            raise ConfigError(f"kafka.security_protocol: one of {', '.join(PROTOCOLS)}")
        self._check_sasl()
        self._check_tls()

    @property
    def addresses(self) -> list[str]:
        return [address.strip() for address in self.bootstrap.split(",")]

    @property
    def topics(self) -> tuple[str, ...]:
        """Each topic once: both kinds of events may share one."""
        return tuple(dict.fromkeys((self.demand_topic, self.availability_topic)))

    @property
    def tls(self) -> bool:
        return self.security_protocol in {"SSL", "SASL_SSL"}

    @property
    def sasl(self) -> bool:
        return self.security_protocol.startswith("SASL_")

    def carries_demand(self, topic: str) -> bool | None:
        """Whether a topic is for demand alone, not for demand, or (None) for both."""
        if self.demand_topic == self.availability_topic:
            return None
        return topic == self.demand_topic

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that every client of ours is made with."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.addresses,
            "client_id": "corald",
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            "security_protocol": self.security_protocol,
        }
        if self.sasl:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password
        if self.tls:
            options["ssl_context"] = self._ssl_context()
        return options

    def _check_sasl(self) -> None:
        if not self.sasl:
            if self.sasl_mechanism or self.sasl_username or self.sasl_password:
                raise ConfigError("kafka: SASL settings need security_protocol SASL_SSL")
            return
        if self.sasl_mechanism not in MECHANISMS:
            raise ConfigError(f"kafka.sasl_mechanism: one of {', '.join(MECHANISMS)}")
        if not (self.sasl_username and self.sasl_password):
            raise ConfigError("kafka: SASL needs sasl_username and sasl_password")

    def _check_tls(self) -> None:
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        if (self.ssl_certfile is None) is not (self.ssl_keyfile is None):
            raise ConfigError("kafka: ssl_certfile and ssl_keyfile belong together")
        if self.tls:
            self._ssl_context()
        elif any(files):
            raise ConfigError("kafka: ssl_… files need security_protocol SSL or SASL_SSL")
        elif not self.allow_insecure and not all(map(_is_loopback, self.addresses)):
            raise ConfigError(
                f"kafka.security_protocol: {self.security_protocol} to {self.bootstrap} would go"
                " unencrypted over the network; use SSL or SASL_SSL, or set allow_insecure = true"
            )

    def _ssl_context(self) -> ssl.SSLContext:
        """Verifies the chain and the host name; TLS 1.2 or later."""
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
            if self.ssl_certfile is not None:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except OSError as error:  # SSLError is one
            files = [self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile]
            named = ", ".join(str(file) for file in files if file is not None)
            raise ConfigError(f"kafka: cannot use {named}: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _is_loopback(address: str) -> bool:
    match = _ADDRESS.fullmatch(address)
    host = (match["six"] or match["host"]) if match else ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
