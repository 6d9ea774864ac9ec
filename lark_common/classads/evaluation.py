"""Evaluation of what others wrote, within bounds: while HTCondor's code evaluates, nothing else of the process runs.

An expression is evaluated only when five things have been seen in its text. It calls functions of :data:`FUNCTIONS`
alone, whose work and result are at most a small multiple of what they are given. It has no record, in which names could
refer to each other out of sight, and no name of :data:`OWN_NAMES` to which HTCondor gives a value of its own. With
every attribute that it refers to written out in its place it has at most :data:`MAX_EXPANSION` characters, and at most
:data:`MAX_SPLITS` calls of :data:`SPLITS` within each other. It is evaluated as that text is read again, beside those
attributes alone. So neither time nor memory depends on what somebody wrote.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import classad2

from lark_common.classads.parts import Ad, whole
from lark_common.classads.text import MAX_DEPTH
from lark_common.classads.written import Token, read_again, tokens
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

# The names to which HTCondor itself gives a value where no ad has them, in lower case. All but CurrentTime are whole
# ads, whose attributes a subscript reaches out of sight (MY["A"] is the value of A, and of A itself endless), or made
# of Rank and Requirements of the two ads, as leftRankValue is.
OWN_NAMES: Final = frozenset(
    {
        "ad", "currenttime", "lctx", "left", "leftmatchesright", "leftrankvalue", "my", "other", "parent", "rctx",
        "right", "rightmatchesleft", "rightrankvalue", "root", "self", "symmetricmatch", "target", "toplevel",
    }
)  # fmt: skip

# The functions that make a list of what they evaluated. Such a list as a text has each quote and backslash of its items
# once more escaped, so that string(split(string(split(…)))) doubles with each pair of calls.
SPLITS: Final = frozenset({"split", "splitslotname", "splitusername"})
# Calls of those within each other, also through attributes.
MAX_SPLITS: Final = 2

_OPERATORS: Final = frozenset({"is", "isnt", "true", "false", "undefined", "error"})
_OTHER: Final = frozenset({"target", "other"})
_SCOPES: Final = _OTHER | {"my", "self"}
# Of the names above those that have a value of HTCondor's own whatever attributes an ad has, and those that have one
# only where the ad has no attribute of that name.
_ALWAYS_OWN: Final = _SCOPES | {"currenttime"}
HIDDEN_NAMES: Final = OWN_NAMES - _ALWAYS_OWN
# In place of a scope, before a name that is selected out of something.
SELECTED: Final = "."


class Reference(NamedTuple):
    """An attribute in an expression: its scope (lower case, ``""`` or :data:`SELECTED`), its name as written, and how
    many calls of :data:`SPLITS` it stands in."""

    scope: str
    name: str
    splits: int


class Contents(NamedTuple):
    """The parts of an expression; functions as written, and the most calls of :data:`SPLITS` within each other.

    ``own_name`` is the first name of :data:`OWN_NAMES` as written, or ``""``, but for :data:`HIDDEN_NAMES` where an ad
    may have them; ``asks_time``: it has ``absTime()``.
    """

    functions: tuple[str, ...]
    references: tuple[Reference, ...]
    has_record: bool
    selects: bool
    splits: int
    own_name: str
    asks_time: bool


def contents(expression: str) -> Contents:
    """The functions, references and records of an expression in HTCondor's own text of it."""
    functions: list[str] = []
    references: list[Reference] = []
    has_record = selects = asks_time = False
    # For each bracket that is open, whether it belongs to a call of SPLITS.
    brackets: list[bool] = []
    splits = most_splits = 0
    parts = tokens(expression)
    for place, part in enumerate(parts):
        before = parts[place - 1].kind if place else ""
        after = parts[place + 1].kind if place + 1 < len(parts) else ""
        if part.kind == "[":
            # After a value it is a subscript.
            has_record |= before not in ("name", "string", ")", "]", "}") or parts[place - 1].text in ("is", "isnt")
        if part.kind in ("(", "[", "{"):
            brackets.append(part.kind == "(" and before == "name" and _name(parts[place - 1]).lower() in SPLITS)
            splits += brackets[-1]
            most_splits = max(most_splits, splits)
        elif part.kind in (")", "]", "}"):
            splits -= brackets.pop()
        if part.kind != "name" or part.text.lower() in _OPERATORS:
            continue
        name = _name(part)
        if after == "(":
            functions.append(name)
            asks_time |= name.lower() == "abstime" and parts[place + 2].kind == ")"
        elif before == ".":
            scope = parts[place - 2] if place > 1 else None
            first = place < 3 or parts[place - 3].kind != "."
            known = scope is not None and scope.kind == "name" and first and scope.text.lower() in _SCOPES
            if not known or name.lower() in _SCOPES:
                # Selects out of a record, or out of an ad by way of another; `.x` is x of the outermost ad.
                selects = True
            of = scope.text.lower() if known and scope is not None else SELECTED
            references.append(Reference(of, name, splits))
        elif after != "." or part.text.lower() not in _SCOPES:
            references.append(Reference("", name, splits))
    own_name = next((each.name for each in references if _is_own(each)), "")
    return Contents(tuple(functions), tuple(references), has_record, selects, most_splits, own_name, asks_time)


def _is_own(reference: Reference) -> bool:
    return reference.name.lower() in (OWN_NAMES if reference.scope == SELECTED else _ALWAYS_OWN)


