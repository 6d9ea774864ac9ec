"""Texts that many values have in common: one object, and no more memory than for so many."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lark_common import shared_texts
from lark_common.shared_texts import LONGEST, MOST, shared
from lark_controller.switches.openflow.replies import port_status

ROOT = Path(__file__).parents[2]


def test_equal_texts_are_one_object_and_no_more_than_so_many_are_kept() -> None:
    assert shared("".join(["al", "ice"])) is shared("".join(["a", "lice"]))
    for number in range(MOST + 10):
        shared(f"name {number}")
    assert shared_texts._kept.cache_info().currsize == MOST


def test_long_texts_are_not_kept() -> None:
    shared_texts._kept.cache_clear()
    assert shared("a" * (LONGEST + 1)) == "a" * (LONGEST + 1)
    assert shared_texts._kept.cache_info().currsize == 0


def test_what_a_switch_sends_is_kept_within_that_bound() -> None:
    shared_texts._kept.cache_clear()
    for number in range(100):
        port = number.to_bytes(4) + bytes(12) + f"port{number}".encode().ljust(16, b"\0") + bytes(32)
        found, _ = port_status(b"\x04\x0c\0\x50\0\0\0\0" + bytes(8) + port)
        assert found.name == f"port{number}"
    assert shared_texts._kept.cache_info().currsize == 100


@pytest.mark.parametrize("package", ["lark_common", "lark_controller", "lark_mpi", "lark_worker"])
def test_nothing_is_interned(package: str) -> None:
    """Python 3.12.0 to 3.12.6 keep each interned text for ever."""
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}
        assert "intern" not in named | imported, path


def test_no_path_is_made_of_the_processes_that_connect() -> None:
    """Its parts are interned, and there are millions of numbers of processes."""
    tree = ast.parse((ROOT / "lark_worker" / "identity" / "processes.py").read_text())
    assert "pathlib" not in {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
