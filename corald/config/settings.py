"""From files to settings: all of it valid, or ConfigError with everything that is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from corald.config.checks import Finding, check_file, check_policy
from corald.config.convert import model_policy, rules, settings_of
from corald.config.faults import Source, explain, suggest
from corald.config.schema import ConfigFile, DropInFile, Policy, Table
from corald.config.sources import drop_ins, presets, read_source
from corald.config.units import SecretRef
from corald.config.values import Settings
from corald.errors import ConfigError
from corald.model.policy import PolicySet

DEFAULT_PATH = Path("/etc/corald/corald.toml")
AnyTable = TypeVar("AnyTable", bound=Table)


def load_settings(path: Path, *, in_service: bool = True) -> Settings:
    """Read the main file and its drop-ins; reads every secret once, to know that it is there.

    Outside the service (`corald check` in a shell) systemd's credentials do not exist, and are
    not looked for.

    Raises:
        ConfigError: one line for every fault, each with file, line, key and remedy.
    """
    loading = _Loading()
    main = loading.read(path)
    config = loading.validate(main, ConfigFile) if main else None
    if main is None or config is None:
        loading.drop_ins(path.parent / _policies_dir(main))
        raise ConfigError("\n".join(loading.faults))
    loading.add(main, config.policies)
    loading.drop_ins(path.parent / config.policies_dir)
    loading.faults += [main.fault(*finding) for finding in check_file(config)]
    loading.check_policies(config.demand.sample_window)
    loading.faults += [main.fault(*finding) for finding in _secrets(config, in_service=in_service)]
    if loading.faults:
        raise ConfigError("\n".join(loading.faults))
    policies = PolicySet(
        cluster=config.cluster,
        models={entry.policy.model: model_policy(entry.policy) for entry in loading.policies},
        rules=rules(config),
    )
    return settings_of(config, main, policies, loading.origins())


@dataclass(frozen=True, slots=True)
class _Entry:
    policy: Policy
    source: Source
    index: int

    @property
    def where(self) -> str:
        return self.source.where(("policies", self.index))


@dataclass(slots=True)
class _Loading:
    """What has been read so far, and everything wrong with it."""

    faults: list[str] = field(default_factory=list)
    policies: list[_Entry] = field(default_factory=list)

    def read(self, path: Path) -> Source | None:
        try:
            return read_source(path)
        except ConfigError as error:
            self.faults.append(str(error))
            return None

    def validate(self, source: Source, schema: type[AnyTable]) -> AnyTable | None:
        data, faults = _with_presets(source)
        self.faults += faults
        try:
            return schema.model_validate(data)
        except ValidationError as error:
            self.faults += explain(error, Source(source.name, data, source.lines), schema)
            return None

    def drop_ins(self, directory: Path) -> None:
        try:
            paths = drop_ins(directory)
        except ConfigError as error:
            self.faults.append(str(error))
            return
        for path in paths:
            if (source := self.read(path)) and (file := self.validate(source, DropInFile)):
                self.add(source, file.policies)

    def add(self, source: Source, policies: tuple[Policy, ...]) -> None:
        self.policies += [_Entry(policy, source, i) for i, policy in enumerate(policies)]

    def check_policies(self, sample_window_seconds: float) -> None:
        seen: dict[str, str] = {}
        for entry in self.policies:
            name = entry.policy.model
            if name in seen:
                self.faults.append(
                    f'{entry.where}: model "{name}" has a policy already at {seen[name]}'
                )
            seen.setdefault(name, entry.where)
            self.faults += [
                entry.source.fault(("policies", entry.index, *path), message)
                for path, message in check_policy(entry.policy, sample_window_seconds)
            ]

    def origins(self) -> Mapping[str, str]:
        return {entry.policy.model: entry.where for entry in self.policies}


def _with_presets(source: Source) -> tuple[dict[str, Any], list[str]]:
    """Lay each policy's own keys over those of the preset that it extends."""
    policies = source.data.get("policies")
    if not isinstance(policies, list):
        return dict(source.data), []
    known = presets()
    merged: list[Any] = []
    faults = []
    for index, policy in enumerate(policies):
        wanted = policy.get("extends") if isinstance(policy, dict) else None
        if isinstance(wanted, str) and wanted not in known:
            message = f'no preset is called "{wanted}"{suggest(wanted, known)}'
            faults.append(source.fault(("policies", index, "extends"), message))
        base = known.get(wanted, {}) if isinstance(wanted, str) else {}
        merged.append({**base, **policy} if isinstance(policy, dict) else policy)
    return {**source.data, "policies": merged}, faults


def _policies_dir(main: Source | None) -> str:
    wanted = main.data.get("policies_dir") if main else None
    return wanted if isinstance(wanted, str) else "policies.d"


def _secrets(config: ConfigFile, *, in_service: bool) -> Iterator[Finding]:
    references: dict[tuple[str, ...], SecretRef] = {}
    if config.http.token is not None:
        references["http", "token"] = config.http.token
    if config.kafka is not None and config.kafka.sasl is not None:
        references["kafka", "sasl", "password"] = config.kafka.sasl.password
    for path, reference in references.items():
        if reference.kind == "credential" and not (
            in_service or os.environ.get("CREDENTIALS_DIRECTORY")
        ):
            continue
        try:
            reference.read()
        except ConfigError as error:
            yield Finding(path, str(error))
