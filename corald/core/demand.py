"""Demand: the newest sample of each (source, model), their sum, and the rows it becomes.

Merging is a pure maximum over a total order, so order and duplicates of events do not matter.
A silent source's last level keeps counting; silence only forbids shrinking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from corald.model.events import DemandObserved, Stamp
from corald.model.policy import ModelPolicy, Rules
from corald.model.templates import Phase

MOST_SOURCES = 1000
"""Sources that one model may have: memory stays bounded whatever producers do."""

Order = tuple[int, int, int, float]


def stamp_order(stamp: Stamp, epoch_reset_seconds: float) -> Order:
    """Key of the total order of one source's samples.

    The sequence decides within an era of `epoch_reset_seconds`, the era before it: a producer that
    restarts its sequence without raising its epoch is believed again one era later.
    """
    return stamp.epoch, int(stamp.at // epoch_reset_seconds), stamp.sequence, stamp.at


@dataclass(frozen=True, slots=True)
class DemandLevel:
    """Demand of one model over all its sources; rate in requests/s, tokens per request."""

    request_rate: float
    input_tokens: float | None
    output_tokens: float | None
    newest_at: float
    oldest_at: float
    """Age of the most silent source that still counts."""


class DemandBook:
    """The samples that count, by (source, model)."""

    def __init__(self, samples: Iterable[DemandObserved] = ()) -> None:
        self._by_model: dict[str, dict[str, DemandObserved]] = {}
        for sample in samples:
            self._by_model.setdefault(sample.model, {})[sample.source] = sample

    def full(self, sample: DemandObserved) -> bool:
        """Whether the sample is of one source too many for its model."""
        sources = self._by_model.get(sample.model, {})
        return sample.source not in sources and len(sources) >= MOST_SOURCES

    def merge(self, sample: DemandObserved, rules: Rules) -> bool:
        """Keep the newer of `sample` and what is held; True when it changed anything."""
        sources = self._by_model.setdefault(sample.model, {})
        held = sources.get(sample.source)
        if held is not None and _rank(sample, rules) <= _rank(held, rules):
            return False
        sources[sample.source] = sample
        return True

    def retire(self, source: str) -> bool:
        """Forget a source on an operator's word."""
        gone = [sources.pop(source, None) for sources in self._by_model.values()]
        return any(sample is not None for sample in gone)

    def forget_silent(self, now: float, after_seconds: float | None) -> tuple[str, ...]:
        """Drop sources silent for longer than `after_seconds` and name them."""
        if after_seconds is None:
            return ()
        newest: dict[str, float] = {}
        for sample in self.samples:
            known = newest.get(sample.source, sample.stamp.at)
            newest[sample.source] = max(sample.stamp.at, known)
        silent = sorted(source for source, at in newest.items() if now - at > after_seconds)
        for source in silent:
            self.retire(source)
        return tuple(silent)

    def level(self, model: str) -> DemandLevel | None:
        """Sum over the model's sources; None when none has ever reported."""
        samples = [s for _, s in sorted(self._by_model.get(model, {}).items())]
        if not samples:
            return None
        active = [s for s in samples if s.request_rate > 0] or samples
        return DemandLevel(
            request_rate=sum(s.request_rate for s in samples),
            input_tokens=_weighted_mean([(s.input_tokens, s.request_rate) for s in active]),
            output_tokens=_weighted_mean([(s.output_tokens, s.request_rate) for s in active]),
            newest_at=max(s.stamp.at for s in samples),
            oldest_at=min(s.stamp.at for s in active),
        )

    @property
    def samples(self) -> tuple[DemandObserved, ...]:
        """All that count, by model and source."""
        return tuple(
            sample
            for _, sources in sorted(self._by_model.items())
            for _, sample in sorted(sources.items())
        )


def _rank(sample: DemandObserved, rules: Rules) -> tuple[Order, float, float, float]:
    """Order of a sample; content breaks ties so that the order is total."""
    return (
        stamp_order(sample.stamp, rules.epoch_reset_seconds),
        sample.request_rate,
        sample.input_tokens or 0.0,
        sample.output_tokens or 0.0,
    )


def _weighted_mean(pairs: list[tuple[float | None, float]]) -> float | None:
    """Mean of the known values, weighted by rate; None when no sample says."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    if not known:
        return None
    if total <= 0:
        return sum(value for value, _ in known) / len(known)
    return sum(value * weight for value, weight in known) / total


def row_amounts(policy: ModelPolicy, level: DemandLevel, rate: float) -> dict[Phase, float]:
    """Amount of every demand row at `rate` requests/s, headroom included.

    Prefill and decode count tokens. A mixed row counts requests of the library's workload class: a
    request whose tokens differ from the class counts as the mean of its two token ratios, which is
    an approximation (the exact weight depends on the template).
    """
    workload = policy.workload
    inputs = level.input_tokens or workload.input_tokens_mean
    outputs = level.output_tokens or workload.output_tokens_mean
    padded = rate * (1.0 + policy.headroom)
    ratio = (inputs / workload.input_tokens_mean + outputs / workload.output_tokens_mean) / 2
    amounts = {
        Phase.MIXED: padded * ratio,
        Phase.PREFILL: padded * inputs,
        Phase.DECODE: padded * outputs,
    }
    return {phase: amounts[phase] for phase in policy.serving.phases}


def requests_per_second(
    policy: ModelPolicy, level: DemandLevel | None, phase: Phase, throughput: float
) -> float:
    """Translate a row's throughput into requests/s, the unit people are shown."""
    empty = DemandLevel(0.0, None, None, 0.0, 0.0)
    per_request = row_amounts(policy, level or empty, 1.0)[phase] / (1.0 + policy.headroom)
    return throughput / per_request
