"""The settings of the daemon as plain values: what the composition root hands to the adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corald.config.units import SecretRef
from corald.model.policy import PolicySet


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where the admin interface listens: a loopback address, or a unix socket."""

    host: str
    port: int
    socket: Path | None
    """Set: a unix socket, and `host` and `port` mean nothing."""
    token: SecretRef | None
    allowed_hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How much is logged, and in what form (`auto`: console on a terminal, else JSON)."""

    level: str
    format: str


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """How to prove who we are to the broker."""

    mechanism: str
    username: str
    password: SecretRef


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where events come from; `security` is `plaintext`, `ssl`, `sasl-plaintext` or `sasl-ssl`."""

    bootstrap: tuple[str, ...]
    group: str
    security: str
    allow_insecure: bool
    """Allows traffic in clear to another machine."""
    demand_topic: str
    availability_topic: str
    plans_topic: str | None
    audit_topic: str | None
    routes_topic: str | None
    dead_letter_topic: str | None
    sasl: SaslSettings | None
    ca: Path | None
    certificate: Path | None
    key: Path | None


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One configured provider; `config` is what its plugin reads."""

    name: str
    plugin: str
    account: str | None
    """Whose native notices concern it."""
    config: Mapping[str, Any] = field(repr=False)
    where: str
    """`file:line`, for complaints."""


@dataclass(frozen=True, slots=True)
class ObserveSettings:
    """How often clouds and replicas are looked at."""

    instances_seconds: float
    offerings_seconds: float
    replicas_seconds: float


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole, valid configuration."""

    path: Path
    state_dir: Path
    catalog: Path | None
    """None: the shipped catalogue."""
    library: Path | None
    """None: the shipped library."""
    http: HttpSettings
    log: LogSettings
    kafka: KafkaSettings | None
    events: Path | None
    """A JSON-lines file, or a directory of them."""
    providers: tuple[ProviderSettings, ...]
    observe: ObserveSettings
    policies: PolicySet
    policy_origins: Mapping[str, str]
    """`file:line` of every model's policy."""

    @property
    def cluster(self) -> str:
        return self.policies.cluster

    @property
    def secrets(self) -> tuple[SecretRef, ...]:
        sasl = self.kafka.sasl if self.kafka else None
        found = (self.http.token, sasl.password if sasl else None)
        return tuple(reference for reference in found if reference is not None)

    def read_secrets(self) -> Mapping[SecretRef, str]:
        """Read every secret, once.

        Raises:
            ConfigError: one cannot be read.
        """
        return {reference: reference.read() for reference in self.secrets}


def needs_restart(running: Settings, wanted: Settings) -> tuple[str, ...]:
    """List the parts of `wanted` that a reload cannot bring into force."""
    parts = {
        "cluster": (running.cluster, wanted.cluster),
        "providers": (_plugins(running), _plugins(wanted)),
        **{
            name: (getattr(running, name), getattr(wanted, name))
            for name in ("state_dir", "catalog", "library", "kafka", "events", "observe")
        },
        # A new token is taken at once.
        "http": (replace(running.http, token=None), replace(wanted.http, token=None)),
    }
    return tuple(sorted(name for name, (old, new) in parts.items() if old != new))


def _plugins(settings: Settings) -> list[tuple[object, ...]]:
    """Without line numbers, which may move."""
    return [(e.name, e.plugin, e.account, e.config) for e in settings.providers]
