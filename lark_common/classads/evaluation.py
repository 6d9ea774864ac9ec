"""Evaluation of what others wrote, within bounds: while HTCondor's code evaluates, nothing else of the process runs.

An expression is evaluated only when three things have been seen in its text. It calls functions of
:data:`FUNCTIONS` alone, whose work and result are at most a small multiple of what they are given. It has no record, in
which names could refer to each other out of sight. And with every attribute that it refers to written out in its place
it has at most :data:`MAX_EXPANSION` characters. So neither time nor memory depends on what somebody wrote.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import classad2

from lark_common.classads.text import MAX_DEPTH
from lark_common.errors import AdError

# Characters of an expression once every attribute it refers to is written out (see :func:`evaluate`).
MAX_EXPANSION: Final = 8192
# The functions that an expression in an ad may call. Each evaluates its arguments once, and its answer is hardly longer
# than they are. docs/reference/ads.md has every function of HTCondor 25 with the reason.
FUNCTIONS: Final = frozenset(
    {
        "abstime", "allcompare", "anycompare", "avg", "bool", "ceiling", "floor", "identicalmember", "ifthenelse",
        "int", "interval", "isabstime", "isboolean", "isclassad", "iserror", "isinteger", "islist", "isreal",
        "isreltime", "isstring", "isundefined", "max", "member", "min", "pow", "quantize", "real", "reltime",
        "round", "size", "split", "splitslotname", "splitusername", "strcat", "strcmp", "stricmp", "string",
        "stringlistavg", "stringlistimember", "stringlistisubsetmatch", "stringlistmax", "stringlistmember",
        "stringlistmin", "stringlistsintersect", "stringlistsize", "stringlistsubsetmatch", "stringlistsum",
        "substr", "sum", "tolower", "toupper", "version_in_range", "versioncmp", "versioneq", "versionge",
        "versiongt", "versionle", "versionlt",
    }
)  # fmt: skip

# HTCondor's own text of an expression (repr; str adds blanks, as many as the square of its depth). It has no comments.
_TOKEN: Final = re.compile(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")|([A-Za-z_][A-Za-z0-9_]*+|\'[^\'\\]*+(?:\\.[^\'\\]*+)*+\')|'
    r"([0-9][A-Za-z0-9_.]*+)|\s++|(.)",
    re.DOTALL,
)
_OPERATORS: Final = frozenset({"is", "isnt", "true", "false", "undefined", "error"})
_OTHER: Final = frozenset({"target", "other"})
_SCOPES: Final = _OTHER | {"my", "self"}


class Token(NamedTuple):
    """A part of an expression's text. ``kind``: ``string``, ``name``, ``number``, or the sign itself."""

    kind: str
    text: str
    start: int


class Contents(NamedTuple):
    """The parts of an expression; functions as written, references with their scope (lower case or ``""``)."""

    functions: tuple[str, ...]
    references: tuple[tuple[str, str], ...]
    has_record: bool
    selects: bool


def tokens(text: str) -> list[Token]:
    """The parts of an expression in HTCondor's own text of it (``repr`` of an ExprTree), without blanks."""
    kinds = (None, "string", "name", "number", None)
    return [
        Token(kinds[found.lastindex] or found.group(), found.group(), found.start())
        for found in _TOKEN.finditer(text)
        if found.lastindex is not None
    ]


def contents(expression: str) -> Contents:
    """The functions, references and records of an expression in HTCondor's own text of it."""
    functions: list[str] = []
    references: list[tuple[str, str]] = []
    has_record = selects = False
    parts = tokens(expression)
    for place, part in enumerate(parts):
        before = parts[place - 1].kind if place else ""
        after = parts[place + 1].kind if place + 1 < len(parts) else ""
        if part.kind == "[":
            # After a value it is a subscript.
            has_record |= before not in ("name", "string", ")", "]", "}") or parts[place - 1].text in ("is", "isnt")
        if part.kind != "name" or part.text.lower() in _OPERATORS:
            continue
        name = part.text.strip("'")
        if after == "(":
            functions.append(name)
        elif before == ".":
            scope = parts[place - 2] if place > 1 else None
            first = place < 3 or parts[place - 3].kind != "."
            known = scope is not None and scope.kind == "name" and first and scope.text.lower() in _SCOPES
            if not known or name.lower() in _SCOPES:
                # Selects out of a record, or out of an ad by way of another; `.x` is x of the outermost ad.
                selects = True
            references.append((scope.text.lower() if known and scope is not None else "", name))
        elif after != "." or part.text.lower() not in _SCOPES:
            references.append(("", name))
    return Contents(tuple(functions), tuple(references), has_record, selects)


