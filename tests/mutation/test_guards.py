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
# A test of what a program of its own says: the loss begins anew, since a switch has come.
_TEST_OF_A_PROGRAM = '''
import subprocess, sys
def test_it():
    text = """if True:
        from lark_controller.cluster.reach import Loss, Reach, followed
        print(followed(Loss(1, 0.0, 61.0), Reach(100, 2, 98, 98), 62.0).since)
    """
    assert subprocess.check_output([sys.executable, "-c", text], text=True).strip() == "62.0"
'''


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
    inside = replace(guard, name="in a program", test=str(tmp_path / "test_program.py"))
    Path(inside.test).write_text(_TEST_OF_A_PROGRAM)
    lines = [
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in asdict(each).items())
        for each in (guard, stays, broken, inside)
    ]
    made = tmp_path / "guards.toml"
    made.write_text("".join(f"[[guard]]\n{each}\n" for each in lines))
    shown = subprocess.run(
        [sys.executable, "-m", "tests.mutation.guards", "--list", str(made)], cwd=ROOT, text=True, capture_output=True
    )
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert shown.stdout.splitlines() == [
        f"noticed   {guard.name}", "UNNOTICED stays", "FAILS ANYWAY its test fails", "noticed   in a program",
        "2 of 4 noticed",
    ]  # fmt: skip
