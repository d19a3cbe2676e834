"""What each model needs now: demand after stabilisation, or what it runs when nothing is known."""

from __future__ import annotations

from corald.core.demand import DemandLevel, requests_per_second, row_amounts
from corald.core.problem import Want
from corald.core.state import ClusterState
from corald.core.window import StabilityWindow
from corald.model.fleet import ReplicaState
from corald.model.policy import ModelPolicy
from corald.model.templates import Phase


class Needs:
    """One stabilisation window for each model with a policy."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self._state = state
        self._windows = {name: self._window(name, now) for name in state.policies.models}

    def policies_changed(self, now: float) -> None:
        """Open windows for new models, drop those of removed ones."""
        self._windows = {
            name: self._windows.get(name) or self._window(name, now)
            for name in self._state.policies.models
        }

    def wants(self, now: float) -> tuple[dict[str, Want], dict[str, str]]:
        """What each model needs, and which models must not shrink, with the reason."""
        wants: dict[str, Want] = {}
        hold: dict[str, str] = {}
        for name, policy in self._state.policies.models.items():
            if reason := self._state.hold_reason(name, now):
                hold[name] = reason
            level = self._state.demand.level(name)
            if level is None:
                amounts = self._running(name, policy)
                if policy.min_replicas or any(amounts.values()):
                    wants[name] = Want(amounts, policy.min_replicas)
            else:
                rate = self._rate(name, policy, level, now, shrink=not reason)
                wants[name] = Want(row_amounts(policy, level, rate), _floor(policy, rate))
        return wants, hold

    def next_change(self, now: float) -> float | None:
        """When a window lets demand move without any event."""
        times = []
        for name, window in self._windows.items():
            up, down = _delays(self._state.policies.models[name], window)
            times.append(window.next_change(now, up=up, down=down))
        return min((t for t in times if t is not None), default=None)

    def _rate(
        self, name: str, policy: ModelPolicy, level: DemandLevel, now: float, *, shrink: bool
    ) -> float:
        """Requests/s to plan for; a rate that moves makes a new plan due."""
        window = self._windows[name]
        before = window.used
        # Without fresh knowledge the level in use counts as known, so that shrinking needs a whole
        # window of it afterwards.
        known = level.request_rate if shrink else max(before, level.request_rate)
        up, down = _delays(policy, window)
        rate = window.update(now, known, up=up, down=down)
        if rate != before:
            self._state.agenda.mark("demand", now)
        return rate

    def _running(self, name: str, policy: ModelPolicy) -> dict[Phase, float]:
        """Throughput of what serves or starts, by phase of the policy."""
        amounts = dict.fromkeys(policy.serving.phases, 0.0)
        for replica in self._state.fleet.replicas.values():
            alive = replica.state in (ReplicaState.STARTING, ReplicaState.READY)
            if replica.template.model == name and alive and replica.template.phase in amounts:
                amounts[replica.template.phase] += replica.template.throughput
        return amounts

    def _window(self, name: str, now: float) -> StabilityWindow:
        """A window that begins at what runs already."""
        policy = self._state.policies.models[name]
        level = self._state.demand.level(name)
        rates = [
            requests_per_second(policy, level, phase, amount) / (1.0 + policy.headroom)
            for phase, amount in self._running(name, policy).items()
        ]
        return StabilityWindow(now=now, floor=min(rates, default=0.0))


def _delays(policy: ModelPolicy, window: StabilityWindow) -> tuple[float, float]:
    """How long a level must stand before it is followed: upwards, downwards."""
    down = policy.scale_down_delay_seconds
    if policy.scale_to_zero_after_seconds is not None and window.last == 0:
        down = max(down, policy.scale_to_zero_after_seconds)
    return policy.scale_up_delay_seconds, down


def _floor(policy: ModelPolicy, rate: float) -> int:
    """Replicas at least: without leave to go to zero, one stays."""
    if rate <= 0 and policy.scale_to_zero_after_seconds is None:
        return max(1, policy.min_replicas)
    return policy.min_replicas
