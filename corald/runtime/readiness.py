"""Readiness by model: a replica serves once its machines have run for as long as loading takes.

An estimate, for sites without an agent on the nodes: nothing asks the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corald.model.events import Event, ReplicaReady, RequestsInFlight
from corald.model.fleet import Intent, Replica, ReplicaState
from corald.runtime.ports import ReplicaView

DRAIN_SECONDS = 30.0
"""Modelled time until the last request of a draining replica has ended."""


class ModelledReadiness:
    """Answers from the time that has passed."""

    def __init__(
        self, load_seconds: Callable[[Replica], float], *, drain_seconds: float = DRAIN_SECONDS
    ) -> None:
        self._load_seconds = load_seconds
        self._drain_seconds = drain_seconds

    async def observe(
        self, replicas: Sequence[ReplicaView], departing: Sequence[Intent], now: float
    ) -> Sequence[Event]:
        """Implement `ports.Readiness`; a leaving machine is used up to its deadline."""
        del departing
        events: list[Event] = []
        for view in replicas:
            replica = view.replica
            if replica.state is ReplicaState.STARTING and self._loaded(view, now):
                events.append(ReplicaReady(replica.id, now))
            elif (
                replica.state is ReplicaState.DRAINING
                and replica.drain_since is not None
                and now - replica.drain_since >= self._drain_seconds
            ):
                events.append(RequestsInFlight(replica.id, 0, now))
        return events

    def _loaded(self, view: ReplicaView, now: float) -> bool:
        nodes = [i for i in view.intents if i.usable and not i.lost]
        running = [i.running_at for i in nodes if i.running_at is not None]
        complete = len(running) == len(view.replica.offerings)
        return complete and now - max(running) >= self._load_seconds(view.replica)
