"""Talking to systemd: readiness, status text and the watchdog, over its notification socket."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable

from corald.plugin import Clock


class Notifier:
    """Sends notifications; outside systemd it sends nothing."""

    def __init__(self, address: str, watchdog_seconds: float | None) -> None:
        self._address = address
        self.watchdog_seconds = watchdog_seconds
        """Ping at least this often; None when nobody watches."""

    @classmethod
    def from_environment(cls) -> Notifier:
        """Read what systemd says, and hide it from child processes."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        watched = os.environ.pop("WATCHDOG_PID", "")
        mine = watched in ("", str(os.getpid()))
        seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and mine else None
        return cls(address, seconds or None)

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send("STATUS=" + " ".join(text.split()))

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    async def keep_alive(self, clock: Clock, turn: Callable[[], Awaitable[None]]) -> None:
        """Ping from the event loop at half the interval, each time after a `turn` of the work.

        So a blocked loop, and work that no longer moves, both lead to a restart.
        """
        if self.watchdog_seconds is None:
            return
        while True:
            await turn()
            self.alive()
            await clock.sleep(self.watchdog_seconds / 2)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ means the abstract namespace, which the kernel writes as a null byte.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        # A listener that is busy or gone misses a message; that must not hold up or end the work.
        with socket.socket(socket.AF_UNIX, kind) as link, contextlib.suppress(OSError):
            link.connect(address)
            link.send(message.encode())
