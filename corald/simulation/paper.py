"""The experiments of the Coral paper: what is built and shipped for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import as_file, files

from corald.config.catalog import load_paper_catalog
from corald.config.paper import load_paper_setup
from corald.library import Library, read_library
from corald.model.templates import Engine, Phase
from corald.templates.build import BuildOptions, BuildProgress, build_library
from corald.templates.rates import BuildRequest

PHASES = (Phase.PREFILL, Phase.DECODE)
SHIPPED_N_MAX = 4
"""Most nodes in a template of the core library that is shipped."""


def build_paper_library(
    name: str, options: BuildOptions, progress: Callable[[BuildProgress], None] | None = None
) -> Library:
    """Search the templates of a setup (`core`, `extended`): prefill and decode, profile `coral`."""
    setup = load_paper_setup(name)
    requests = [
        BuildRequest(model, phase, Engine.CORAL, served.slo, served.workload)
        for model, served in setup.models.items()
        for phase in PHASES
    ]
    return build_library(
        load_paper_catalog(),
        requests,
        options,
        configurations=setup.configurations,
        progress=progress,
    )


def shipped_core_library() -> Library:
    """Open the core setup's library of at most `SHIPPED_N_MAX` nodes, from the catalogue."""
    with as_file(files("corald_catalog") / "paper" / "core.clt") as path:
        return read_library(path)
