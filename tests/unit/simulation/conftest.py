"""The harness is tested in the town of the scenarios."""

from __future__ import annotations

from tests.scenarios.conftest import catalog, library, play

__all__ = ["catalog", "library", "play"]
