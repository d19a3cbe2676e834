"""What corald tells other systems over Kafka: its audit log, its plans, its routes."""

from __future__ import annotations

from collections.abc import Callable

from corald.adapters.kafka import KafkaPublisher
from corald.adapters.views import NoteView, PlanView, note_view, plan_view, to_json
from corald.model.events import Reject
from corald.model.state import Note
from corald.model.status import Routes
from corald.runtime.ports import ControlPlane

CHANGES_PLAN = frozenset({"plan_moves", "solve_ended"})
CHANGES_ROUTES = "routes_changed"


class TopicSink:
    """Publishes to the topics that have a name; a NoteSink.

    Records are what `/v1/audit`, `/v1/plan` and `/v1/routes` answer.
    """

    def __init__(
        self,
        publisher: KafkaPublisher,
        *,
        cluster: str,
        audit: str | None,
        plans: str | None,
        routes: str | None,
    ) -> None:
        self._publisher = publisher
        self._cluster = cluster
        self._audit = audit
        self._plans = plans
        self._routes = routes
        self._control: ControlPlane | None = None

    def watch(self, control: ControlPlane) -> None:
        """Take plans and routes from `control` from now on."""
        self._control = control

    def publish(self, note: Note) -> None:
        """Send what the note is, and what it announces."""
        if note.audit and self._audit:
            self._send(self._audit, to_json(note_view(note), NoteView))
        if (control := self._control) is None:
            return
        if note.event in CHANGES_PLAN and self._plans:
            view = plan_view(control.plan_rows(), control.status().solve)
            self._send(self._plans, to_json(view, PlanView))
        if note.event == CHANGES_ROUTES and self._routes:
            self._send(self._routes, to_json(control.routes(), Routes))

    def _send(self, topic: str, value: bytes) -> None:
        self._publisher.publish(topic, value, key=self._cluster)


def dead_letters(publisher: KafkaPublisher, topic: str | None) -> Callable[[Reject], None] | None:
    """Tell where refused records go: to `topic`, with the reason and the origin as headers."""
    if topic is None:
        return None

    def send(reject: Reject) -> None:
        publisher.publish(
            topic,
            reject.raw,
            headers={
                "reason": reject.reason,
                "detail": reject.detail,
                "origin": f"{reject.topic}/{reject.partition}/{reject.offset}",
            },
        )

    return send
