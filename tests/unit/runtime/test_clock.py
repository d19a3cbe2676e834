from __future__ import annotations

import asyncio
import time

import pytest

from corald.runtime.clock import SystemClock


def test_it_starts_at_the_wall_time():
    assert SystemClock().now() == pytest.approx(time.time(), abs=1.0)


def test_a_jump_of_the_wall_clock_does_not_move_it(monkeypatch):
    clock = SystemClock()
    before = clock.now()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 86400.0)
    assert clock.now() == pytest.approx(before, abs=1.0)


def test_it_follows_the_monotonic_clock(monkeypatch):
    clock = SystemClock()
    now, monotonic = clock.now(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: monotonic + 100.0)
    assert clock.now() == pytest.approx(now + 100.0, abs=1.0)
    assert clock.monotonic() == monotonic + 100.0


def test_sleeping_for_a_time_in_the_past_returns_at_once():
    asyncio.run(asyncio.wait_for(SystemClock().sleep(-5.0), timeout=1.0))
