"""The mutations themselves: on a small project with good and bad tests, and a few of the real one in short."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import EQUIVALENT, equivalents
from tests.mutation.mutants import Mutant, mutants_of, mutated, sample

ROOT = Path(__file__).parents[2]
CODE = '''\
"""Words that nobody tests."""
from __future__ import annotations

LIMIT = 3
__all__ = ["LIMIT", "halves", "inside"]


def inside(value: int, low: int) -> bool:
    """True for a value in a range."""
    if value is None:
        raise LookupError("a sentence for people")
    return low <= value < LIMIT


def halves(value: int) -> int:
    count = 0
    while value > 1:
        value //= 2
        count += 1
    return count


def unseen(value: int) -> int:
    return value + 1
'''
TESTS = """\
import pytest
from toy.ranges import halves, inside


def test_inside():
    with pytest.raises(LookupError):
        inside(None, 1)
    assert [inside(value, 1) for value in range(5)] == [False, True, True, False, False]


def test_halves():
    assert halves(9) >= 3
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "ranges.py").write_text(CODE)
    (tmp_path / "toy_tests").mkdir()
    (tmp_path / "toy_tests" / "test_ranges.py").write_text(TESTS)
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.mutation", *arguments], cwd=ROOT, text=True, capture_output=True
    )


def run_toy(toy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    known = toy / "equivalent.toml"
    return run("--root", str(toy), "--code", "toy", "--tests", "toy_tests", "--equivalent", str(known), *arguments)


def changes(toy: Path) -> dict[str, Mutant]:
    return {mutant.change: mutant for mutant in mutants_of(toy, "toy/ranges.py")}


def test_what_calculates_nothing_is_left_alone(toy: Path) -> None:
    found = changes(toy)
    assert 'LIMIT"' not in "".join(found)
    assert not [change for change in found if "sentence" in change and "pass" not in change]
    assert {mutant.line for mutant in found.values()} == {4, 10, 11, 12, 16, 17, 18, 19, 24}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("low <= value < LIMIT  →  low < value < LIMIT", "return low < value < LIMIT"),
        ("value is None  →  value is not None", "if value is not None:"),
        ("LIMIT = 3  →  LIMIT = 4", "LIMIT = 4"),
        ("count += 1  →  pass", "pass"),
        ("while value > 1:  →  while not value > 1:", "while not value > 1:"),
    ],
)
def test_a_mutant_is_the_module_with_one_change(toy: Path, change: str, text: str) -> None:
    new = ast.unparse(mutated(CODE, changes(toy)[change].number))
    assert text in new
    before = ast.unparse(ast.parse(CODE)).splitlines()
    assert len([1 for one, other in zip(before, new.splitlines(), strict=True) if one != other]) == 1


def test_tests_notice_what_they_check_and_nothing_else(toy: Path) -> None:
    shown = run_toy(toy, "--count", "1000", "--verbose", "--least", "50")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    outcomes = {line.split(": ", 1)[1]: line.split()[0] for line in shown.stdout.splitlines() if " inside: " in line}
    assert set(outcomes.values()) == {"noticed"}
    # This one never ends.
    assert "noticed  toy/ranges.py:19 halves: count += 1  →  pass" in shown.stdout
    assert "survived 1 tests: toy/ranges.py:16 halves: count = 0  →  count = 1" in shown.stdout
    assert "reached by no test: toy/ranges.py:24 unseen: value + 1  →  value - 1" in shown.stdout
    assert (toy / "toy" / "ranges.py").read_text() == CODE


def test_the_same_seed_takes_the_same_mutants(toy: Path) -> None:
    mutants = mutants_of(toy, "toy/ranges.py")
    first, again, other = (sample(mutants, seed, 5) for seed in (7, 7, 8))
    assert first == again
    assert len({mutant.number for mutant in first}) == 5
    assert first != other
    assert sorted(sample(mutants, 7, 1000), key=lambda mutant: mutant.number) == mutants


def test_mutants_known_to_change_nothing_are_not_counted(toy: Path) -> None:
    entry = {
        "path": "toy/ranges.py",
        "name": "halves",
        "change": "count = 0  →  count = .*",
        "reason": "more is as good",
    }
    lines = "\n".join(f'{key} = "{value}"' for key, value in entry.items())
    (toy / "equivalent.toml").write_text(f"[[mutant]]\n{lines}\n")
    shown = run_toy(toy, "--at", "toy/ranges.py:16")
    assert "changes nothing: toy/ranges.py:16 count = 0  →  count = 1\n  more is as good" in shown.stdout
    assert "1 of 1 noticed; 1 more change no behaviour" in shown.stdout
    assert shown.returncode == 0


def test_too_many_survivors_are_a_failure(toy: Path) -> None:
    shown = run_toy(toy, "--at", "toy/ranges.py:24", "--least", "10")
    assert "0 of 3 noticed" in shown.stdout
    assert shown.returncode == 1


def test_a_project_whose_tests_fail_is_not_judged(toy: Path) -> None:
    (toy / "toy_tests" / "test_ranges.py").write_text("def test_never(): assert False\n")
    refused = run_toy(toy)
    assert refused.returncode == 1
    assert "toy_tests/test_ranges.py does not pass without any mutation" in refused.stderr


def test_each_change_without_effect_is_one_that_can_be_made() -> None:
    """A line of the list that no mutation matches is about code that has changed."""
    made: dict[str, list[Mutant]] = {}
    stale = [
        f"{each.path} {each.name}: {each.change}"
        for each in equivalents(EQUIVALENT)
        if not any(map(each.is_one, made.get(each.path) or made.setdefault(each.path, [*mutants_of(ROOT, each.path)])))
    ]
    assert not stale, "\n".join(stale)


def test_most_mutations_are_noticed() -> None:
    """A short form of ``make mutate``: one room and its own tests."""
    shown = run("--code", "lark_controller/qos", "--tests", "tests/qos", "--seed", "1", "--count", "10",
                "--seconds", "50", "--least", "60")  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
