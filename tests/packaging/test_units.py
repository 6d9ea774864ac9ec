"""The systemd units: systemd itself finds nothing wrong with them, and what they start is a command of the project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "etc" / "systemd").glob("*.service"))
BIN = "/opt/lark/bin/"


def complaints(unit: Path, text: str) -> list[str]:
    """Systemd's complaints about a unit's text, where programs that a test's machine lacks are there."""
    copy = unit
    copy.write_text(re.sub(r"(?m)^(Exec\w+=[-@:+!]*)/\S+", r"\1/bin/true", text))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    # It looks at units of the machine as well, which are not judged here.
    found = [line for line in done.stderr.splitlines() if unit.name in line]
    return [*found, f"status {done.returncode}"] if done.returncode else found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_every_unit_as_it_stands(unit: Path, tmp_path: Path) -> None:
    assert complaints(tmp_path / unit.name, unit.read_text()) == []


def test_a_mistake_in_a_unit_would_be_found(tmp_path: Path) -> None:
    text = UNITS[0].read_text()
    assert complaints(tmp_path / UNITS[0].name, text.replace("[Service]", "[Service]\nRestrat=always"))


def test_what_units_start_is_installed_with_the_project() -> None:
    distributions = (ROOT / "pyproject.toml", ROOT / "lark_worker" / "pyproject.toml")
    scripts = {name for path in distributions for name in tomllib.loads(path.read_text())["project"]["scripts"]}
    started = {word for unit in UNITS for word in re.findall(rf"(?m)^ExecStart={BIN}(\S+)", unit.read_text())}
    assert {"lark", "lark-worker"} <= started
    assert started <= scripts
