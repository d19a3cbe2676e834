"""`templates build|list|show`: the template library."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from corald.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    Exit,
    JsonOption,
    UsageError,
    console,
    print_json,
    print_table,
)
from corald.errors import ConfigError
from corald.model.templates import Phase

if TYPE_CHECKING:
    from corald.config.values import Settings
    from corald.library import Library
    from corald.model.hardware import Catalog
    from corald.model.policy import PolicySet
    from corald.templates.build import BuildOptions, BuildProgress
    from corald.templates.rates import BuildRequest
    from corald.templates.report import TemplateRow

LibraryOption = Annotated[
    Path | None, typer.Option("--library", help="A library; unset: the configured one.")
]


def app() -> typer.Typer:
    """Make the group."""
    group = typer.Typer(help="Build and look at template libraries.", no_args_is_help=True)
    group.command("build")(build)
    group.command("list")(list_)
    group.command("show")(show)
    return group


def build(  # noqa: PLR0913 - each is an option of the command
    config: ConfigOption = DEFAULT_CONFIG,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Unset: where `library` points.")
    ] = None,
    n_max: Annotated[int, typer.Option(help="Most nodes in a template.")] = 6,
    rho: Annotated[float, typer.Option(help="Most GPU memory, in model sizes.")] = 12.0,
    epsilon: Annotated[
        float, typer.Option(help="Drop templates this close to a split; 0 is exact.")
    ] = 0.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads.")] = None,
    paper: Annotated[
        str | None,
        typer.Option(help="Build for a setup of the paper (core, extended), not the policies."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> int:
    """Search the best templates for every policy of the configuration."""
    from corald.config.settings import load_settings
    from corald.daemon import library_path
    from corald.simulation.paper import build_paper_library
    from corald.templates.build import BuildOptions

    if not (n_max >= 1 and 0 < rho < inf and 0 <= epsilon < 1):
        raise UsageError("--n-max is at least 1, --rho above 0, --epsilon from 0 to below 1")
    options = BuildOptions(n_max=n_max, rho=rho, epsilon=epsilon, workers=workers)
    settings = load_settings(config, in_service=False) if paper is None else None
    target = output or (library_path(settings, existing=False) if settings else f"{paper}.clt")
    target = Path(target)
    _make_way(target)
    with _progress() as progress:
        library = (
            _build_for_policies(settings, options, progress)
            if settings is not None
            else build_paper_library(str(paper), options, progress)
        )
    _write(target, library)
    if as_json:
        made = {
            "library": str(target),
            "fingerprint": library.fingerprint,
            "templates": len(library),
        }
        print_json(made, dict[str, str | int])
    else:
        print(f"{target}: {len(library)} templates, fingerprint {library.fingerprint}")
    return Exit.FINE


def _build_for_policies(
    settings: Settings, options: BuildOptions, progress: Callable[[BuildProgress], None]
) -> Library:
    from corald.config.catalog import load_catalog
    from corald.templates.build import build_library

    catalog = load_catalog(settings.catalog)
    options = replace(options, groups=_groups(catalog, settings))
    sold = frozenset().union(*options.groups)
    return build_library(
        catalog, _requests(settings.policies), options, configurations=sold, progress=progress
    )


def _make_way(target: Path) -> None:
    """Make sure that the library can be written, before minutes are spent on it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error


def _write(target: Path, library: Library) -> None:
    from corald.library import write_library

    empty = [str(key) for key, table in library.tables.items() if not len(table)]
    if len(empty) == len(library.tables):
        raise ConfigError(f"no template meets the targets, so {target} is left as it was")
    for key in empty:
        print(f"corald: no template meets the targets of {key}", file=sys.stderr)
    try:
        write_library(target, library)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error


def list_(
    config: ConfigOption = DEFAULT_CONFIG,
    library: LibraryOption = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    phase: Annotated[Phase | None, typer.Option(help="Only of this phase.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    *,
    as_json: JsonOption = False,
) -> int:
    """List templates, the fastest of each table first."""
    from itertools import islice

    from corald.templates.report import TemplateRow, list_templates

    found, catalog = _open(config, library)
    rows = list(islice(list_templates(found, catalog, model=model, phase=phase), limit))
    if as_json:
        print_json(rows, list[TemplateRow])
        return Exit.FINE
    print_table(
        ("template", ">throughput/s", ">USD/h", ">spot USD/h", ">USD/M tokens"),
        [
            (
                row.template.id,
                f"{row.template.throughput:.2f}",
                _usd(row.list_usd_per_hour),
                _usd(row.spot_usd_per_hour),
                _usd(row.list_usd_per_million_tokens),
            )
            for row in rows
        ],
    )
    if (left := len(found) - len(rows)) > 0 and model is None and phase is None:
        print(f"and {left} more (--limit, --model, --phase)")
    return Exit.FINE


def show(
    template_id: Annotated[str, typer.Argument(metavar="ID", help="As `templates list` shows it.")],
    config: ConfigOption = DEFAULT_CONFIG,
    library: LibraryOption = None,
    *,
    as_json: JsonOption = False,
) -> int:
    """Show one template: its stages, speed and price."""
    from corald.templates.report import TemplateRow, show_template

    found, catalog = _open(config, library)
    row = show_template(found, catalog, template_id)
    if as_json:
        print_json(row, TemplateRow)
    else:
        _show(row)
    return Exit.FINE


def _show(row: TemplateRow) -> None:
    template = row.template
    nodes = template.node_configurations
    print(f"{template.id}: {template.throughput:.3f}/s{' (uncalibrated)' * template.uncalibrated}")
    print(
        f"on demand {_usd(row.list_usd_per_hour)} USD/h, spot {_usd(row.spot_usd_per_hour)} USD/h"
    )
    print_table(
        (">stage", ">layers", ">tp", "nodes"),
        [
            (
                str(number),
                str(stage.layers),
                str(stage.tp),
                ", ".join(f"{ordinal}:{nodes[ordinal]}" for ordinal in stage.node_ordinals),
            )
            for number, stage in enumerate(template.stages)
        ],
    )


def _open(config: Path, library: Path | None) -> tuple[Library, Catalog]:
    """Open a library with the catalogue that prices it; a configuration only if one is needed."""
    from corald.config.catalog import load_catalog
    from corald.config.settings import load_settings
    from corald.daemon import library_path
    from corald.library import read_library

    if library is not None and not config.exists():
        return read_library(library), load_catalog()
    settings = load_settings(config, in_service=False)
    return read_library(library or library_path(settings)), load_catalog(settings.catalog)


def _requests(policies: PolicySet) -> list[BuildRequest]:
    from corald.templates.rates import BuildRequest

    return [
        BuildRequest(policy.model, phase, policy.engine, policy.slo, policy.workload)
        for policy in policies.models.values()
        for phase in policy.serving.phases
    ]


def _groups(catalog: Catalog, settings: Settings) -> tuple[frozenset[str], ...]:
    """Configurations that one region sells: no replica reaches further than a region."""
    from corald.templates.groups import groups_by_region

    named = {
        str(region) for entry in settings.providers for region in entry.config.get("regions", ())
    }
    return groups_by_region(catalog, named)


@contextmanager
def _progress() -> Iterator[Callable[[BuildProgress], None]]:
    from rich.progress import Progress

    shown = console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("building templates", total=None)

        def show(step: BuildProgress) -> None:
            bar.update(task, total=step.steps, completed=step.steps_done)

        yield show


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
