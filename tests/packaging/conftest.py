"""Wheels, manual pages and the packages' files, made once for all tests of this room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ROLES: Final = ("controller", "worker", "access-point")
PYTHON: Final = "3.12"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, by package."""
    folder = tmp_path_factory.mktemp("wheels")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "wheels.sh", folder], env=environment, check=True)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


@pytest.fixture(scope="session")
def manuals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual pages and completions."""
    folder = tmp_path_factory.mktemp("manuals")
    subprocess.run([ROOT / "scripts" / "manpages.sh", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def trees(manuals: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each role's own files, by role: without the Python packages, which come from the network."""
    return {role: stage(role, PYTHON, manuals, tmp_path_factory.mktemp(role)) for role in ROLES}


def stage(role: str, python: str, manuals: Path, folder: Path, site: Path | None = None) -> Path:
    """Lay out a role's files in ``folder``, with the Python packages in ``site``."""
    command: list[str | Path] = [ROOT / "packaging" / "stage.sh", role, python, folder]
    if site is not None:
        command.append(site)
    subprocess.run(command, check=True, env={**os.environ, "LARK_MANUALS": str(manuals)})
    return folder
