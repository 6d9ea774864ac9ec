"""Mutation operators: the small changes that can be made to one piece of a program, as pairs of syntax trees.

Left alone are what calculates nothing (annotations, docstrings, decorators, names of type variables) and sentences for
people, which are the strings that hold a blank.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Everything that may stand in the place of ``node``, one small change each."""
    match node:
        case ast.Compare():
            yield from _comparisons(node)
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            yield from (_one_less(node, "values", index) for index in range(len(node.values)))
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield _with(node, op=_ARITHMETIC[type(node.op)]())
        case ast.Constant():
            yield from _constants(node)
        case ast.Call():
            yield from _calls(node)
        case ast.List() | ast.Set() | ast.Tuple() if len(node.elts) > 1 and not _is_target(node):
            yield from (_one_less(node, "elts", index) for index in range(len(node.elts)))
        case ast.If() | ast.IfExp() | ast.While() if not _has_opposite(node.test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.comprehension():
            yield from (_one_less(node, "ifs", index) for index in range(len(node.ifs)))
        case ast.Match() if len(node.cases) > 1:
            yield from (_one_less(node, "cases", index) for index in range(len(node.cases)))
        case ast.stmt():
            yield from _statements(node)


def _comparisons(node: ast.Compare) -> Iterator[ast.AST]:
    for index, old in enumerate(node.ops):
        for new in _COMPARISONS[type(old)]:
            yield _with(node, ops=[*node.ops[:index], new(), *node.ops[index + 1 :]])


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    match node.value:
        case bool():
            yield _with(node, value=not node.value)
        case int():
            yield _with(node, value=node.value + 1)
            yield _with(node, value=node.value - 1)
        case float():
            yield _with(node, value=node.value + 1)
        case str() if not any(letter.isspace() for letter in node.value):
            yield _with(node, value=node.value + "x")
        case bytes():
            yield _with(node, value=node.value + b"x")


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    match node.func:
        case ast.Name(id=name) if name in _FUNCTIONS:
            yield _with(node, func=ast.Name(_FUNCTIONS[name], ast.Load()))
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield _one_less(node, "keywords", index)


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case (
            ast.Expr(value=ast.Call(func=ast.Name(id="assert_never")))
            | ast.Raise(exc=ast.Call(func=ast.Name(id="AssertionError")))
        ):
            return
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue():
            yield ast.Pass()
            if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
                yield _with(node, op=_ARITHMETIC[type(node.op)]())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _has_opposite(test: ast.expr) -> bool:
    """True where a change of the test itself is its opposite."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[op]):
            return len(_COMPARISONS[type(op)]) == 1
    return False


def _is_target(node: ast.List | ast.Set | ast.Tuple) -> bool:
    return not isinstance(node, ast.Set) and not isinstance(node.ctx, ast.Load)


def _with(node: Node, **fields: object) -> Node:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _one_less(node: Node, field: str, index: int) -> Node:
    elements = getattr(node, field)
    return _with(node, **{field: [*elements[:index], *elements[index + 1 :]]})
