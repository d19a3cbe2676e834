"""The last check before a cloud is asked to rent or to take back: the planner cannot pass it.

The gate keeps its own account from what is durable and from what clouds show, and shares only the
arithmetic of caps with the guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from corald.core.caps import Caps
from corald.model.events import FailureClass
from corald.model.fleet import TAG_CLUSTER, TAG_MANAGED_BY, Instance, Intent, LaunchRequest
from corald.model.plan import Launch

TAGS_FRESH_SECONDS = 60.0


class Gate:
    """Refuses launches that were not written ahead or exceed a cap, and foreign terminations."""

    def __init__(
        self, cluster: str, *, caps: Callable[[], Caps], wanted: Callable[[str], bool]
    ) -> None:
        self._cluster = cluster
        self._caps = caps
        self._wanted = wanted
        self._durable: dict[str, tuple[LaunchRequest, float]] = {}
        self._ours: dict[tuple[str, str], float] = {}

    def committed(self, intents: Iterable[Intent]) -> None:
        """Take note of intents after their transaction is on disk."""
        for intent in intents:
            if intent.state.ended:
                self._durable.pop(intent.id, None)
            else:
                self._durable[intent.id] = (intent.request, intent.committed_usd_per_hour)

    def saw(self, instances: Iterable[Instance], at: float) -> None:
        """Take note of machines whose tags a cloud has just shown."""
        for instance in instances:
            tags = dict(instance.tags)
            if tags.get(TAG_CLUSTER) == self._cluster and tags.get(TAG_MANAGED_BY) == "corald":
                self._ours[instance.provider, instance.id] = at

    def forget_before(self, provider: str, at: float) -> None:
        """Drop machines that a complete listing did not show again."""
        self._ours = {
            key: seen for key, seen in self._ours.items() if key[0] != provider or seen >= at
        }

    def refuses_launch(self, launch: Launch) -> FailureClass | None:
        """Why this launch must not be made; None when it may.

        `withdrawn`: it had to wait and is not wanted any more. `blocked`: it must never be made so.
        """
        if not self._wanted(launch.intent):
            return FailureClass("withdrawn", "no longer wanted")
        durable = self._durable.get(launch.intent)
        if durable is None:
            return FailureClass("blocked", "no durable intent")
        if durable[0] != launch.request:
            return FailureClass("blocked", "the request differs from the durable one")
        others = sum(usd for intent, (_, usd) in self._durable.items() if intent != launch.intent)
        refusal = self._caps().refusal(others, durable[1])
        return FailureClass("blocked", refusal) if refusal else None

    def may_terminate(self, provider: str, ids: Sequence[str], now: float) -> list[str]:
        """Those of `ids` whose tags were seen to be ours within the last minute."""
        return [
            i
            for i in ids
            if now - self._ours.get((provider, i), float("-inf")) <= TAGS_FRESH_SECONDS
        ]
