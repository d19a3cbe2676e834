"""`check`: whether a configuration can be used, without asking a cloud or a broker anything."""

from __future__ import annotations

from pathlib import Path

import typer

from corald.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, print_json
from corald.errors import ConfigError, LibraryError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("check")(check)


def check(config: ConfigOption = DEFAULT_CONFIG, *, as_json: JsonOption = False) -> int:
    """Check a configuration, with its policies, plugins and template library."""
    try:
        found = _check(config)
    except (ConfigError, LibraryError) as error:
        if as_json:
            faults = {"ok": False, "faults": str(error).splitlines()}
            print_json(faults, dict[str, bool | list[str]])
            return Exit.CONFIG
        raise
    if as_json:
        print_json({"ok": True, "faults": []}, dict[str, bool | list[str]])
    else:
        print(f"{config}: fine: {found}")
    return Exit.FINE


def _check(path: Path) -> str:
    import asyncio

    from corald.config.settings import load_settings
    from corald.daemon import build_providers, kafka_settings, load_ground
    from corald.runtime.clock import SystemClock

    settings = load_settings(path, in_service=False)
    ground = load_ground(settings)

    async def build() -> None:
        for provider in build_providers(settings, ground.catalog, SystemClock()).values():
            await provider.close()

    asyncio.run(build())
    # A password that only systemd hands over cannot be looked at from a shell.
    if settings.kafka is not None and settings.kafka.sasl is None:
        kafka_settings(settings.kafka)
    return (
        f"{len(settings.policies.models)} policies, {len(settings.providers)} providers, "
        f"{len(ground.library)} templates"
    )
