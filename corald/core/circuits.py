"""A circuit per template: after repeated starts that never became ready, stop paying for more."""

from __future__ import annotations

from dataclasses import dataclass

from corald.model.policy import Rules


@dataclass(frozen=True, slots=True)
class _Circuit:
    failures: int = 0
    openings: int = 0
    open_until: float = 0.0


class Circuits:
    """Consecutive failures by template id."""

    def __init__(self) -> None:
        self._circuits: dict[str, _Circuit] = {}

    def failed(self, template: str, now: float, rules: Rules, *, at_once: bool = False) -> bool:
        """Count a failure; True when this opens the circuit.

        After the circuit's time one more start is allowed (half open): its failure opens it again,
        for twice as long.
        """
        circuit = self._circuits.get(template, _Circuit())
        if circuit.open_until > now:
            return False
        failures = rules.circuit_failures if at_once else circuit.failures + 1
        if failures < rules.circuit_failures:
            self._circuits[template] = _Circuit(failures, circuit.openings, circuit.open_until)
            return False
        seconds = min(rules.circuit_seconds * 2**circuit.openings, rules.circuit_max_seconds)
        self._circuits[template] = _Circuit(
            rules.circuit_failures - 1, circuit.openings + 1, now + seconds
        )
        return True

    def succeeded(self, template: str) -> None:
        self._circuits.pop(template, None)

    def open_at(self, now: float) -> dict[str, float]:
        """Templates that may not be started now, with the time they may again."""
        return {t: c.open_until for t, c in self._circuits.items() if c.open_until > now}

    def on_trial(self) -> frozenset[str]:
        """Templates that have been open: one start at a time until one of them succeeds."""
        return frozenset(t for t, c in self._circuits.items() if c.openings > 0)

    def next_change(self, now: float) -> float | None:
        return min(self.open_at(now).values(), default=None)