def refused_functions(functions: tuple[str, ...], accepted: frozenset[str]) -> str:
    """The first function that is not accepted, shortened; ``""`` where all are."""
    return next((name[:40] for name in functions if name.lower() not in accepted), "")


def evaluate(ad: classad2.ClassAd, name: str, target: classad2.ClassAd) -> Any:
    """The value of an attribute with ``ad`` as MY and ``target`` as TARGET; None where it is absent or Undefined.

    An Error is ``classad2.Value.Error``. Raises AdError, and evaluates nothing, where the expression has no bound (see
    above) or refers to itself.
    """
    value = ad.get(name)
    if isinstance(value, classad2.ExprTree):
        _Expansion((ad, target), name).of(repr(value), 0)
        try:
            value = value.eval(ad, target)
        except classad2.ClassAdException:
            return classad2.Value.Error
    if value is classad2.Value.Undefined:
        return None
    return value


class _Expansion:
    """Measures an expression with everything that it refers to."""

    def __init__(self, ads: tuple[classad2.ClassAd, classad2.ClassAd], name: str) -> None:
        self._ads = ads
        self._name = name
        self._sizes: dict[tuple[int, str], int | None] = {}
        self._seen = 0

    def of(self, text: str, side: int) -> int:
        """The number of characters that ``text``, an expression of ``ads[side]``, has once attributes are written
        out."""
        # The bound is on all texts together, and counts each before it is parsed: written out, a text is no shorter.
        self._seen = self._bounded(self._seen + len(text))
        total = len(text)
        found = contents(text)
        refused = refused_functions(found.functions, FUNCTIONS)
        if refused:
            raise AdError(
                self._name,
                f"calls {refused}(), which is not accepted in an ad. Accepted are functions whose work and result are"
                " bounded by what they are given, such as ifThenElse, stringListMember, strcat",
            )
        if found.has_record or found.selects:
            raise AdError(
                self._name,
                "has a record, [ Name = value; … ], inside an expression, or selects from one; accepted are names,"
                " MY. and TARGET. before them",
            )
        for scope, attribute in found.references:
            total = self._bounded(total + self._size(scope, attribute.lower(), side))
        return total

    def _size(self, scope: str, attribute: str, side: int) -> int:
        where = side
        if scope in _OTHER or (not scope and attribute not in self._ads[side]):
            where = 1 - side
        key = (where, attribute)
        if key not in self._sizes:
            self._sizes[key] = None
            if len(self._sizes) > MAX_DEPTH:
                raise AdError(self._name, f"refers to more than {MAX_DEPTH} attributes")
            known = attribute in self._ads[where]
            self._sizes[key] = self.of(repr(self._ads[where].lookup(attribute)), where) if known else 0
        size = self._sizes[key]
        if size is None:
            raise AdError(self._name, f"refers to itself through {attribute[:60]}")
        return size

    def _bounded(self, total: int) -> int:
        if total > MAX_EXPANSION:
            raise AdError(
                self._name, f"amounts to more than {MAX_EXPANSION} characters once its attributes are written out"
            )
        return total


def is_plain(value: Any) -> bool:
    """True if a value holds no expression at any depth, so that using it costs no more than its size."""
    if isinstance(value, classad2.ExprTree):
        return False
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    if isinstance(value, classad2.ClassAd):
        return all(is_plain(value.get(name)) for name in value)
    return True
