"""What the admin interface answers besides `model.status`, and how values become JSON and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from corald.model.plan import Move, PlanRow
from corald.model.problem import SolveReport
from corald.model.state import Note
from corald.model.status import Status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request was not served."""

    error: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether decisions are made; if not, what they wait for."""

    ready: bool
    waiting: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """How many events are durable now."""

    events: int


@dataclass(frozen=True, slots=True)
class PlanView:
    """The plan in force."""

    rows: tuple[PlanRow, ...]
    usd_per_hour_change: float
    """Of what is added, less what drains."""
    solve: SolveReport | None


@dataclass(frozen=True, slots=True)
class CostView:
    """What is spent now, and what other ways of allocating would cost (USD/h by name)."""

    usd_per_hour: float
    committed_usd_per_hour: float
    """As caps count it: spot at the on-demand price."""
    usd_today: float
    budget_usd_per_hour: float | None
    by_model: Mapping[str, float]
    by_market: Mapping[str, float]
    by_template: Mapping[str, float]
    baselines: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NoteView:
    """One line of the audit log."""

    at: float
    event: str
    fields: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class PauseBody:
    """The body of a pause request; without a model it means all of them."""

    paused: bool
    model: str = ""
    reason: Annotated[str, Field(max_length=256)] = ""


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:  # noqa: ANN401  # any type form
    """Adapters take milliseconds to make, and there are few forms."""
    return TypeAdapter(form)


def to_json(value: object, form: Any) -> bytes:  # noqa: ANN401  # any type form
    """Write `value`, which is of type `form`."""
    return _adapter(form).dump_json(value)


def from_json(content: bytes | str, form: type[T]) -> T:
    """Read a value of type `form`; pydantic's ValidationError when it is not one."""
    adapter: TypeAdapter[T] = _adapter(form)  # type: ignore[arg-type] # types are hashable
    return adapter.validate_json(content)


def plan_view(rows: Sequence[PlanRow], solve: SolveReport | None) -> PlanView:
    """Sum up a plan."""
    sign = {Move.ADD: 1, Move.KEEP: 0, Move.DRAIN: -1}
    return PlanView(tuple(rows), sum(sign[row.move] * row.usd_per_hour for row in rows), solve)


def cost_view(status: Status) -> CostView:
    """Sum up the money of a status."""
    by_market: dict[str, float] = defaultdict(float)
    by_template: dict[str, float] = defaultdict(float)
    for model in status.models:
        for market, usd in model.usd_per_hour_by_market.items():
            by_market[market.value] += usd
    for replica in status.replicas:
        by_template[replica.shape] += replica.usd_per_hour
    return CostView(
        usd_per_hour=status.usd_per_hour,
        committed_usd_per_hour=status.committed_usd_per_hour,
        usd_today=status.usd_today,
        budget_usd_per_hour=status.budget_usd_per_hour,
        by_model={model.model: model.usd_per_hour for model in status.models},
        by_market=dict(by_market),
        by_template=dict(by_template),
        baselines=dict(status.solve.baselines) if status.solve else {},
    )


def note_view(note: Note) -> NoteView:
    """Render one note."""
    return NoteView(note.at, note.event, dict(note.fields))
