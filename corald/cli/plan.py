"""`plan`: what the daemon would do now; only reads reach the clouds, and nothing is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from corald.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    Exit,
    JsonOption,
    UsageError,
    print_json,
    print_table,
    working,
)
from corald.errors import CoraldError, MalformedEventError

if TYPE_CHECKING:
    from corald.adapters.views import PlanView
    from corald.config.values import Settings
    from corald.model.events import Event
    from corald.plugin import Clock
    from corald.runtime.planning import PlannedOnce

SOURCE = "corald-plan"

DemandOption = Annotated[
    list[str], typer.Option("--demand", metavar="MODEL=RATE", help="Requests/s of a model.")
]
FileOption = Annotated[
    Path | None, typer.Option("--demand-file", help="Events as JSON lines, as Kafka carries them.")
]
DetailOption = Annotated[
    bool, typer.Option("--detailed-exitcode", help="Exit 2 when the plan changes something.")
]


class NoPlanError(CoraldError):
    """Something is missing before a plan can be made."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("plan")(plan)


def plan(
    config: ConfigOption = DEFAULT_CONFIG,
    demand: DemandOption = [],  # noqa: B006  # typer wants a list, and copies it
    demand_file: FileOption = None,
    *,
    as_json: JsonOption = False,
    detailed_exitcode: DetailOption = False,
) -> int:
    """Show what would be added, kept and drained for a demand, and what that changes in USD/h."""
    import asyncio

    from corald.adapters.views import PlanView, plan_view
    from corald.config.settings import load_settings
    from corald.model.plan import Move

    settings = load_settings(config, in_service=False)
    with working("planning"):
        planned = asyncio.run(_plan(settings, demand, demand_file))
    if planned.report is None:
        raise NoPlanError(f"no plan: {planned.waiting}")
    view = plan_view(planned.rows, planned.report)
    if as_json:
        print_json(view, PlanView)
    else:
        _show(view)
    changes = any(row.move is not Move.KEEP for row in view.rows)
    return Exit.CHANGES if detailed_exitcode and changes else Exit.FINE


async def _plan(settings: Settings, demand: list[str], demand_file: Path | None) -> PlannedOnce:
    from contextlib import AsyncExitStack

    from corald.core.engine import Engine
    from corald.daemon import build_providers, load_ground
    from corald.model.state import StoredState
    from corald.runtime.clock import SystemClock
    from corald.runtime.planning import plan_once
    from corald.runtime.solving import ProcessSolving

    clock = SystemClock()
    events = _events(settings, demand, demand_file, clock)
    ground = load_ground(settings)
    async with AsyncExitStack() as stack:
        providers = build_providers(settings, ground.catalog, clock)
        for provider in providers.values():
            stack.push_async_callback(provider.close)
        solving = ProcessSolving(ground.library, ground.library_path, clock)
        stack.push_async_callback(solving.close)
        engine = Engine(
            policies=settings.policies,
            catalog=ground.catalog,
            templates=ground.library,
            providers=frozenset(providers),
            # Machines that carry the cluster's tag are taken over, as by a daemon without memory.
            stored=StoredState(adopting=True),
            now=clock.now(),
        )
        return await plan_once(
            engine, providers=providers, solving=solving, clock=clock, events=events
        )


def _events(
    settings: Settings, demand: list[str], demand_file: Path | None, clock: Clock
) -> list[Event]:
    """Read the demand; a model that nobody names stays as it is."""
    if not demand and demand_file is None:
        raise UsageError("say for which demand: --demand MODEL=RATE, or --demand-file FILE")
    events = _from_file(demand_file, clock) if demand_file else []
    rates = dict(_rate(text, settings) for text in demand)
    return [*events, *(_level(settings, model, rate, clock) for model, rate in rates.items())]


def _rate(text: str, settings: Settings) -> tuple[str, float]:
    model, separator, number = text.partition("=")
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not separator or not 0 <= rate < 1e7:
        raise UsageError(f'--demand {text}: write MODEL=RATE, for example "qwen3-32b=12.5"')
    if model not in settings.policies.models:
        known = ", ".join(sorted(settings.policies.models)) or "none"
        raise UsageError(f"--demand {text}: no policy for this model; there are: {known}")
    return model, rate


def _level(settings: Settings, model: str, rate: float, clock: Clock) -> Event:
    from corald.model.events import DemandObserved, Stamp

    workload = settings.policies.models[model].workload
    return DemandObserved(
        event_id=f"{SOURCE}-{model}",
        source=SOURCE,
        model=model,
        request_rate=rate,
        input_tokens=workload.input_tokens_mean,
        output_tokens=workload.output_tokens_mean,
        window_seconds=60.0,
        stamp=Stamp(0, 0, clock.now()),
    )


def _from_file(path: Path, clock: Clock) -> list[Event]:
    from corald.adapters.codec import decode

    events: list[Event] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--demand-file {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                events += decode(line, received_at=clock.now())
            except MalformedEventError as error:
                raise UsageError(f"{path}:{number}: {error}") from error
    return events


def _show(view: PlanView) -> None:
    signs = {"add": "+", "keep": " ", "drain": "-"}
    print_table(
        ("", "move", "model", "phase", "nodes", "zone", "markets", ">count", ">USD/h", "reason"),
        [
            (
                signs[row.move],
                row.move,
                row.model,
                row.phase,
                row.shape,
                str(row.zone),
                row.markets,
                str(row.count),
                f"{row.usd_per_hour:.2f}",
                row.reason,
            )
            for row in view.rows
        ],
    )
    print(f"change: {view.usd_per_hour_change:+.2f} USD/h")
    if (solve := view.solve) is None:
        return
    gap = "unproven" if solve.gap is None else f"proven within {100 * solve.gap:.2f} %"
    print(f"plan: {solve.usd_per_hour:.2f} USD/h, {solve.status}, {gap}")
    for name, usd in sorted(solve.baselines.items()):
        print(f"  {name}: {usd:.2f} USD/h")
    for outcome in solve.rows:
        if outcome.unmet > 0:
            print(f"  unmet: {outcome.model} {outcome.phase} {outcome.unmet:.2f}/s")
