"""What identifies a library: digests of everything that its throughputs depend on, prices not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

from corald.library.tables import Library, LibraryOrigin, TableKey
from corald.model.hardware import Catalog, Configuration, GpuType
from corald.model.llm import LlmModel
from corald.model.templates import Slo, Workload

_UNTIMED = ("source", "huggingface_id", "vendor")
"""Fields that change no throughput."""


def digest_of(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """A short digest of a JSON value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(text, digest_size=16).hexdigest()


def model_digest(model: LlmModel) -> str:
    """Changes when a model's architecture or weight format does."""
    return digest_of(_facts(model))


def configuration_digest(configuration: Configuration, gpu: GpuType) -> str:
    """Changes when the hardware behind a configuration does."""
    return digest_of([_facts(configuration), _facts(gpu)])


def fingerprint_of(origin: LibraryOrigin, tables: Iterable[tuple[TableKey, Slo, Workload]]) -> str:
    """The identity of the library that is built from these inputs."""
    parts = sorted([str(key), asdict(slo), asdict(workload)] for key, slo, workload in tables)
    return digest_of([asdict(origin), parts])


def stale_parts(library: Library, catalog: Catalog) -> tuple[str, ...]:
    """What the catalogue says differently now, in sentences; empty when the library is current."""
    origin = library.origin
    sentences = []
    for name, digest in sorted(origin.model_digests.items()):
        if (model := catalog.models.get(name)) is None:
            sentences.append(f"model {name} is no longer in the catalogue")
        elif model_digest(model) != digest:
            sentences.append(f"model {name} has changed in the catalogue")
    for name, digest in sorted(origin.configuration_digests.items()):
        if (configuration := catalog.configurations.get(name)) is None:
            sentences.append(f"configuration {name} is no longer in the catalogue")
        elif configuration_digest(configuration, catalog.gpus[configuration.gpu]) != digest:
            sentences.append(f"configuration {name} has changed in the catalogue")
    return tuple(sentences)


def _facts(value: LlmModel | Configuration | GpuType) -> dict[str, Any]:
    return {name: fact for name, fact in asdict(value).items() if name not in _UNTIMED}
