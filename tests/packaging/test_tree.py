"""pyproject.toml names every package: none is left out of the wheel or of the import contracts."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]

SEEN_BY_PROVIDERS = {"corald.plugin", "corald.model", "corald.errors", "corald.market"}


def _project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_the_list_of_packages_equals_the_tree() -> None:
    setuptools = _project()["tool"]["setuptools"]
    roots = {"corald": "corald", "corald_catalog": "catalog", "corald_policies": "policies"}
    roots |= {path.name: f"providers/{path.name}" for path in REPOSITORY.glob("providers/corald_*")}
    found = {}
    for name, folder in roots.items():
        for marker in (REPOSITORY / folder).rglob("__init__.py"):
            parts = marker.parent.relative_to(REPOSITORY / folder).parts
            found[".".join((name, *parts))] = str(marker.parent.relative_to(REPOSITORY))
    assert sorted(setuptools["packages"]) == sorted(found)
    for package, folder in setuptools["package-dir"].items():
        assert found[package] == folder


def test_no_module_lies_outside_a_package() -> None:
    for root in ("corald", "providers", "catalog", "policies"):
        for module in (REPOSITORY / root).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module


def test_every_layer_is_open_or_closed_to_providers() -> None:
    contracts = {c["name"]: c for c in _project()["tool"]["importlinter"]["contracts"]}
    layers = contracts["corald is built in layers"]["layers"]
    named = {f"corald.{name}" for layer in layers for name in re.split(r"\s*\|\s*", layer)}
    closed = set(contracts["A provider sees plugin, model and errors"]["protected_modules"])
    assert closed == named - SEEN_BY_PROVIDERS


def test_every_dependency_of_the_project_is_locked_with_hashes() -> None:
    project = _project()["project"]
    extras = project["optional-dependencies"].values()
    locked = (REPOSITORY / "requirements.lock").read_text()
    for requirement in chain(project["dependencies"], *extras):
        name = re.match(r"[\w-]+", requirement)[0]
        assert re.search(rf"^{name}==.*\\\n +--hash=sha256:", locked, re.MULTILINE), name
