"""What every benchmark shares: the machine it ran on, its table and its last line."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
"""Libraries and other inputs that are costly to make; safe to delete."""


def machine() -> dict[str, str | int | float]:
    """The machine, for whoever compares figures."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def show(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people."""
    text = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(headers))]
    for index, row in enumerate(text):
        print("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)))
        if index == 0:
            print("  ".join("-" * width for width in widths))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def finish(bench: str, seed: int, figures: Mapping[str, float | None]) -> None:
    """Print the last line: one JSON object, as machines read it."""
    print(
        json.dumps({"bench": bench, "machine": machine(), "seed": seed, "figures": dict(figures)})
    )
    sys.stdout.flush()
