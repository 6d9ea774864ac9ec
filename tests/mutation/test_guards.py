"""The guards of several controllers: each stands in the code and has its test, and one is taken away."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.mutation.guards import Guard, guards
from tests.mutation.without import ROOT

GUARDS = guards()


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_stands_in_the_code_once_and_has_its_test(guard: Guard) -> None:
    source = (ROOT / guard.file).read_text()
    assert source.count(guard.text) == 1
    without = ast.parse(source.replace(guard.text, guard.without))
    assert ast.dump(without) != ast.dump(ast.parse(source))
    file, _, name = guard.test.partition("::")
    tests = {each.name for each in ast.parse((ROOT / file).read_text()).body if isinstance(each, ast.FunctionDef)}
    assert not name or name.split("[")[0] in tests


def test_names_are_different() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


def test_one_that_is_taken_away_is_noticed_and_one_that_stays_is_not(tmp_path: Path) -> None:
    """A short form of ``python -m tests.mutation.guards``."""
    (guard,) = [each for each in GUARDS if each.name == "no hand-over while switches come"]
    stays = replace(guard, name="stays", without=" or loss.connected < reach.connected")
    broken = replace(guard, name="its test fails", test=str(tmp_path / "test_broken.py"))
    Path(broken.test).write_text("def test_it():\n    assert False\n")
    lines = [
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in asdict(each).items())
        for each in (guard, stays, broken)
    ]
    made = tmp_path / "guards.toml"
    made.write_text("".join(f"[[guard]]\n{each}\n" for each in lines))
    shown = subprocess.run(
        [sys.executable, "-m", "tests.mutation.guards", "--list", str(made)], cwd=ROOT, text=True, capture_output=True
    )
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert shown.stdout.splitlines() == [
        f"noticed   {guard.name}", "UNNOTICED stays", "FAILS ANYWAY its test fails", "1 of 3 noticed"
    ]  # fmt: skip
