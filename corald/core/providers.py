"""What is known about each configured provider: listed or not, frozen or not."""

from __future__ import annotations

from corald.model.events import FleetObserved, ProviderFailed

HOLD_SECONDS = 60.0


class ProviderBook:
    """Sync and freeze state by provider name."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._offered: dict[str, float] = {}
        self._listed: dict[str, float] = {}
        self._frozen: dict[str, str] = {}
        self._held: dict[str, float] = {}
        self._messages: dict[str, str] = {}

    def offered(self, provider: str, at: float) -> bool:
        """Its offerings are known; True when this syncs it."""
        before = self.synced(provider)
        self._offered[provider] = at
        return self.synced(provider) and not before

    def listed(self, event: FleetObserved) -> bool:
        """A complete listing syncs a provider, one that works ends a freeze; True for either."""
        before = self.synced(event.provider) and event.provider not in self._frozen
        self._frozen.pop(event.provider, None)
        self._messages[event.provider] = "" if event.listing.complete else event.listing.note
        if event.listing.complete:
            self._listed[event.provider] = event.asked_at
        return self.synced(event.provider) and not before

    def failed(self, event: ProviderFailed) -> None:
        """Remember a failed read; rejected credentials freeze the provider."""
        self._messages[event.provider] = f"{event.what}: {event.message}"
        if event.credentials:
            self._frozen[event.provider] = event.message

    def hold(self, provider: str, at: float, message: str, *, kind: str) -> None:
        """Take no new machine for a minute (until a listing works, for bad credentials)."""
        self._messages[provider] = f"{kind}: {message}"
        self._held[provider] = at + HOLD_SECONDS
        if kind == "credentials-rejected":
            self._frozen[provider] = message

    def synced(self, provider: str) -> bool:
        return provider in self._offered and provider in self._listed

    def open(self) -> frozenset[str]:
        """Providers that have been listed once."""
        return frozenset(name for name in self.names if self.synced(name))

    def all_listed(self) -> bool:
        return all(name in self._listed for name in self.names)

    def closed(self, now: float) -> frozenset[str]:
        """Providers that give no new machines now."""
        return frozenset(
            name
            for name in self.names
            if not self.synced(name) or name in self._frozen or self._held.get(name, 0.0) > now
        )

    def next_change(self, now: float) -> float | None:
        """When a provider may be used again."""
        return min((until for until in self._held.values() if until > now), default=None)

    def frozen(self, provider: str) -> bool:
        return provider in self._frozen

    def message(self, provider: str) -> str:
        return self._messages.get(provider, "")

    def listing_age(self, provider: str, now: float) -> float | None:
        at = self._listed.get(provider)
        return None if at is None else now - at