def _name(part: Token) -> str:
    return part.text.strip("'")


def refused_functions(functions: tuple[str, ...], accepted: frozenset[str]) -> str:
    """The first function that is not accepted, shortened; ``""`` where all are."""
    return next((name[:40] for name in functions if name.lower() not in accepted), "")


def evaluate(ad: Ad, name: str, target: Ad) -> Any:
    """The value of an attribute with ``ad`` as MY and ``target`` as TARGET; None where it is absent or Undefined.

    An Error is ``classad2.Value.Error``. Raises AdError, and evaluates nothing, where the expression has no bound (see
    above) or refers to itself.
    """
    try:
        value = ad[name]
    except KeyError:
        return None
    if isinstance(value, classad2.ExprTree):
        expansion = _Expansion((whole(ad), whole(target)), name)
        _, tree = expansion.of(repr(value), 0)
        value = evaluated(tree, *expansion.measured)
    if value is classad2.Value.Undefined:
        return None
    return value


def evaluated(tree: classad2.ExprTree, ad: classad2.ClassAd, target: classad2.ClassAd) -> Any:
    """The value of an expression whose bound has been seen; an Error, too, where the value is no text in UTF-8, such as
    half a letter out of ``substr``."""
    try:
        return tree.eval(ad, target)
    except (classad2.ClassAdException, UnicodeDecodeError, SystemError):
        # The bindings raise SystemError for a list with such a text.
        return classad2.Value.Error


def moment_problem(found: Contents) -> str:
    """The reason why an expression that depends on the time, or has a whole ad in it, is not accepted, or ``""``."""
    if found.asks_time:
        return "has absTime() without a time"
    return own_name_problem(found.own_name) if found.own_name else ""


def own_name_problem(name: str) -> str:
    """The reason why a name of :data:`OWN_NAMES` is not accepted."""
    return f"has the name {name}, to which HTCondor gives a value of its own"


def splits_problem(splits: int) -> str:
    """The reason why so many calls of :data:`SPLITS` within each other are not accepted, or ``""``."""
    if splits <= MAX_SPLITS:
        return ""
    return (
        f"has split, splitSlotName or splitUserName within each other, {splits} deep; at most {MAX_SPLITS} are accepted"
    )


class _Size(NamedTuple):
    """The characters of an expression once attributes are written out, and its calls of SPLITS within each other."""

    characters: int
    splits: int


class _Expansion:
    """Measures an expression with everything that it refers to."""

    def __init__(self, ads: tuple[classad2.ClassAd, classad2.ClassAd], name: str) -> None:
        self._ads = ads
        self._name = name
        self._sizes: dict[tuple[int, str], _Size | None] = {}
        self._seen = 0
        # The attributes that were measured, of either ad.
        self.measured = (classad2.ClassAd(), classad2.ClassAd())

    def of(self, text: str, side: int) -> tuple[_Size, classad2.ExprTree]:
        """The size of ``text``, an expression of ``ads[side]``, and the expression. Raises AdError where it has no
        bound."""
        # The bound is on all texts together, and counts each before it is parsed: written out, a text is no shorter.
        self._seen = self._bounded(self._seen + len(text))
        total = len(text)
        tree = read_again(text, self._name)
        found = contents(text)
        splits = found.splits
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
        moment = moment_problem(found)
        if moment:
            raise AdError(self._name, f"{moment}; accepted are attributes, and what stays the same as they do")
        for scope, attribute, within in found.references:
            if attribute.lower() in HIDDEN_NAMES and attribute not in self._ads[1 - side if scope in _OTHER else side]:
                # HTCondor finds its own value of that name before an attribute of the other ad.
                accepted = f"accepted are attributes, as this one is where an ad has {attribute}"
                raise AdError(self._name, f"{own_name_problem(attribute)}; {accepted}")
            size = self._size(scope, attribute.lower(), side)
            total = self._bounded(total + size.characters)
            splits = max(splits, within + size.splits)
        problem = splits_problem(splits)
        if problem:
            raise AdError(self._name, problem)
        return _Size(total, splits), tree

    def _size(self, scope: str, attribute: str, side: int) -> _Size:
        if scope and any(scope in ad for ad in self._ads):
            # HTCondor takes it for this attribute.
            raise AdError(self._name, f"has {scope}. before a name, and an ad has an attribute of that name, too")
        where = side
        if scope in _OTHER or (not scope and attribute not in self._ads[side]):
            where = 1 - side
        key = (where, attribute)
        if key not in self._sizes:
            self._sizes[key] = None
            if len(self._sizes) > MAX_DEPTH:
                raise AdError(self._name, f"refers to more than {MAX_DEPTH} attributes")
            self._sizes[key] = self._of_attribute(where, attribute)
        size = self._sizes[key]
        if size is None:
            raise AdError(self._name, f"refers to itself through {attribute[:60]}")
        return size

    def _of_attribute(self, where: int, attribute: str) -> _Size:
        ad = self._ads[where]
        if attribute not in ad:
            return _Size(0, 0)
        tree = ad.lookup(attribute)
        text = repr(tree)
        if isinstance(ad[attribute], classad2.ExprTree | classad2.ClassAd | list):
            size, tree = self.of(text, where)
        else:
            self._seen = self._bounded(self._seen + len(text))
            size = _Size(len(text), 0)
        self.measured[where][attribute] = tree
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
