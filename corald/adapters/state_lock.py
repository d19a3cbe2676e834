"""The lock of the state directory: one daemon at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from corald.errors import StateLockedError, StoreError


class StateLock:
    """An exclusive lock on a directory, held until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        path = directory / "state.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            if not isinstance(error, BlockingIOError):
                raise StoreError(f"cannot lock {path}: {error.strerror}") from error
            raise StateLockedError(
                f"another corald (process {holder}) holds {directory}; stop it first"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another daemon have the directory."""
        os.close(self._fd)
