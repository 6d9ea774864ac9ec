"""The wheels: each holds all of its package and nothing else, no two hold the same file, and a worker's stand alone."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

import lark_controller
from tests.packaging.conftest import ROOT

# The directory of each distribution's pyproject.toml, by its package.
PROJECTS: Final = {
    "lark_common": ROOT / "lark_common",
    "lark_controller": ROOT,
    "lark_mpi": ROOT / "lark_mpi",
    "lark_worker": ROOT / "lark_worker",
}
# Beside a package's files, and no part of it.
WORKER_UNITS = {f"lark-{name}.service" for name in ("worker", "base-flows", "leaves", "gateway")}
NOT_PACKAGED: Final = {"pyproject.toml", "LICENSE"}
# What only a controller needs, by the names that are imported.
CONTROLLERS: Final = {"flask", "os_ken", "sqlalchemy", "eventlet", "paramiko", "lxml", "lark_controller"}


def project(package: str) -> dict[str, Any]:
    return tomllib.loads((PROJECTS[package] / "pyproject.toml").read_text())


def held(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name and ".data/" not in name}


def beside(wheel: Path) -> dict[str, tuple[bytes, bool]]:
    """The files that are installed beside a wheel's program: content, and the right to be started."""
    archive = zipfile.ZipFile(wheel)
    return {
        entry.filename.rpartition("/")[2]: (archive.read(entry), bool(entry.external_attr >> 16 & 0o100))
        for entry in archive.infolist()
        if ".data/data/share/lark-" in entry.filename
    }


@pytest.mark.parametrize("package", PROJECTS)
def test_every_package_is_listed(package: str) -> None:
    listed = project(package)["tool"]["setuptools"]["packages"]
    there = {
        ".".join(folder.relative_to(ROOT).parts)
        for folder in (ROOT / package).glob("**/")
        if any(folder.glob("*.py")) and "build" not in folder.relative_to(ROOT).parts
    }
    migrations = {"lark_controller.migrations", "lark_controller.migrations.versions"}
    assert set(listed) == there | (migrations if package == "lark_controller" else set())


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_holds_what_the_checkout_holds_of_its_package_and_nothing_else(
    package: str, wheels: dict[str, Path]
) -> None:
    tracked = subprocess.run(["git", "ls-files", package], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in tracked.stdout.splitlines() if name.removeprefix(f"{package}/") not in NOT_PACKAGED}
    if package == "lark_controller":
        files |= {f"lark_controller/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "migrations").rglob("*.py")}
        files.add("lark_controller/migrations/script.py.mako")
    assert held(wheels[package]) == files
    assert f"{package}/py.typed" in files


@pytest.mark.parametrize(("package", "role"), [("lark_controller", "controller"), ("lark_worker", "worker")])
def test_a_wheel_brings_units_hooks_and_configuration_as_they_stand_here(
    package: str, role: str, wheels: dict[str, Path]
) -> None:
    found = beside(wheels[package])
    here = {path.name: path for folder in ("etc", "scripts") for path in (ROOT / folder).rglob("*") if path.is_file()}
    for name, (content, starts) in found.items():
        source = here["lark" if name == "sudoers" else name]
        assert content == source.read_bytes(), name
        assert starts == bool(source.stat().st_mode & 0o100), name
    # Everything that the packages lay out, but for what these have of their own.
    script = (ROOT / "packaging/stage.sh").read_text()
    staged = set(re.findall(r"(?:etc|scripts)/[\w./$-]+", script))
    lists = " ".join(re.findall(r"(?m)^        for \w+ in (.*); do$", script)).split()
    named = {Path(each).name for each in staged if "$" not in each} - {"lark", "manpages.sh"}
    named |= {Path(each).name for each in lists if "." in each}
    assert named <= set(beside(wheels["lark_controller"])) | set(beside(wheels["lark_worker"])), named
    units = {name for name in found if name.endswith(".service")}
    wanted = {"controller": {"lark-controller.service"}}
    assert units == wanted.get(role, WORKER_UNITS)
    assert beside(wheels["lark_common"]) == beside(wheels["lark_mpi"]) == {}


def test_no_two_wheels_hold_the_same_file(wheels: dict[str, Path]) -> None:
    owners = Counter(name for wheel in wheels.values() for name in held(wheel))
    assert [name for name, count in owners.items() if count > 1] == []


def test_all_have_one_version_and_a_license(wheels: dict[str, Path]) -> None:
    for package, wheel in wheels.items():
        assert project(package)["project"]["version"] == lark_controller.__version__
        assert any(name.endswith("/licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist()), package
    own = f"lark-common=={lark_controller.__version__}"
    assert own in (ROOT / "requirements-own.in").read_text().splitlines()
    assert own in project("lark_worker")["project"]["dependencies"]


def test_the_workers_wheel_asks_for_what_is_locked_for_it() -> None:
    lines = (ROOT / "requirements-worker.in").read_text().splitlines()
    third = {line.partition("#")[0].strip() for line in lines} - {""}
    asked = {*project("lark_worker")["project"]["dependencies"], *project("lark_common")["project"]["dependencies"]}
    assert {each for each in asked if not each.startswith("lark-")} == third


IMPORT_ALL = """
import importlib, importlib.metadata, json, pkgutil, sys
for package in ("lark_common", "lark_worker"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(found.name)
installed = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
imported = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(json.dumps([installed, imported]))
"""


@pytest.fixture(scope="module")
def workers_python(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """A virtual environment with what is locked for a worker, its two wheels, and nothing else.

    The locked distributions are those of this environment, whose hashes the set-up has compared.
    """
    folder = tmp_path_factory.mktemp("worker")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    lock = (ROOT / "requirements-worker.txt").read_text()
    for name, version in re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([^\s;\\]+)", lock):
        there = importlib.metadata.distribution(name)
        assert there.version == version, f"{name} is not as it is locked: run make setup"
        assert there.files is not None
        for top in {path.parts[0] for path in there.files} - {".."}:
            (packages / top).symlink_to(Path(str(there.locate_file(top))).resolve())
    options = ["--disable-pip-version-check", "--python", str(python)]
    install = ["install", "--quiet", "--no-index", "--no-deps", str(wheels["lark_common"]), str(wheels["lark_worker"])]
    subprocess.run([sys.executable, "-m", "pip", *options, *install], check=True)
    return python


def test_the_worker_service_needs_its_own_locked_requirements_alone(workers_python: Path) -> None:
    done = subprocess.run([str(workers_python), "-I", "-c", IMPORT_ALL], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed, imported = json.loads(done.stdout)
    lock = dict(re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([^\s;\\]+)", (ROOT / "requirements-worker.txt").read_text()))
    own = dict.fromkeys(("lark-common", "lark-worker"), lark_controller.__version__)
    # A name's punctuation differs from one tool to the next.
    assert {name.replace("_", "-"): number for name, number in installed.items()} == {**lock, **own}
    assert not {name.partition(".")[0] for name in imported} & CONTROLLERS
    modules = {path.relative_to(ROOT) for package in ("lark_common", "lark_worker") for path in tracked(package)}
    assert {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in modules} <= imported.keys()
    assert workers_python.parents[1] in Path(imported["lark_worker"]).parents


def tracked(package: str) -> list[Path]:
    return [path for path in (ROOT / package).rglob("*.py") if "build" not in path.parts]


def test_the_workers_command_says_what_it_can_do(workers_python: Path) -> None:
    command = [str(workers_python.with_name("lark-worker")), "--help"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run the service" in done.stdout
    assert not workers_python.with_name("lark").exists()
