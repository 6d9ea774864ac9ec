"""The lab is one for many tests: a context that changes it takes that back when its block fails, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

LAB = sorted((Path(__file__).parents[1] / "lab").glob("test_*.py"))


def contexts(text: str) -> Iterator[ast.FunctionDef]:
    """The functions of a module that are context managers by decorator."""
    for each in ast.walk(ast.parse(text)):
        if isinstance(each, ast.FunctionDef) and any("contextmanager" in ast.unparse(by) for by in each.decorator_list):
            yield each


def left_out(body: Sequence[ast.stmt]) -> Iterator[int]:
    """The lines of statements that are left out when the block fails: they follow a yield, outside of ``finally``."""
    for number, each in enumerate(body):
        inner = each.body if isinstance(each, ast.With | ast.Try | ast.If | ast.For) else []
        yield from left_out(inner)
        if number + 1 < len(body) and any(isinstance(below, ast.Yield) for below in ast.walk(each)):
            yield body[number + 1].lineno


@pytest.mark.parametrize("path", LAB, ids=lambda path: path.stem)
def test_what_a_context_of_the_lab_changes_is_taken_back_when_its_block_fails(path: Path) -> None:
    assert {each.name: lines for each in contexts(path.read_text()) if (lines := list(left_out(each.body)))} == {}


def test_statements_behind_a_yield_are_found() -> None:
    text = """
@contextmanager
def one():
    try:
        with other():
            yield
            print()
    finally:
        print()
"""
    (found,) = contexts(text)
    assert list(left_out(found.body)) == [7]
