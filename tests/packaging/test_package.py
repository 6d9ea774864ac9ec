"""What is installed is whole: every package, the migrations, and the files that are not Python."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        ".".join(folder.relative_to(ROOT).parts)
        for package in ("lark_common", "lark_controller", "lark_worker")
        for folder in (ROOT / package).glob("**/")
        if any(folder.glob("*.py"))
    }
    assert set(listed) == there | {"lark_controller.migrations", "lark_controller.migrations.versions"}


def test_the_wheel_holds_what_the_checkout_holds(tmp_path: Path) -> None:
    # Built from a copy: setuptools leaves its work beside the source.
    source = tmp_path / "source"
    source.mkdir()
    for name in (
        "pyproject.toml",
        "requirements.in",
        "README.md",
        "LICENSE",
        "lark_common",
        "lark_controller",
        "lark_worker",
        "migrations",
    ):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(tmp_path),
            ".",
        ],
        cwd=source,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())

    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in ("lark_common", "lark_controller", "lark_worker")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"lark_controller/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "migrations").rglob("*.py")}
    wanted.add("lark_controller/migrations/script.py.mako")
    assert wanted - held == set()
    assert not [name for name in held if name.startswith(("tests/", "lab/", "demo/", "bench/", "fake_switch/"))]
