"""JSON lines in a file or a directory as the source of external events, for a site without Kafka.

One CloudEvent a line. The files of a directory are read in order of their names, each to its end;
they may grow, and new ones may come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from corald.adapters.codec import MAX_BYTES
from corald.adapters.intake import SLICE_RECORDS, Intake
from corald.adapters.native import NO_ROUTING, NativeRouting
from corald.model.events import Batch, ConsumerHealth, Offset
from corald.runtime.ports import Deliver

SUFFIX: Final = ".jsonl"
POLL_SECONDS: Final = 1.0


class JsonLinesSource:
    """Implements `corald.runtime.ports.EventSource`; a position is a byte offset in `file:NAME`.

    `stored` answers with the offsets to begin with. A file that became shorter than its position
    was replaced, and is read from its beginning.
    """

    name = "jsonlines"

    def __init__(
        self,
        path: Path,
        *,
        stored: Callable[[], Iterable[Offset]] = tuple,
        routing: NativeRouting = NO_ROUTING,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._stored = stored
        self._routing = routing
        self._now = now
        self._next: dict[str, int] = {}
        self._trouble: str | None = None

    async def run(self, deliver: Deliver) -> None:
        """Read and deliver until cancelled; a path that cannot be read makes it unhealthy."""
        self._next = {o.topic: o.next_offset for o in self._stored()} | self._next
        while True:
            try:
                for file in self._files():
                    while batch := self._read(file):
                        await deliver(batch)
                        self._next |= {o.topic: o.next_offset for o in batch.offsets}
                trouble = ""
            except OSError as error:
                trouble = f"{self._path}: {error.strerror}"
            if trouble != self._trouble:
                health = ConsumerHealth(
                    healthy=not trouble, detail=trouble, at=self._now(), source=self.name
                )
                await deliver(Batch((health,)))
                self._trouble = trouble
            await asyncio.sleep(POLL_SECONDS)

    def _files(self) -> list[Path]:
        if self._path.is_dir():
            return sorted(self._path.glob(f"*{SUFFIX}"))
        return [self._path]

    def _read(self, file: Path) -> Batch | None:
        """The next lines of a file, at most a slice of them; None when there is none."""
        topic = f"file:{file.name}"
        begin = self._next.get(topic, 0)
        with file.open("rb") as lines:
            if begin > lines.seek(0, 2):
                begin = 0
            end = lines.seek(begin)
            intake = Intake(self._now(), self._routing)
            for line in islice(_complete_lines(lines), SLICE_RECORDS):
                if value := line.strip():
                    intake.add(value, topic=topic, offset=end)
                end = lines.tell()
        return intake.batch([Offset(topic, 0, end)]) if end > begin else None


def _complete_lines(lines: BinaryIO) -> Iterator[bytes]:
    """Lines that have ended; of one that is too long, so much as shows that it is."""
    while (line := lines.readline(MAX_BYTES + 1)).endswith(b"\n") or len(line) > MAX_BYTES:
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = lines.readline(MAX_BYTES + 1)
        if not rest:
            return
        yield line
