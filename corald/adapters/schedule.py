"""Timed events: APScheduler calls what it is given; it decides nothing and remembers nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from corald.errors import ConfigError

Callback = Callable[[], Awaitable[None]]


class Schedule:
    """Calls coroutines at times in UTC; a call that is late, or still running, is not doubled."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(
            timezone="UTC",
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def every(self, seconds: float, name: str, callback: Callback) -> None:
        """Call every so many seconds, the first time after one interval."""
        self._add(IntervalTrigger(seconds=seconds, timezone="UTC"), name, callback)

    def cron(self, expression: str, name: str, callback: Callback) -> None:
        """Call at the times of a crontab line.

        Raises:
            ConfigError: it is no crontab line.
        """
        try:
            trigger = CronTrigger.from_crontab(expression, timezone="UTC")
        except ValueError as error:
            raise ConfigError(f'"{expression}" is no crontab line: {error}') from error
        self._add(trigger, name, callback)

    def start(self) -> None:
        """Begin; needs a running event loop."""
        self._scheduler.start()

    def stop(self) -> None:
        """End; calls that are under way go on."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _add(self, trigger: object, name: str, callback: Callback) -> None:
        self._scheduler.add_job(callback, trigger, id=name, name=name)
