"""What no single key can get wrong: how keys relate to each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

from corald.config.locate import Path
from corald.config.schema import ConfigFile, Kafka, Policy
from corald.config.units import format_duration


class Finding(NamedTuple):
    """What is wrong with the key at `path`."""

    path: Path
    message: str


NOT_IN_FORCE = ("on_demand_base", "max_spot_share", "engine_args", "ready_after")
"""Keys of the contract that nothing honours yet: better refused than silently without effect."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach or be `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` (`[::1]:8550` for IPv6).

    Raises:
        ValueError: there is no valid port.
    """
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f'"{address}" is not host:port')
    return host.strip("[]"), int(port)


def check_file(config: ConfigFile) -> Iterator[Finding]:
    """Relate the keys of the main file to each other."""
    yield from _ordered(config)
    yield from _bind(config.http.bind)
    if config.kafka is not None:
        yield from _kafka(config.kafka)


def _ordered(config: ConfigFile) -> Iterator[Finding]:
    pairs = (
        ("demand", "sample_window", "stale_after"),
        ("prices", "stale_after", "expire_after"),
        ("fallback", "stockout", "stockout_max"),
        ("fallback", "circuit", "circuit_max"),
        ("machines", "launch_deadline", "ready_deadline"),
    )
    for table, smaller, greater in pairs:
        low = getattr(getattr(config, table), smaller)
        high = getattr(getattr(config, table), greater)
        if low > high:
            yield Finding(
                (table, smaller),
                f"{format_duration(low)} must not exceed {table}.{greater} "
                f"({format_duration(high)})",
            )


def _bind(bind: str) -> Iterator[Finding]:
    where: Path = ("http", "bind")
    if bind.startswith("unix:"):
        if not bind.startswith("unix:/"):
            yield Finding(
                where, 'a unix socket needs an absolute path, such as "unix:/run/corald/http"'
            )
        return
    try:
        host, _ = split_address(bind)
    except ValueError:
        yield Finding(where, 'write "127.0.0.1:8550" or "unix:/run/corald/http"')
        return
    if not is_loopback(host):
        yield Finding(
            where,
            "only a loopback address or a unix socket is served; put a proxy with TLS in front "
            "of it to reach corald from elsewhere",
        )


def _kafka(kafka: Kafka) -> Iterator[Finding]:
    loopback = True
    for index, server in enumerate(kafka.bootstrap):
        try:
            loopback &= is_loopback(split_address(server)[0])
        except ValueError as error:
            yield Finding(("kafka", "bootstrap", index), str(error))
    encrypted = kafka.security.endswith("ssl")
    if not (encrypted or loopback or kafka.allow_insecure):
        yield Finding(
            ("kafka", "security"),
            f'"{kafka.security}" sends events in clear to another machine; use "sasl-ssl" or '
            '"ssl", or accept the risk with allow_insecure = true',
        )
    if kafka.security.startswith("sasl") != (kafka.sasl is not None):
        yield Finding(
            ("kafka", "security"),
            f'"{kafka.security}" and '
            + ("a [kafka.sasl] table contradict each other" if kafka.sasl else "no [kafka.sasl]"),
        )
    if (kafka.tls.certificate is None) != (kafka.tls.key is None):
        yield Finding(("kafka", "tls"), "certificate and key belong together")
    if not encrypted and kafka.tls.model_fields_set:
        yield Finding(("kafka", "tls"), f'has no effect with security = "{kafka.security}"')


def check_policy(policy: Policy, sample_window_seconds: float) -> Iterator[Finding]:
    """Relate the keys of one policy to each other; paths are within it."""
    if policy.max_replicas is not None and policy.min_replicas > policy.max_replicas:
        yield Finding(("min_replicas",), f"exceeds max_replicas ({policy.max_replicas})")
    for name in NOT_IN_FORCE:
        if getattr(policy, name) != Policy.model_fields[name].default:
            yield Finding((name,), "is not in force in this version; leave it at its default")
    if policy.scale_down_delay < sample_window_seconds:
        yield Finding(
            ("scale_down_delay",),
            f"{format_duration(policy.scale_down_delay)} is shorter than demand.sample_window "
            f"({format_duration(sample_window_seconds)}): one quiet sample would shrink the "
            "model; raise this delay, or shorten the window that producers measure over",
        )
    for kind in ("input", "output"):
        if getattr(policy.workload, f"{kind}_tokens_p95") < getattr(
            policy.workload, f"{kind}_tokens_mean"
        ):
            yield Finding(("workload", f"{kind}_tokens_p95"), "is below the mean")
