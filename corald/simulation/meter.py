"""A producer of demand for tests: it repeats the present levels, as a metering gateway would."""

from __future__ import annotations

from dataclasses import dataclass

from corald.model.events import DemandObserved, Stamp
from corald.plugin import Clock
from corald.simulation.broker import Log

INTERVAL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Level:
    """What one model is asked for; tokens are means per request."""

    request_rate: float
    input_tokens: float | None = None
    output_tokens: float | None = None


class Meter:
    """One source; `set` a level and it is produced at once and again every interval."""

    def __init__(self, log: Log, clock: Clock, *, source: str = "meter") -> None:
        self._log = log
        self._clock = clock
        self._source = source
        self._levels: dict[str, Level] = {}
        self._sequence = 0

    def set(self, model: str, level: Level) -> None:
        """Change a model's level."""
        self._levels[model] = level
        self._produce(model)

    def silence(self, model: str) -> None:
        """Stop reporting a model, which is not the same as reporting zero."""
        del self._levels[model]

    async def run(self) -> None:
        """Repeat all levels for ever."""
        while True:
            for model in self._levels:
                self._produce(model)
            await self._clock.sleep(INTERVAL_SECONDS)

    def _produce(self, model: str) -> None:
        level = self._levels[model]
        self._sequence += 1
        event = DemandObserved(
            event_id=f"{self._source}-{self._sequence}",
            source=self._source,
            model=model,
            request_rate=level.request_rate,
            input_tokens=level.input_tokens,
            output_tokens=level.output_tokens,
            window_seconds=INTERVAL_SECONDS,
            stamp=Stamp(epoch=0, sequence=self._sequence, at=self._clock.now()),
        )
        self._log.append([event])
