"""A day of demand, minute by minute: generated from a seed, or read from a measured trace."""

from __future__ import annotations

import csv
import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corald.errors import ConfigError
from corald.model.events import DemandObserved, Stamp

MINUTES_PER_DAY = 1440
SECONDS_PER_DAY = 86_400
TRACE_FILE = Path("demand/demand_6models_1min_7d.csv")

_NOISE_MEMORY = 0.9
"""Of the minute-to-minute noise: about ten minutes."""
_BURST_MINUTES = (8, 40)
_BURST_FACTOR = (1.3, 1.9)


@dataclass(frozen=True, slots=True)
class DemandShape:
    """What a model's day looks like; the rate swings around its mean by `swing` of it."""

    model: str
    mean_request_rate: float
    input_tokens: float
    output_tokens: float
    peak_hour: float
    swing: float = 0.6
    """Below 1, so that the trough stays above zero."""
    bursts_per_day: int = 2
    noise: float = 0.03
    """Standard deviation of the slow noise, relative to the rate."""


@dataclass(frozen=True, slots=True)
class DemandSample:
    """The level of one model's demand over one minute, `at_seconds` into the day."""

    at_seconds: float
    model: str
    request_rate: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class TraceColumn:
    """Which model of a trace stands for which of ours, and the mean rate it is scaled to."""

    trace_model: str
    model: str
    mean_request_rate: float


def generate_day(shapes: Sequence[DemandShape], *, seed: int) -> tuple[DemandSample, ...]:
    """Generate a diurnal day with bursts and noise; a model's day depends on no other model."""
    days = [_generate_model(shape, random.Random(f"{seed}/{shape.model}")) for shape in shapes]  # noqa: S311 (no secret)
    return tuple(sample for minute in zip(*days, strict=True) for sample in minute)


def read_trace_day(
    path: Path, columns: Sequence[TraceColumn], *, day: int = 0
) -> tuple[DemandSample, ...]:
    """Read one day of a trace with columns `t_s, model, rate_norm, in_tok_mean, out_tok_mean`.

    `rate_norm` has mean 1 over the whole trace, hence a day's mean may differ from the scale.

    Raises:
        ConfigError: the file is missing, has other columns or no such day.
    """
    wanted = {column.trace_model: column for column in columns}
    start = day * SECONDS_PER_DAY
    try:
        with path.open(newline="", encoding="utf-8") as file:
            samples = tuple(
                _trace_sample(row, wanted[row["model"]], start)
                for row in csv.DictReader(file)
                if row["model"] in wanted and 0 <= float(row["t_s"]) - start < SECONDS_PER_DAY
            )
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not a readable demand trace: {error!r}") from error
    if missing := {column.model for column in columns} - {sample.model for sample in samples}:
        raise ConfigError(f"{path} has no demand for {sorted(missing)} on day {day}")
    return samples


def find_data() -> Path | None:
    """Find measured data: `CORALD_DATA`, or `shared/data` beside the source tree."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    root = Path(os.environ.get("CORALD_DATA") or beside)
    return root if root.is_dir() else None


def demand_events(
    day: Iterable[DemandSample], *, source: str, start_at: float, first_sequence: int = 0
) -> Iterator[DemandObserved]:
    """Turn samples into events of one source whose sequence rises from `first_sequence`."""
    for sequence, sample in enumerate(day, first_sequence):
        yield DemandObserved(
            event_id=f"{source}-{sequence}",
            source=source,
            model=sample.model,
            request_rate=sample.request_rate,
            input_tokens=sample.input_tokens,
            output_tokens=sample.output_tokens,
            window_seconds=60.0,
            stamp=Stamp(epoch=0, sequence=sequence, at=start_at + sample.at_seconds),
        )


def _generate_model(shape: DemandShape, dice: random.Random) -> list[DemandSample]:
    bursts = [_Burst.draw(dice) for _ in range(shape.bursts_per_day)]
    drift = 0.0
    samples = []
    for minute in range(MINUTES_PER_DAY):
        drift = _NOISE_MEMORY * drift + math.sqrt(1 - _NOISE_MEMORY**2) * dice.gauss(0, shape.noise)
        wave = 1 + shape.swing * math.cos(math.tau * (minute / 60 - shape.peak_hour) / 24)
        burst = max((burst.factor_at(minute) for burst in bursts), default=1.0)
        samples.append(
            DemandSample(
                at_seconds=minute * 60.0,
                model=shape.model,
                request_rate=shape.mean_request_rate * wave * burst * math.exp(drift),
                input_tokens=shape.input_tokens,
                output_tokens=shape.output_tokens,
            )
        )
    return samples


@dataclass(frozen=True, slots=True)
class _Burst:
    """A rise and fall in the shape of half a sine wave."""

    start: int
    minutes: int
    factor: float

    @classmethod
    def draw(cls, dice: random.Random) -> _Burst:
        minutes = dice.randint(*_BURST_MINUTES)
        return cls(dice.randrange(MINUTES_PER_DAY - minutes), minutes, dice.uniform(*_BURST_FACTOR))

    def factor_at(self, minute: int) -> float:
        done = (minute - self.start) / self.minutes
        return 1 + (self.factor - 1) * math.sin(math.pi * done) if 0 <= done <= 1 else 1.0


def _trace_sample(row: Mapping[str, str], column: TraceColumn, start: float) -> DemandSample:
    return DemandSample(
        at_seconds=float(row["t_s"]) - start,
        model=column.model,
        request_rate=float(row["rate_norm"]) * column.mean_request_rate,
        input_tokens=float(row["in_tok_mean"]),
        output_tokens=float(row["out_tok_mean"]),
    )
