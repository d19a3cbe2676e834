"""The library as a file: a JSON header and compressed columns, every byte under a checksum.

Layout: magic (8 bytes), format version and header length (uint32, little endian), header, its
digest (16 bytes), then the columns one after another in the order of the header.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corald.errors import LibraryError
from corald.library.tables import Library, LibraryOrigin, Placements, TableKey, TemplateTable
from corald.model.templates import Engine, Phase, Slo, Workload

FORMAT_VERSION = 1
_MAGIC = b"CORALDTL"
_PREFIX = struct.Struct("<8sII")
_DIGEST_BYTES = 16
_COLUMNS = {
    "throughput": "<f8",
    "counts": "|u1",
    "stages": "|u1",
    "layers": "<u2",
    "members": "|u1",
    "ordinals": "|u1",
    "tps": "|u1",
}


def write_library(path: Path, library: Library) -> None:
    """Write the file, replacing an older one only when complete."""
    blobs: list[bytes] = []
    tables = [_describe(table, blobs) for _, table in sorted(library.tables.items())]
    header = {
        "fingerprint": library.fingerprint,
        "configurations": library.configurations,
        "origin": asdict(library.origin),
        "tables": tables,
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, len(text))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(b"".join((prefix, text, _digest(prefix + text), *blobs)))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_library(path: Path) -> Library:
    """Read and check the whole file; every fault is a LibraryError that says what to do."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LibraryError(
            f"template library {path} cannot be read ({error.strerror}): "
            f"set `library` to an existing file, or make one with `corald templates build`."
        ) from error
    try:
        return _parse(data)
    except (LibraryError, KeyError, TypeError, ValueError) as error:
        raise LibraryError(
            f"template library {path}: {error}. Build it again with `corald templates build`, "
            f"or restore the file."
        ) from error


def _describe(table: TemplateTable, blobs: list[bytes]) -> dict[str, Any]:
    """Append the table's columns to `blobs` and say in JSON what they are."""
    columns = {}
    for name, dtype in _COLUMNS.items():
        holder = table if name in ("throughput", "counts") else table.placements
        values: NDArray[Any] = getattr(holder, name)
        blob = zlib.compress(np.ascontiguousarray(values, dtype=dtype).tobytes(), 6)
        blobs.append(blob)
        columns[name] = {
            "shape": values.shape,
            "bytes": len(blob),
            "digest": _digest(blob).hex(),
        }
    return {
        "key": asdict(table.key),
        "slo": asdict(table.slo),
        "workload": asdict(table.workload),
        "uncalibrated": sorted(table.uncalibrated),
        "columns": columns,
    }


def _parse(data: bytes) -> Library:
    if len(data) < _PREFIX.size:
        raise LibraryError("the file is cut short")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise LibraryError("this is not a template library of corald")
    if version != FORMAT_VERSION:
        raise LibraryError(
            f"format version {version} is not version {FORMAT_VERSION}, which this corald reads"
        )
    end = _PREFIX.size + length
    if data[end : end + _DIGEST_BYTES] != _digest(data[:end]):
        raise LibraryError("the header is damaged (checksum)")
    header = json.loads(data[_PREFIX.size : end])
    configurations = tuple(header["configurations"])
    blobs = _Blobs(data, end + _DIGEST_BYTES)
    tables = [_table(described, configurations, blobs) for described in header["tables"]]
    blobs.expect_end()
    return Library(
        fingerprint=header["fingerprint"],
        configurations=configurations,
        tables={table.key: table for table in tables},
        origin=_origin(header["origin"]),
    )


class _Blobs:
    """Takes one column after another from the file."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = memoryview(data)
        self._at = start

    def take(self, name: str, described: Mapping[str, Any]) -> NDArray[Any]:
        blob = self._data[self._at : self._at + described["bytes"]]
        self._at += described["bytes"]
        if _digest(blob).hex() != described["digest"]:
            raise LibraryError(f"column {name} is damaged or cut short (checksum)")
        raw = zlib.decompress(blob)
        shape = tuple(described["shape"])
        values: NDArray[Any] = np.frombuffer(raw, dtype=_COLUMNS[name])
        if values.size != math.prod(shape):
            raise LibraryError(f"column {name} has {values.size} values instead of {shape}")
        return values.reshape(shape)

    def expect_end(self) -> None:
        if self._at != len(self._data):
            raise LibraryError("there are bytes after the last column")


def _table(
    described: Mapping[str, Any], configurations: tuple[str, ...], blobs: _Blobs
) -> TemplateTable:
    columns = {name: blobs.take(name, described["columns"][name]) for name in _COLUMNS}
    key = described["key"]
    return TemplateTable(
        key=TableKey(key["model"], Phase(key["phase"]), Engine(key["engine"])),
        slo=Slo(**described["slo"]),
        workload=Workload(**described["workload"]),
        configurations=configurations,
        throughput=columns.pop("throughput"),
        counts=columns.pop("counts"),
        placements=Placements(**columns),
        uncalibrated=frozenset(described["uncalibrated"]),
    )


def _origin(described: Mapping[str, Any]) -> LibraryOrigin:
    groups = tuple(tuple(group) for group in described["groups"])
    return LibraryOrigin(**{**described, "groups": groups})


def _digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
