"""The template library: its tables in memory, its file, its fingerprint. Numpy only."""

from __future__ import annotations

from corald.library.artifact import read_library, write_library
from corald.library.fingerprint import (
    configuration_digest,
    digest_of,
    fingerprint_of,
    model_digest,
    stale_parts,
)
from corald.library.tables import Library, LibraryOrigin, Placements, TableKey, TemplateTable

__all__ = [
    "Library",
    "LibraryOrigin",
    "Placements",
    "TableKey",
    "TemplateTable",
    "configuration_digest",
    "digest_of",
    "fingerprint_of",
    "model_digest",
    "read_library",
    "stale_parts",
    "write_library",
]
