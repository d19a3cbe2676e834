"""What every test may use; what one folder uses stays in that folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]

pytest_plugins = ["tests.kafka.fixtures"]

# The ordinary run draws the same cases every time; `--hypothesis-profile=explore` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def recorded_data() -> Path | None:
    """The folder of recorded demand, prices and measurements; None on a machine without it."""
    folder = Path(os.environ.get("CORALD_DATA") or REPOSITORY.parent / "shared" / "data")
    return folder if folder.is_dir() else None
