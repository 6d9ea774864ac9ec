"""Debian packages of Lark's own files, as far as dpkg looks at them: built without debhelper, within seconds."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.packaging.conftest import PYTHON, ROOT

DEBIAN: Final = ROOT / "packaging" / "debian"
SCRIPTS: Final = ("postinst", "prerm", "postrm")


def control(package: str, version: str) -> str:
    """The package's description for dpkg."""
    (text,) = re.findall(rf"(?ms)^Package: {package}\n.*?(?=^Package: |\Z)", (DEBIAN / "control").read_text())
    text = text.replace("${lark:Python}", f"python{PYTHON}").replace("Architecture: any", "Architecture: all")
    return f"{text.strip()}\nVersion: {version}\nMaintainer: Lark developers <developers@lark.example>\n"


def packed(trees: Mapping[str, Path], folder: Path, version: str) -> list[Path]:
    """A package of each role's files."""
    made = []
    for role, files in trees.items():
        package = f"lark-{role}"
        tree = folder / version / package
        shutil.copytree(files, tree, symlinks=True)
        (tree / "DEBIAN").mkdir(mode=0o755)
        (tree / "DEBIAN/control").write_text(control(package, version))
        for name in SCRIPTS:
            if (DEBIAN / f"{package}.{name}").exists():
                shutil.copy(DEBIAN / f"{package}.{name}", tree / "DEBIAN" / name)
                (tree / "DEBIAN" / name).chmod(0o755)
        made.append(folder / f"{package}_{version}.deb")
        subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, made[-1]], check=True)
    return made
