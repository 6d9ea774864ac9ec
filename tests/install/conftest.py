"""The packages, built twice, and the site that they are installed at."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.settings import from_environment
from tests.fixtures import own_network
from tests.install.released import Release, last_tag, packages_of
from tests.install.site import DEBIAN12, DISTRIBUTIONS, Site, running

ROOT = Path(__file__).parents[2]
# Fixtures that build, download or start whole systems.
NEEDS = {"site", "composed", "rpms", "tutorial"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this room that is not for each run."""
    for item in items:
        if item.path.parent == Path(__file__).parent and NEEDS & set(getattr(item, "fixturenames", ())):
            item.add_marker("install")


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Directories of the Debian packages' first build and of the second, by distribution.

    ``INSTALL_BUILDS`` keeps them for the next run.
    """
    return built(tmp_path_factory, *sorted({DEBIAN12, *DISTRIBUTIONS.values()}))


@pytest.fixture(scope="session")
def released(builds: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The last release, for Debian 13; before the first one, this checkout and its first build."""
    tag = last_tag(ROOT)
    if tag is None:
        return Release(ROOT, builds[DISTRIBUTIONS["newer"]][0])
    return packages_of(ROOT, tag, DISTRIBUTIONS["newer"], tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="session")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The same of RPMs."""
    return built(tmp_path_factory, "el9", "el10")


def built(tmp_path_factory: pytest.TempPathFactory, *distributions: str) -> dict[str, tuple[Path, Path]]:
    """Build packages as a site does, twice."""
    kept = os.environ.get("INSTALL_BUILDS")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("builds")
    # The first comes last, and stays in dist/.
    for revision in ("2", "1"):
        if all((folder / name / revision).is_dir() for name in distributions):
            continue
        chosen = f"DISTRIBUTIONS={' '.join(distributions)}"
        done = own_network.run_outside(["env", "-C", str(ROOT), f"REVISION={revision}", "make", "packages", chosen])
        assert done.returncode == 0, done.stdout
        for name in distributions:
            shutil.copytree(ROOT / "dist" / name, folder / name / revision, dirs_exist_ok=True)
    return {name: (folder / name / "1", folder / name / "2") for name in distributions}


@pytest.fixture(scope="session")
def site(
    request: pytest.FixtureRequest, builds: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The site, for all tests: each goes on where the one before it has ended. Failed, its disks stay."""
    made = own_network.run_outside([sys.executable, "-m", "tests.install.images"])
    assert made.returncode == 0, made.stdout
    folder = tmp_path_factory.mktemp("site")
    before = request.session.testsfailed
    with running(from_environment(), builds, folder) as site:
        yield site
        if request.session.testsfailed > before:
            for name, machine in site.machines.items():
                (folder / f"{name}.log").write_text(machine.journal())
            print(f"install: the machines' journals and disks are in {folder}", file=sys.stderr)
