"""The solver process: reads problems from standard input, answers on standard output.

    python -m corald.solver.worker --library FILE [--memory-limit-mib N]

It keeps the library, fleets and prices between solves. It may be killed at any moment: it owns
nothing but its memory. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import resource
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

from corald.errors import CoraldError, SolverError
from corald.library import read_library
from corald.solver.memory import SolverMemory
from corald.solver.solve import solve
from corald.solver.tables import PreparedLibrary
from corald.solver.wire import Answer, Request, decode_request, encode_answer, read_frame


class Worker:
    """Solves one request after another; a reader thread sees cancellations meanwhile."""

    def __init__(self, library: PreparedLibrary, requests: BinaryIO, answers: BinaryIO) -> None:
        self._library = library
        self._requests, self._answers = requests, answers
        self._queue: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._memory = SolverMemory()
        self._cancelled = -1

    def run(self) -> None:
        """Serve until the parent closes the pipe (then the reader ends the process)."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while True:
            answer = self._answer(self._queue.get())
            self._answers.write(encode_answer(answer))
            self._answers.flush()

    def _read(self) -> None:
        code = 1
        try:
            while (body := read_frame(self._requests)) is not None:
                request = decode_request(body)
                if request.problem is None:
                    self._cancelled = max(self._cancelled, request.number)
                else:
                    self._queue.put(request)
            code = 0
        except SolverError as error:
            print(f"corald solver: {error}", file=sys.stderr, flush=True)  # noqa: T201 - no logging here
        # The parent is gone or talks nonsense: nobody waits for a long solve to finish.
        os._exit(code)

    def _answer(self, request: Request) -> Answer:
        def clock() -> float:
            return math.inf if self._cancelled >= request.number else time.monotonic()

        if request.problem is None or self._cancelled >= request.number:
            return Answer(request.number, error="cancelled")
        try:
            allocation, report = solve(
                request.problem,
                self._library,
                deadline=request.deadline_seconds,
                clock=clock,
                memory=self._memory,
            )
        except (CoraldError, MemoryError, ArithmeticError, LookupError, ValueError) as error:
            self._memory = SolverMemory()
            return Answer(request.number, error=f"{type(error).__name__}: {error}")
        return Answer(request.number, allocation, report)


def main() -> None:
    """Run a worker on the process's own pipes."""
    parser = argparse.ArgumentParser(prog="corald.solver.worker")
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--memory-limit-mib", type=int, default=0, help="0: none")
    options = parser.parse_args()
    if options.memory_limit_mib:
        limit = options.memory_limit_mib << 20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a native library prints must not end up between frames
    library = PreparedLibrary(read_library(options.library))
    Worker(library, sys.stdin.buffer, answers).run()


if __name__ == "__main__":
    main()
