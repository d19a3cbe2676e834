"""The contract between corald and a cloud: all that the author of a provider reads.

A provider is small and honest. It keeps no state of its own, caches no decisions, and does not
retry: corald does that once, around all providers. It translates, and it names every error by what
the caller may do about it (`corald.errors`).
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ValidationError

from corald.errors import ConfigError
from corald.model.events import InterruptionNoticed
from corald.model.fleet import Instance, LaunchRequest, Listing, TerminateOutcome
from corald.model.hardware import Catalog
from corald.model.market import Offering, Quota

ENTRY_POINT_GROUP = "corald.providers"


class Clock(Protocol):
    """Time, injected: the daemon's is the machine's, a simulation's is virtual."""

    def now(self) -> float:
        """Epoch seconds; may jump."""

    def monotonic(self) -> float:
        """Seconds that only rise; for intervals."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """What a provider is given besides its own settings."""

    name: str
    """The configured name, as events and policies use it."""
    cluster: str
    catalog: Catalog
    clock: Clock
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Objects of a composition root, such as the market that a simulation shares."""


@runtime_checkable
class Provider(Protocol):
    """One account of one cloud. Every method may raise `ProviderError`s."""

    name: str

    async def offerings(self) -> Sequence[Offering]:
        """List what can be rented now, with prices, and availability where the cloud tells.

        An offering whose price is missing, zero, negative or not finite is left out.
        """

    async def quotas(self) -> Sequence[Quota]:
        """List the account's limits where the cloud tells them; empty where it does not."""

    async def launch(self, request: LaunchRequest) -> Instance:
        """Rent one machine; tags are part of the create call; never waits for boot.

        Twice with one token rents one machine, and answers with it again.

        Raises:
            InsufficientCapacityError, QuotaExceededError, ThrottledError, InvalidRequestError,
            CredentialsRejectedError: nothing was rented.
            InstanceGoneError: the token's machine has been terminated already.
            OutcomeUnknownError: a machine may have been rented.
        """

    async def terminate(self, instance_ids: Sequence[str]) -> Mapping[str, TerminateOutcome]:
        """Give machines back, with an answer for each id; what is gone already succeeds."""

    async def list_instances(self) -> Listing:
        """List every machine that carries the cluster's tag, whatever its state."""

    def interruptions(self) -> AsyncIterator[InterruptionNoticed]:
        """Yield notices until closed; a provider that has none never yields."""

    async def close(self) -> None:
        """Release connections; a second call does nothing."""


class ProviderFactory(Protocol):
    """What an entry point of group `corald.providers` names: usually the provider's class."""

    def from_config(self, config: Mapping[str, Any], context: ProviderContext) -> Provider:
        """Build it, or raise ConfigError that says which key is wrong and how to mend it."""


def load_factory(plugin: str) -> ProviderFactory:
    """Find the provider plugin called `plugin`; only this one is imported.

    Raises:
        ConfigError: unknown name, or the import failed (a missing extra, usually).
    """
    found: dict[str, EntryPoint] = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
    if plugin not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(f"no provider plugin is called {plugin!r}; installed: {known}")
    try:
        factory: ProviderFactory = found[plugin].load()
    except ImportError as error:
        raise ConfigError(
            f"provider plugin {plugin!r} cannot be imported ({error}); "
            f"is its extra installed? try: pip install 'corald[{plugin}]'"
        ) from error
    return factory


S = TypeVar("S", bound=BaseModel)


def read_settings(schema: type[S], config: Mapping[str, Any], name: str) -> S:
    """Validate the settings of the provider `name`.

    Raises:
        ConfigError: It names every wrong key, and what was probably meant.
    """
    try:
        return schema.model_validate(dict(config))
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            path = ".".join(["providers", name, *map(str, fault["loc"])])
            hint = _hint(schema, fault["loc"]) if fault["type"] == "extra_forbidden" else ""
            faults.append(f"{path}: {fault['msg']}{hint}")
        raise ConfigError("; ".join(faults)) from None


def _hint(schema: type[BaseModel], location: Sequence[int | str]) -> str:
    known = list(schema.model_fields) if len(location) == 1 else []
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
