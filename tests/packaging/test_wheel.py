"""What users install is what is tested: the wheel, in an environment with nothing else of ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NOT_SHIPPED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "var")
IN_THE_WHEEL = {  # folder in the repository -> its place in the wheel
    "corald": "corald",
    "catalog": "corald_catalog",
    "policies": "corald_policies",
    "providers": ".",
}


def _run(*command: object, folder: Path) -> str:
    # Neither the checkout nor the caller's settings may lend the installed wheel a module.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    tree = tmp_path_factory.mktemp("tree") / "corald"
    shutil.copytree(REPOSITORY, tree, ignore=NOT_SHIPPED)
    _run(sys.executable, "-m", "build", "--no-isolation", tree, folder=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and the locked versions of what it depends on."""
    folder = tmp_path_factory.mktemp("clean")
    locked = re.findall(
        r"^[\w.-]+==.*?(?= \\$)", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE
    )
    (folder / "locked.txt").write_text("\n".join(locked))
    _run(sys.executable, "-m", "venv", "venv", folder=folder)
    wheel = next(dist.glob("*.whl"))
    options = ("--quiet", "--no-compile", "--constraint", "locked.txt")
    _run("venv/bin/python", "-m", "pip", "install", *options, f"{wheel}[aws]", folder=folder)
    return folder / "venv"


def _version(dist: Path) -> str:
    return next(dist.glob("*.whl")).name.split("-")[1]


def _ask(installed: Path, code: str) -> str:
    return _run(installed / "bin" / "python", "-I", "-c", code, folder=installed)


def test_every_file_of_the_packages_reaches_the_wheel_through_the_sdist(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tree = dist.parent
    expected = {
        str(Path(place, path.relative_to(tree / folder)))
        for folder, place in IN_THE_WHEEL.items()
        for path in (tree / folder).rglob("*")
        if path.is_file()
    }
    beside = [tree / "config.example.toml", *(tree / "systemd").iterdir()]
    prefix = f"corald-{_version(dist)}.data/data/share/corald"
    expected |= {f"{prefix}/{path.relative_to(tree)}" for path in beside}
    assert shipped == expected


def test_the_sdist_brings_tests_documentation_and_lock(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "requirements.lock"}
    wanted |= {"tests/kafka/pom.xml", "docs/README.md", "scripts/system-packages.sh"}
    assert wanted <= names


def test_the_installed_command_tells_its_version(installed: Path, dist: Path) -> None:
    assert _version(dist) in _run(installed / "bin" / "corald", "version", folder=installed)


def test_the_entry_points_load_providers_that_know_the_contract(installed: Path) -> None:
    code = """
import json
from importlib.metadata import entry_points
found = entry_points(group="corald.providers")
print(json.dumps({p.name: callable(p.load().from_config) for p in found}))
"""
    assert json.loads(_ask(installed, code)) == {"aws": True, "simulated": True}


@pytest.mark.parametrize("package", ["corald_catalog", "corald_policies"])
def test_data_is_read_from_the_installed_package(installed: Path, package: str) -> None:
    code = f"""
import tomllib
from importlib.resources import files
tables = [p for p in files({package!r}).iterdir() if p.name.endswith(".toml")]
print(sum(len(tomllib.loads(table.read_text())) for table in tables))
"""
    assert int(_ask(installed, code)) > 0


@pytest.mark.parametrize("package", ["corald", "corald_aws", "corald_simulated"])
def test_type_checkers_see_a_typed_package(installed: Path, package: str) -> None:
    code = (
        f"from importlib.resources import files; print((files({package!r})/'py.typed').is_file())"
    )
    assert _ask(installed, code).strip() == "True"


@pytest.mark.parametrize("name", ["config.example.toml", "systemd/corald.service"])
def test_the_example_configuration_and_the_unit_are_installed(installed: Path, name: str) -> None:
    file = installed / "share" / "corald" / name
    assert file.read_text() == (REPOSITORY / name).read_text()
    assert file.read_text().strip()


def test_the_installed_example_lacks_nothing_but_a_template_library(
    installed: Path, tmp_path: Path
) -> None:
    example = (installed / "share" / "corald" / "config.example.toml").read_text()
    config = tmp_path / "corald.toml"
    config.write_text(example.replace("/var/lib/corald", str(tmp_path)))
    config.chmod(0o640)
    done = subprocess.run(
        [installed / "bin" / "corald", "check", "-c", config],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 78
    assert done.stderr == (
        f"corald: no template library at {tmp_path}/templates.clt; "
        f"build one: corald templates build -c {config}\n"
    )
