"""How calls to providers are counted: (provider, action, class of the outcome)."""

from __future__ import annotations

from collections.abc import Callable

CountCall = Callable[[str, str, str], None]


def ignore_count(provider: str, action: str, outcome: str) -> None:
    """Count nothing."""
