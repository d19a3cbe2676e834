"""Prometheus metrics: levels from the status at scrape time, counts and times from notes.

Levels are read anew for every scrape, so a series ends with its object. No label holds an id or
anything that a producer of events can choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from corald.adapters.metric_levels import levels
from corald.model.state import Note
from corald.model.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_VALUES = 200
"""Of one label; further values are counted as `other`."""
START_BUCKETS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 2400)
DRAIN_BUCKETS = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3600)
SOLVE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60)
REACTION_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 120)


class Metrics:
    """All metrics of one daemon; a NoteSink."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # not annotated there
        self.registry = CollectorRegistry()
        self._values: dict[tuple[str, str], set[str]] = {}
        self._status: Callable[[], Status] | None = None
        self._spent = _Spent()
        registry = self.registry
        Info("corald_build", "The running version.", registry=registry).info({"version": version})
        self.leader = Gauge("corald_leader", "1 while this daemon may act.", registry=registry)
        self.loop_lag = Gauge(
            "corald_event_loop_lag_seconds",
            "How late the event loop woke up at its last check.",
            registry=registry,
        )
        self._counters = {
            name: Counter(f"corald_{name}", text, labels, registry=registry)
            for name, text, labels in _COUNTERS
        }
        self._histograms = {
            name: Histogram(f"corald_{name}", text, buckets=buckets, registry=registry)
            for name, text, buckets in _HISTOGRAMS
        }
        self._gauges = {
            name: Gauge(f"corald_{name}", text, registry=registry) for name, text in _NOTED_GAUGES
        }
        registry.register(self)

    def watch(self, status: Callable[[], Status]) -> None:
        """Take levels from `status` at every scrape from now on."""
        self._status = status

    def render(self) -> bytes:
        """Answer a scrape."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: this spares a scrape at registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the levels (called by the registry)."""
        if self._status is not None:
            status = self._status()
            yield from levels(status)
            yield CounterMetricFamily(
                "corald_cost_usd",
                "Money accrued since the first scrape of this process.",
                value=self._spent.total(status),
            )

    def publish(self, note: Note) -> None:
        """Count a note; one without a metric is passed over."""
        field = dict(note.fields)
        for reaction in _REACTIONS.get(note.event, ()):
            value = field.get(reaction.field) if reaction.field else field.get("count", 1)
            if not isinstance(value, int | float):
                continue
            if reaction.name in self._histograms:
                self._histograms[reaction.name].observe(value)
            elif reaction.name in self._gauges:
                self._gauges[reaction.name].set(value)
            elif value > 0:
                given = {"result": field.get(reaction.result_from), **dict(reaction.labels)}
                self._count(reaction.name, field | given, value)

    def _count(self, name: str, field: Mapping[str, object], amount: float) -> None:
        labels = {label: self._label(name, label, field.get(label)) for label in _LABELS[name]}
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def _label(self, name: str, label: str, value: object) -> str:
        """Bound the number of series, whatever the notes say."""
        text = str(value).lower() if isinstance(value, bool) else str(value or "none")
        text = text.partition(":")[0]  # a reason's detail follows after a colon
        seen = self._values.setdefault((name, label), set())
        if text not in seen and len(seen) >= MAX_LABEL_VALUES:
            return "other"
        seen.add(text)
        return text


@dataclass(frozen=True, slots=True)
class _Reaction:
    """What one kind of note does to one metric."""

    name: str
    field: str = ""
    """The note's field that holds the value or amount; empty: its `count`, or one."""
    labels: tuple[tuple[str, object], ...] = ()
    """Labels that the note does not carry itself."""
    result_from: str = ""
    """The note's field that is the label `result`."""


class _Spent:
    """Sums the money of today over midnights; a day's last minutes before one may be missed."""

    def __init__(self) -> None:
        self._total = 0.0
        self._today: float | None = None

    def total(self, status: Status) -> float:
        now, before = status.usd_today, self._today
        if before is not None:
            self._total += now - before if now >= before else now
        self._today = now
        return self._total


_COUNTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("events", "External events, by what became of them.", ("type", "result")),
    ("events_ignored", "External events without effect, by reason.", ("reason",)),
    ("launches", "Create calls, by outcome.", ("provider", "region", "market", "result")),
    ("terminations", "Machines that ended, by reason.", ("reason",)),
    ("interruptions", "Notices of clouds.", ("kind", "handled")),
    ("solver_runs", "Solves, by outcome and by what asked for them.", ("status", "trigger")),
    ("plan_moves", "Replicas that plans add, repair, keep, take back and drain.", ("kind",)),
    ("provider_requests", "Calls to clouds, by class of answer.", ("provider", "action", "class")),
    ("store_errors", "Failed writes of the state.", ()),
)
_LABELS = {name: labels for name, _, labels in _COUNTERS}
_HISTOGRAMS = (
    ("launch_seconds", "From the intent to a machine's id.", START_BUCKETS),
    ("model_ready_seconds", "From the first intent to a serving replica.", START_BUCKETS),
    ("drain_seconds", "From the start of a drain to its end.", DRAIN_BUCKETS),
    (
        "interruption_reaction_seconds",
        "From a notice to the replacement's intent.",
        REACTION_BUCKETS,
    ),
    ("solver_seconds", "Duration of solves.", SOLVE_BUCKETS),
)
_NOTED_GAUGES = (
    ("config_last_reload_successful", "1 when the configuration last loaded is in force."),
    ("event_lag_seconds", "Age of the newest event when it was applied."),
    ("event_skew_seconds", "How far the newest event was dated ahead of this machine."),
    ("solver_gap_ratio", "Proven relative gap of the last solve."),
)
_REACTIONS: Mapping[str, tuple[_Reaction, ...]] = {
    "event_applied": (
        _Reaction("events", labels=(("result", "applied"),)),
        _Reaction("event_lag_seconds", "lag_seconds"),
        _Reaction("event_skew_seconds", "skew_seconds"),
    ),
    "event_ignored": (
        _Reaction("events", labels=(("result", "ignored"),)),
        _Reaction("events_ignored"),
    ),
    "rejected": (
        _Reaction("events", labels=(("type", "unknown"), ("result", "rejected"))),
        _Reaction("events_ignored"),
    ),
    "launched": (
        _Reaction("launches", labels=(("result", "launched"),)),
        _Reaction("launch_seconds", "seconds"),
    ),
    "launch_failed": (_Reaction("launches", result_from="kind"),),
    "launch_unknown": (_Reaction("launches", labels=(("result", "unknown"),)),),
    "replica_ready": (_Reaction("model_ready_seconds", "seconds"),),
    "terminated": (_Reaction("terminations"),),
    "drain_ended": (_Reaction("drain_seconds", "seconds"),),
    "interruption": (
        _Reaction("interruptions"),
        _Reaction("interruption_reaction_seconds", "seconds"),
    ),
    "solve_ended": (
        _Reaction("solver_runs"),
        _Reaction("solver_seconds", "seconds"),
        _Reaction("solver_gap_ratio", "gap"),
    ),
    "solve_failed": (_Reaction("solver_runs", labels=(("status", "failed"),)),),
    "plan_moves": tuple(
        _Reaction("plan_moves", kind, (("kind", kind),))
        for kind in ("add", "repair", "keep", "undrain", "drain")
    ),
    "provider_call": (_Reaction("provider_requests"),),
    "store_failed": (_Reaction("store_errors"),),
    "config_reloaded": (_Reaction("config_last_reload_successful", "ok"),),
}
