"""What a simulation tells people: a live table, a line, a summary; costs beside the baselines.

Baselines are plans, so the fair comparison is plan against plan, at the same moment, for the same
demand and supply. What is really rented comes on top: it contains starts, drains and held replicas.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from corald.model.fleet import ReplicaState
from corald.model.status import ModelStatus, ReplicaStatus, Status

RENTED = "corald, rented"
PLANNED = "corald, plan"
SECONDS_PER_HOUR = 3600.0
LINE_SECONDS = 5.0
"""Between two lines where there is no terminal."""


@dataclass(slots=True)
class CostBook:
    """Costs per hour by name, and what they add up to over time."""

    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    usd: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _since: float | None = None

    def record(self, usd_per_hour: Mapping[str, float], *, at: float) -> None:
        """Charge the former rates until `at`; the new ones hold from then on."""
        if self._since is not None:
            hours = (at - self._since) / SECONDS_PER_HOUR
            for name, rate in self.usd_per_hour.items():
                self.usd[name] += rate * hours
        self.usd_per_hour = dict(usd_per_hour)
        self._since = at


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything that one picture shows."""

    status: Status
    costs: CostBook
    events: Mapping[str, int]
    """Counts since the start: launches, interruptions, ..."""
    short: frozenset[str] = frozenset()
    """Baselines that cannot serve all demand now."""


@contextmanager
def screen(console: Console) -> Iterator[Callable[[Frame], None]]:
    """Show frames: a live table on a terminal, elsewhere a line every few seconds."""
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda frame: live.update(render(frame), refresh=True)
    else:
        yield _LinePrinter(console).show


def render(frame: Frame) -> RenderableType:
    """Draw the live table."""
    return Group(
        Text(f"virtual time {_time_of_day(frame.status.at)} UTC", style="bold"),
        _model_table(frame.status),
        _cost_table(frame),
        Text(_counts(frame.events)),
        Text(frame.status.waiting or "; ".join(frame.status.degraded), style="yellow"),
    )


def line(frame: Frame) -> str:
    """Say the most important on one line, for a log."""
    status = frame.status
    ready = sum(replica.state is ReplicaState.READY for replica in status.replicas)
    costs = " ".join(f"{name}={usd:.2f}" for name, usd in frame.costs.usd_per_hour.items())
    return (
        f"{_time_of_day(status.at)} replicas={ready}/{len(status.replicas)} "
        f"unmet_rps={sum(model.unmet for model in status.models):.1f} usd_per_hour: {costs} "
        f"| {_counts(frame.events)}"
    )


def summary(frame: Frame, *, virtual_seconds: float) -> str:
    """Sum the run up: what it cost beside the baselines, and what happened."""
    hours = virtual_seconds / SECONDS_PER_HOUR
    plan = frame.costs.usd.get(PLANNED, 0.0)
    lines = [f"{hours:.1f} virtual hours"]
    for name, usd in frame.costs.usd.items():
        lines.append(f"  {name:<16} {usd:>10.2f} USD  {_ratio(usd, plan)}")
    return "\n".join([*lines, f"  {_counts(frame.events)}"])


def shapes_of(replicas: tuple[ReplicaStatus, ...], model: str) -> str:
    """Count a model's replicas by shape: `3 of 2xL4, 1 of 1xL40S (+1 starting, 1 draining)`."""
    mine = [replica for replica in replicas if replica.model == model]
    ready = Counter(replica.shape for replica in mine if replica.state is ReplicaState.READY)
    text = ", ".join(f"{count} of {shape}" for shape, count in sorted(ready.items()))
    others = Counter(replica.state for replica in mine if replica.state is not ReplicaState.READY)
    rest = ", ".join(f"{count} {state}" for state, count in sorted(others.items()))
    return f"{text} (+{rest})".strip() if rest else text


class _LinePrinter:
    """Prints a frame at most every `LINE_SECONDS` of wall time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def show(self, frame: Frame) -> None:
        if time.monotonic() >= self._next:
            self._console.print(line(frame), soft_wrap=True, highlight=False)
            self._next = time.monotonic() + LINE_SECONDS


def _model_table(status: Status) -> Table:
    table = Table(expand=True)
    table.add_column("model")
    for heading in ("demand/s", "ready/s", "unmet/s"):
        table.add_column(heading, justify="right")
    table.add_column("replicas by shape", ratio=1)
    table.add_column("USD/h", justify="right")
    for model in status.models:
        table.add_row(*_model_row(status, model))
    return table


def _model_row(status: Status, model: ModelStatus) -> tuple[RenderableType, ...]:
    return (
        model.model,
        f"{model.demand:.1f}",
        f"{model.capacity_ready:.1f}",
        Text(f"{model.unmet:.1f}", style="red" if model.unmet > 0 else ""),
        shapes_of(status.replicas, model.model),
        f"{model.usd_per_hour:.2f}",
    )


def _cost_table(frame: Frame) -> Table:
    table = Table(expand=True)
    table.add_column("cost")
    for heading in ("USD/h now", "against plan", "USD so far", "against plan"):
        table.add_column(heading, justify="right")
    costs = frame.costs
    now = costs.usd_per_hour.get(PLANNED, 0.0)
    total = costs.usd.get(PLANNED, 0.0)
    for name, usd_per_hour in costs.usd_per_hour.items():
        usd = costs.usd.get(name, 0.0)
        label = f"{name} (cannot serve all)" if name in frame.short else name
        table.add_row(
            label,
            f"{usd_per_hour:.2f}",
            _ratio(usd_per_hour, now),
            f"{usd:.2f}",
            _ratio(usd, total),
        )
    return table


def _ratio(usd: float, plan: float) -> str:
    return f"{usd / plan:.2f}x" if plan > 0 else ""


def _counts(events: Mapping[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in events.items())


def _time_of_day(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("day %d %H:%M")
