"""Mutants: every place of a module where an operator changes something, in the order of the text."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.operators import changes

_NOT_CALCULATED = {"annotation", "returns", "decorator_list", "bases", "format_spec"}
_NAMED = (ast.FunctionDef, ast.ClassDef)
_DECLARING_CALLS = {"TypeVar", "NewType", "cast"}
_DECLARING_NAMES = {"__all__", "__slots__", "__match_args__"}
# What a constant is shown in.
_HOLDING = (ast.expr, ast.keyword, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)
# How much is printed of what stands before and after a change.
_SURROUNDINGS = 40


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the ``number``-th of its places."""

    path: str
    number: int
    line: int
    last_line: int
    # Function and classes that hold it.
    name: str
    # Whether it is run when the module is imported, and so no test's own.
    at_import: bool
    change: str

    @property
    def place(self) -> str:
        """File and line, as editors read them."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class _Place:
    parent: ast.AST
    field: str
    index: int | None
    node: ast.AST
    # The statement that holds it, which is what tests are seen to reach.
    lines: range
    name: str
    at_import: bool = True
    # Inside the expression of a ``raise``, where strings are for people.
    raising: bool = False

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants_of(root: Path, path: str) -> list[Mutant]:
    """All mutants of a module."""
    return [
        Mutant(path, number, place.lines[0], place.lines[-1], place.name, place.at_import, _change(place, new))
        for number, (place, new) in enumerate(_changes(ast.parse((root / path).read_text())))
    ]


def sample(mutants: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """As many mutants as are asked for and there are, in the order in which to try them."""
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def mutated(source: str, number: int) -> ast.Module:
    """The module with its ``number``-th change made."""
    tree = ast.parse(source)
    for counted, (place, new) in enumerate(_changes(tree)):
        if counted == number:
            place.put(ast.copy_location(new, place.node) if isinstance(place.node, ast.expr | ast.stmt) else new)
            return ast.fix_missing_locations(tree)
    raise IndexError(number)


def _changes(tree: ast.Module) -> Iterator[tuple[_Place, ast.AST]]:
    for place in _places(_Place(tree, "", None, tree, range(0), "")):
        for new in changes(place.node):
            yield place, new


def _places(outer: _Place) -> Iterator[_Place]:
    parent = outer.node
    for field, value in ast.iter_fields(parent):
        if field in _NOT_CALCULATED or _is_alias(parent, field):
            continue
        many = isinstance(value, list)
        for index, node in enumerate(value if many else [value]):
            if not isinstance(node, ast.AST) or _declares(node):
                continue
            place = _Place(
                parent,
                field,
                index if many else None,
                node,
                _lines(node) if isinstance(node, ast.stmt) else outer.lines,
                f"{outer.name}.{node.name}".lstrip(".") if isinstance(node, _NAMED) else outer.name,
                # Defaults are calculated where a function is defined.
                outer.at_import and not (isinstance(parent, ast.FunctionDef) and field == "body"),
                outer.raising or isinstance(node, ast.Raise),
            )
            if not (place.raising and isinstance(node, ast.Constant) and isinstance(node.value, str)):
                yield place
            yield from _places(place)


def _declares(node: ast.AST) -> bool:
    """True for a node that declares and calculates nothing."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in _DECLARING_NAMES
        case ast.Call(func=ast.Name(id=name)):
            return name in _DECLARING_CALLS
    return False


def _is_alias(parent: ast.AST, field: str) -> bool:
    """True for a field that holds the arguments of a generic type, as in ``dict[str, int]``."""
    return (
        isinstance(parent, ast.Subscript)
        and field == "slice"
        and isinstance(parent.value, ast.Name)
        and (parent.value.id in {"dict", "list", "set", "tuple", "frozenset"} or parent.value.id[0].isupper())
        and not parent.value.id.isupper()
    )


def _lines(node: ast.stmt) -> range:
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    return range(node.lineno, max(node.lineno + 1, first.lineno))


def _change(place: _Place, new: ast.AST) -> str:
    """Text before and after, without what both begin and end with; a constant stands in what holds it."""
    if isinstance(place.node, ast.Constant) and isinstance(place.parent, _HOLDING):
        before = _text(place.parent)
        place.put(new)
        after = _text(place.parent)
        place.put(place.node)
    else:
        before, after = _text(place.node), _text(new)
    start = max(0, _same(before, after) - _SURROUNDINGS)
    same_end = max(0, _same(before[start:][::-1], after[start:][::-1]) - _SURROUNDINGS)

    def cut(text: str) -> str:
        return ("…" if start else "") + text[start : len(text) - same_end] + ("…" if same_end else "")

    return f"{cut(before)}  →  {cut(after)}"


def _same(one: str, other: str) -> int:
    """The number of letters with which both begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}:"
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
