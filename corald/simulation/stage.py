"""The demo's cast: six models with their days of demand, two clouds, the rules, the templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corald import __version__
from corald.errors import LibraryError
from corald.library import Library, read_library, stale_parts, write_library
from corald.model.hardware import Catalog
from corald.model.policy import ModelPolicy, PolicySet, Rules
from corald.model.templates import Engine, Phase, Slo, Workload
from corald.runtime.observer import Intervals
from corald.simulation.demand import DemandShape
from corald.templates.build import BuildOptions, BuildProgress, build_library
from corald.templates.rates import BuildRequest
from corald.templates.roofline import PERFORMANCE_MODEL

CLUSTER = "demo"
MOST_NODES = 4


@dataclass(frozen=True, slots=True)
class Role:
    """One model of the demo; the latency targets are those of the paper's evaluation."""

    model: str
    slo: Slo
    input_tokens: float
    output_tokens: float
    mean_request_rate: float
    peak_hour: float
    swing: float

    @property
    def workload(self) -> Workload:
        """Long requests are taken to be three times the mean."""
        inputs, outputs = self.input_tokens, self.output_tokens
        return Workload(inputs, 3 * inputs, outputs, 3 * outputs)

    @property
    def policy(self) -> ModelPolicy:
        return ModelPolicy(
            model=self.model,
            slo=self.slo,
            workload=self.workload,
            min_replicas=1,
            drain_deadline_seconds=300.0,
        )

    @property
    def demand(self) -> DemandShape:
        return DemandShape(
            model=self.model,
            mean_request_rate=self.mean_request_rate,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            peak_hour=self.peak_hour,
            swing=self.swing,
        )

    @property
    def templates(self) -> BuildRequest:
        return BuildRequest(self.model, Phase.MIXED, Engine.VLLM, self.slo, self.workload)


ROLES = (
    Role("phi-4-14b", Slo(1200, 60), 1155, 211, 30.0, peak_hour=14, swing=0.6),
    Role("gpt-oss-20b", Slo(900, 30), 2048, 28, 20.0, peak_hour=10, swing=0.7),
    Role("qwen3-32b", Slo(1600, 100), 600, 240, 30.0, peak_hour=20, swing=0.5),
    Role("llama-3-70b", Slo(1500, 80), 600, 240, 15.0, peak_hour=16, swing=0.6),
    Role("gpt-oss-120b", Slo(1000, 40), 1155, 211, 25.0, peak_hour=3, swing=0.5),
    Role("qwen3-235b", Slo(1800, 120), 2048, 128, 8.0, peak_hour=12, swing=0.4),
)

CAPACITY = {"default": 48.0, "turnover_per_hour": 0.1}
CLOUDS: dict[str, dict[str, Any]] = {
    "aws": {"cloud": "aws", "regions": ["us-east-2"], "seed": 1, "capacity": CAPACITY},
    "gcp": {"cloud": "gcp", "regions": ["us-central1"], "seed": 2, "capacity": CAPACITY},
}
"""Two configured instances of the simulated plugin, by provider name."""

INTERVALS = Intervals(listing=60.0, offerings=300.0, readiness=30.0)

RULES = Rules(
    debounce_seconds=180.0,
    resolve_every_seconds=1800.0,
    solver_gap=0.02,
    stale_demand_seconds=600.0,
)
"""Coarser than a daemon's: a virtual minute passes in a tenth of a second."""


def policies() -> PolicySet:
    """Build the configuration of the demo's daemon."""
    models = {role.model: role.policy for role in ROLES}
    return PolicySet(cluster=CLUSTER, models=models, rules=RULES)


def load_templates(
    directory: Path, catalog: Catalog, progress: Callable[[BuildProgress], None]
) -> Library:
    """Read the templates built before in `directory`, or build and keep them (some seconds)."""
    path = directory / f"templates-{__version__}.clt"
    if (kept := _kept_templates(path, catalog)) is not None:
        return kept
    groups = [_sold(catalog, cloud["cloud"], cloud["regions"]) for cloud in CLOUDS.values()]
    library = build_library(
        catalog,
        [role.templates for role in ROLES],
        BuildOptions(n_max=MOST_NODES, groups=groups),
        configurations=frozenset().union(*groups),
        progress=progress,
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_library(path, library)
    return library


def _kept_templates(path: Path, catalog: Catalog) -> Library | None:
    """Return the kept library if it still tells the truth about catalogue, models and targets."""
    try:
        library = read_library(path)
    except LibraryError:
        return None
    wanted = {role.templates for role in ROLES}
    built = {
        BuildRequest(key.model, key.phase, key.engine, table.slo, table.workload)
        for key, table in library.tables.items()
    }
    current = built == wanted and library.origin.performance_model == PERFORMANCE_MODEL
    return library if current and not stale_parts(library, catalog) else None


def _sold(catalog: Catalog, cloud: str, regions: list[str]) -> frozenset[str]:
    """Name the configurations that a cloud sells in some regions."""
    return frozenset(
        kind.configuration
        for kind in catalog.instance_types.values()
        if kind.cloud == cloud and any(price.region in regions for price in kind.prices)
    )
