"""Every test that the threat model names is there, and what it says of attackers is complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "threat-model.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE)))
ATTACKERS = (
    "A job's user", "Another user on the worker", "A worker's root", "A switch", "A network neighbour",
    "A token's holder", "A stranger at the REST port",
)  # fmt: skip


@pytest.mark.parametrize("named", NAMED)
def test_a_named_test_is_there(named: str) -> None:
    file, _, name = named.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert any(function.startswith("test_") for function in functions)
    assert not name or name in functions


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_each_attacker_has_attempts_and_tests(attacker: str) -> None:
    section = PAGE.split(f"\n## {attacker}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    tables = section.count("| --- |")
    attempts = [row for row in rows if "shown by" not in row]
    assert len(attempts) >= 3
    assert tables >= 1
    for row in attempts:
        assert "`tests/" in row.rsplit("|", 2)[1], row
