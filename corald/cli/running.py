"""Verbs that run something for long, or say what is installed: `run`, `demo`, `version`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from corald import __version__
from corald.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, print_json


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("run")(run)
    app.command("demo")(demo)
    app.command("version")(version)


def run(config: ConfigOption = DEFAULT_CONFIG) -> int:
    """Run the daemon until SIGTERM; SIGHUP reloads the configuration."""
    from corald.config.settings import load_settings

    settings = load_settings(config)
    from corald import daemon  # heavy: a faulty configuration is told before it

    daemon.run(settings)
    return Exit.FINE


def demo(
    directory: Annotated[Path, typer.Option(help="Where templates are kept.")] = Path("var/demo"),
    day_seconds: Annotated[float, typer.Option(help="How long one virtual day takes.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Of demand.")] = 1,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the dashboard; 0 takes a free one.")
    ] = 0,
) -> int:
    """Run a day of six models on simulated clouds, again and again.

    CORALD_DEMO_SECONDS ends it by itself.
    """
    from corald.simulation.demo import DemoOptions, run_demo, seconds_from_environment

    options = DemoOptions(
        directory=directory,
        seconds=seconds_from_environment(),
        day_seconds=day_seconds,
        seed=seed,
        port=port,
    )
    return run_demo(options)


def version(*, as_json: JsonOption = False) -> int:
    """Print the version."""
    if as_json:
        found = {"corald": __version__, "python": platform.python_version()}
        print_json(found, dict[str, str])
    else:
        print(f"corald {__version__}")
    return Exit.FINE
