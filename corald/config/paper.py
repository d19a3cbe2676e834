"""The experiment setups of the Coral paper, over `load_paper_catalog`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from corald.config import catalog_files as schema
from corald.config.catalog import SHIPPED, load_paper_catalog
from corald.config.catalog_files import read
from corald.errors import ConfigError
from corald.model.templates import Slo, Workload


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the paper asks of one model: latency targets and the class of its requests."""

    slo: Slo
    workload: Workload
    trace: str


@dataclass(frozen=True, slots=True)
class PaperSetup:
    """One experiment: the models, hardware and regions in it, and the demand on each model."""

    name: str
    models: Mapping[str, ServedModel]
    configurations: tuple[str, ...]
    regions: tuple[str, ...]
    requests_per_second: float


def load_paper_setup(name: str) -> PaperSetup:
    """Load the setup `core` or `extended`.

    Raises:
        ConfigError: There is no such setup.
    """
    content = read(files(SHIPPED) / "paper" / "workload.toml", schema.WORKLOAD)
    if name not in content.setups:
        raise ConfigError(f"no paper setup {name}; choose one of {', '.join(content.setups)}")
    setup = content.setups[name]
    configurations = load_paper_catalog().configurations.values()
    return PaperSetup(
        name=name,
        models={model: _served(content, model) for model in setup.models},
        configurations=tuple(entry.name for entry in configurations if entry.gpu in setup.gpus),
        regions=tuple(setup.regions),
        requests_per_second=setup.requests_per_second,
    )


def _served(content: schema.WorkloadFile, model: str) -> ServedModel:
    row = content.models[model]
    trace = content.traces[row.trace]
    return ServedModel(
        slo=Slo(ttft_ms=row.prefill_slo_ms, tpot_ms=row.decode_slo_ms),
        workload=Workload(**trace.model_dump(exclude={"source"})),
        trace=row.trace,
    )
