"""The small template library of these tests: built when its ingredients change, and kept."""

from __future__ import annotations

import hashlib
from pathlib import Path

import corald.library
import corald.templates
from corald.config.catalog import load_catalog
from corald.library import write_library
from corald.model.templates import Engine, Phase, Slo, Workload
from corald.templates.build import BuildOptions, build_library
from corald.templates.rates import BuildRequest

REPOSITORY = Path(__file__).parents[2]
CACHE = REPOSITORY / ".cache" / "tests"
MODELS = ("qwen3-8b", "gpt-oss-20b", "qwen3-14b")
CONFIGURATIONS = ("A10G-slow", "L4-slow", "L40S-slow")
SLO = Slo(ttft_ms=1600.0, tpot_ms=100.0, percentile=95.0)
WORKLOAD = Workload(
    input_tokens_mean=1000.0,
    input_tokens_p95=3000.0,
    output_tokens_mean=250.0,
    output_tokens_p95=700.0,
)


def template_library() -> Path:
    """Where the library lies."""
    path = CACHE / f"e2e-{_ingredients()}.clt"
    if not path.is_file():
        requests = [BuildRequest(m, Phase.MIXED, Engine.VLLM, SLO, WORKLOAD) for m in MODELS]
        made = build_library(
            load_catalog(), requests, BuildOptions(n_max=2), configurations=CONFIGURATIONS
        )
        CACHE.mkdir(parents=True, exist_ok=True)
        for outdated in CACHE.glob("e2e-*.clt"):
            outdated.unlink()
        scratch = path.with_suffix(".new")
        write_library(scratch, made)
        scratch.rename(path)
    return path


def _ingredients() -> str:
    """A digest of all that the library depends on: code, catalogue and what is asked for."""
    packages = [Path(p.__file__ or "").parent for p in (corald.library, corald.templates)]
    files = [Path(__file__), *(f for p in packages for f in p.glob("*.py"))]
    files += (REPOSITORY / "catalog").glob("*.toml")
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
