"""How reasons leave the core: a list of notes, each with a frozen event name."""

from __future__ import annotations

from corald.model.state import Note

Scalar = str | int | float | bool | None


class Notes:
    """Collects notes until they are taken."""

    def __init__(self) -> None:
        self._notes: list[Note] = []

    def add(self, event: str, at: float, *, audit: bool = False, **fields: Scalar) -> None:
        self._notes.append(
            Note(event=event, fields=tuple(sorted(fields.items())), audit=audit, at=at)
        )

    def take(self) -> tuple[Note, ...]:
        notes, self._notes = tuple(self._notes), []
        return notes
