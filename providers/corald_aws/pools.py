"""Threads for blocking calls: few, apart by kind of call, and never in the way of an exit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonPool(Executor):
    """A bounded pool whose threads do not hold up the exit of the interpreter.

    The standard pool's do, for as long as a call hangs. To die in a call is safe: the same token
    asks again. A job cannot be cancelled once it runs.
    """

    def __init__(self, workers: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers = workers
        self._name = name
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:  # noqa: ANN401 - as the base class
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"pool {self._name} is closed")
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            if len(self._threads) < self._workers:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:  # noqa: FBT001, FBT002 - as the base class
        """Take no more jobs; a job that runs goes on, and by default nobody waits for it."""
        with self._lock:
            self._closed = True
            while cancel_futures and not self._jobs.empty():
                job = self._jobs.get()
                if job is not None:
                    job[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call, job
