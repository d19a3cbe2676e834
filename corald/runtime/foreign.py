"""The wrapper around a provider plugin: foreign code that may hang or fail in any way.

Every call has a time limit, and whatever is not one of the contract's errors becomes one: unknown
for a create call, transient for anything else. Only here may everything be caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TypeVar

from corald.errors import OutcomeUnknownError, ProviderError, TransientError
from corald.model.events import InterruptionNoticed
from corald.model.fleet import Instance, LaunchRequest, Listing, TerminateOutcome
from corald.model.market import Offering, Quota
from corald.plugin import Provider

LAUNCH_SECONDS = 90.0
CALL_SECONDS = 60.0

T = TypeVar("T")


class ForeignProvider:
    """Implements `corald.plugin.Provider` over a plugin's own."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.name = provider.name

    async def offerings(self) -> Sequence[Offering]:
        return await _answer(self._provider.offerings())

    async def quotas(self) -> Sequence[Quota]:
        return await _answer(self._provider.quotas())

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent one machine; a call cut short may still happen, so its outcome is unknown."""
        call = self._provider.launch(request)
        return await _answer(call, seconds=LAUNCH_SECONDS, otherwise=OutcomeUnknownError)

    async def terminate(self, instance_ids: Sequence[str]) -> Mapping[str, TerminateOutcome]:
        return await _answer(self._provider.terminate(instance_ids))

    async def list_instances(self) -> Listing:
        return await _answer(self._provider.list_instances())

    async def interruptions(self) -> AsyncIterator[InterruptionNoticed]:
        """Yield the plugin's notices; waiting for one has no time limit."""
        try:
            async for notice in self._provider.interruptions():
                yield notice
        except ProviderError:
            raise
        except Exception as error:
            raise TransientError(_told(error)) from error

    async def close(self) -> None:
        await _answer(self._provider.close())


async def _answer(
    call: Awaitable[T],
    *,
    seconds: float = CALL_SECONDS,
    otherwise: type[ProviderError] = TransientError,
) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await call
    except ProviderError:
        raise
    except TimeoutError as error:
        raise otherwise("no answer in time", code="timeout") from error
    except Exception as error:
        raise otherwise(_told(error), code="plugin-bug") from error


def _told(error: Exception) -> str:
    return f"the plugin failed: {type(error).__name__}: {error}"
