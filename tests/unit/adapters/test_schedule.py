"""The schedule calls what it is given, and nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from corald.adapters.schedule import Schedule
from corald.errors import ConfigError


def test_callbacks_are_called_at_their_interval_and_never_beside_themselves() -> None:
    running, most, calls = 0, 0, 0

    async def slow() -> None:
        nonlocal running, most, calls
        running, calls = running + 1, calls + 1
        most = max(most, running)
        if calls == 3:
            done.set()
        await asyncio.sleep(0.03)
        running -= 1

    async def run() -> None:
        schedule = Schedule()
        schedule.every(0.01, "slow", slow)
        schedule.start()
        async with asyncio.timeout(10):
            await done.wait()
        schedule.stop()
        schedule.stop()

    done = asyncio.Event()
    asyncio.run(run())
    assert most == 1


def test_a_crontab_line_is_checked() -> None:
    async def nothing() -> None: ...

    Schedule().cron("0 3 * * *", "backup", nothing)
    with pytest.raises(ConfigError, match="no crontab line"):
        Schedule().cron("at noon", "backup", nothing)
