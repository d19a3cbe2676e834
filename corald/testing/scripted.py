"""A provider on a script: each call gets what a test wrote for it, the rest a marketplace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

from corald.errors import ProviderError
from corald.market.faults import Call, Fault
from corald.market.marketplace import Marketplace
from corald.market.provider import MarketProvider
from corald.market.stock import offering_path
from corald.model.market import OfferingKey
from corald.plugin import ProviderContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise `error`, instead of the call's effect or after it."""

    error: ProviderError
    after_effect: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer with `value`, without any effect."""

    value: Any


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait on the clock, then have the effect."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Pass:
    """Let the marketplace answer."""


Step = Fail | Reply | Delay | Pass


@dataclass(slots=True)
class _Line:
    call: Call
    step: Step
    where: str
    left: int | None


class ScriptedProvider(MarketProvider):
    """A `MarketProvider` with a script; every call stands in `market.ledger` with its token."""

    def __init__(self, market: Marketplace, context: ProviderContext) -> None:
        super().__init__(market, context)
        self._script: list[_Line] = []

    def script(self, call: Call, *steps: Step, where: str = "*", times: int | None = 1) -> None:
        """Append steps for coming calls, each for `times` calls (None: all).

        A launch takes the first step whose `where`, a shell-style pattern, matches its offering's
        `region/zone/type/market`.
        """
        self._script += [_Line(call, step, where, times) for step in steps]

    @property
    def unplayed(self) -> int:
        """How many limited steps nobody has asked for yet."""
        return sum(line.left is not None for line in self._script)

    async def _call(
        self,
        call: Call,
        effect: Callable[[Fault | None], T],
        *,
        offering: OfferingKey | None = None,
        token: str = "",
        request: str = "",
    ) -> T:
        region = offering.region if offering else ""
        now = self._clock.now()
        step = self._next(call, offering)
        if isinstance(step, Pass):
            return await super()._call(
                call, effect, offering=offering, token=token, request=request
            )
        self.market.record_call(call, now, region=region, token=token, request=request)
        match step:
            case Fail(error, after_effect=after_effect):
                if after_effect:
                    effect(None)
                raise self.market.refuse(call, error, token=token)
            case Reply(value):
                return cast("T", value)
            case Delay(seconds):
                await self._clock.sleep(seconds)
                return effect(None)

    def _next(self, call: Call, offering: OfferingKey | None) -> Step:
        path = offering_path(offering) if offering else ""
        for line in self._script:
            if line.call is call and fnmatchcase(path, line.where):
                if line.left is not None:
                    line.left -= 1
                    if line.left == 0:
                        self._script.remove(line)
                return line.step
        return Pass()
