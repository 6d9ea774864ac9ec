"""Predicates: ClassAd expressions over the job ad (MY, and names without a scope) and the machine ad (TARGET).

Names without a scope are looked up in the job ad first and then, as in HTCondor's matchmaking, in the machine ad.
Undefined and Error are not true; a number is true unless it is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import classad2

from lark_common.classads import evaluation
from lark_common.classads.text import literal, parse_expression
from lark_common.classads.written import read_again, tokens
from lark_common.errors import AdError
from lark_controller.jobs.job import Facts
from lark_controller.policies import regexp

_MY: Final = frozenset({"my", "self"})
_TARGET: Final = frozenset({"target", "other"})
# Functions that a predicate may call beside those of ads.
FUNCTIONS: Final = evaluation.FUNCTIONS | regexp.FUNCTIONS
# The same job must get the same decision whenever it is decided.
_OF_THE_MOMENT: Final = frozenset(
    {"time", "currenttime", "random", "eval", "evalineachcontext", "countmatches", "daytime", "timezoneoffset"}
)
# A fact has at most 4,096 characters (facts.MAX_FACT). Of all names together an evaluation handles so many: meanwhile
# nothing else of the process runs. Where there would be more, those with more than their even part are errors, as those
# are that are longer than a fact may be; the expression has a value all the same.
MAX_REFERENCES: Final = 256
MAX_HANDLED: Final = 65_536
# With no more names than this it cannot be more.
_FEW: Final = 16
# Begins names of attributes in the small ads, and no name in an ad.
_ATTRIBUTE: Final = "attribute "
# Characters of an expression, strings among them; expressions are kept as long as others do not take their place.
MAX_LENGTH: Final = 16384


class References(NamedTuple):
    """The attributes that an expression needs, in lower case, and all of them as they were written, sorted.

    A name without a scope may come from either ad and is in both sets.
    """

    job: frozenset[str]
    machine: frozenset[str]
    written: tuple[str, ...]


def _nothing() -> None:
    """Take no step."""


class Ads(NamedTuple):
    """Small ads that hold the facts, for evaluation, and their lengths by name, where both ads have one the longer;
    ``step`` is called between the parts of an evaluation that may be long."""

    job: classad2.ClassAd
    machine: classad2.ClassAd
    lengths: Mapping[str, int]
    step: Callable[[], None]


class Compiled(NamedTuple):
    """An expression that may be evaluated: ``tree`` refers to what its ``calls`` of regular expressions answer.

    ``plain`` is its text with these calls, in which names are those of :func:`_own`. ``many`` are the names in it, as
    often as they stand there, where they are many.
    """

    plain: str
    tree: classad2.ExprTree
    calls: tuple[regexp.Call, ...]
    many: tuple[str, ...]


# As many as a policy can have: its list of rules has at most 4,096 entries with one or two each.
@lru_cache(maxsize=8192)
def compiled(text: str) -> Compiled:
    """The expression, parsed once.

    Raises AdError where the text is not one complete expression, or work and memory of its evaluation have no bound.
    """
    if len(text) > MAX_LENGTH:
        raise AdError("", f"an expression of {len(text)} characters; at most {MAX_LENGTH} are accepted")
    # HTCondor's own text: no comments, and function names without quotes.
    plain = repr(parse_expression(text))
    read_again(plain)
    found = evaluation.contents(plain)
    refused = evaluation.refused_functions(found.functions, FUNCTIONS)
    if refused:
        raise AdError("", f"{refused}() cannot be used: {_reason(refused)}")
    moment = evaluation.moment_problem(found)
    if moment:
        raise AdError("", f"it {moment}: a decision may depend on the two ads alone")
    if found.has_record:
        raise AdError("", "a record, [ Name = value; … ], cannot be used in an expression of a policy")
    if _selects_out_of_value(plain):
        raise AdError("", "it selects out of what is no attribute; accepted before a dot are a scope and an attribute")
    if len(found.references) > MAX_REFERENCES:
        raise AdError("", f"{len(found.references)} names of attributes; at most {MAX_REFERENCES} are accepted")
    splits = evaluation.splits_problem(found.splits)
    if splits:
        raise AdError("", splits)
    own = _with_own_names(plain)
    changed, calls = regexp.without_calls(own)
    many = tuple(_own(name.lower()) for _, name, _ in found.references) if len(found.references) > _FEW else ()
    return Compiled(own, classad2.ExprTree(changed), calls, many)


def _selects_out_of_value(text: str) -> bool:
    """True for ``(A ?: B).c``: HTCondor names it as one attribute, not A and B, so their values would be missing."""
    parts = tokens(text)
    return any(part.kind == "." and before.kind in (")", "]", "}", "string") for before, part in pairwise(parts))


def _own(name: str) -> str:
    """The name under which the small ads have an attribute: another one where HTCondor has its own value of it."""
    return f"{_ATTRIBUTE}{name}" if name.lower() in evaluation.HIDDEN_NAMES else name


def _with_own_names(text: str) -> str:
    """An expression in HTCondor's own text, with the attributes' names of the small ads."""
    for part in reversed(tokens(text)):
        name = part.text.strip("'")
        if part.kind == "name" and (own := _own(name)) != name:
            text = f"{text[: part.start]}'{own}'{text[part.start + len(part.text) :]}"
    return text


def _reason(function: str) -> str:
    if function.lower() in _OF_THE_MOMENT:
        return "a decision may depend on the two ads alone"
    return "accepted are functions with a bound on work and result, such as stringListMember, strcat, regexp"


@lru_cache(maxsize=8192)
def references(text: str) -> References:
    """The attributes that an expression refers to. Raises AdError as :func:`compiled` does."""
    tree = parse_expression(compiled(text).plain)
    try:
        written = [name.replace(_ATTRIBUTE, "") for name in classad2.ClassAd().externalRefs(tree) if name]
    except ValueError:
        raise AdError("", "what the expression refers to cannot be found") from None
    job: set[str] = set()
    machine: set[str] = set()
    for name in written:
        parts = [part.strip("'").lower() for part in name.split(".")]
        scope = parts.pop(0) if len(parts) > 1 and parts[0] in _MY | _TARGET else ""
        if scope not in _TARGET:
            job.add(parts[0])
        # The bindings report MY.x as x, so names with and without MY are the same.
        if scope not in _MY:
            machine.add(parts[0])
    return References(frozenset(job), frozenset(machine), tuple(sorted(written, key=str.lower)))


def forget() -> None:
    """Forget every expression that was read; those that are needed are read again."""
    compiled.cache_clear()
    references.cache_clear()


def problem(text: str) -> str:
    """The mistake of a predicate, in words that help to correct it; ``""`` where there is none."""
    hint = "strings are compared with ==, as in 'Owner == \"bob\"'"
    try:
        needed = references(text)
    except AdError as error:
        single = text.count("=") == 1
        return f"{error.reason}; {hint}" if single else error.reason
    if not needed.written and text.strip().lower() not in ("true", "false"):
        return f"{text.strip()} is a constant: it is the same for every job; {hint} (or write true, for every job)"
    return ""


def expression_problem(text: str) -> str:
    """The mistake of an expression whose value is used (``by`` of a slice); ``""`` where there is none."""
    try:
        needed = references(text)
    except AdError as error:
        return error.reason
    if not needed.written:
        return f"{text.strip()} is a constant: every job would be in one slice; name an attribute, as in 'by: Owner'"
    return ""


def ads_of(facts: Facts, step: Callable[[], None] = _nothing) -> Ads:
    """Ads that hold the facts and nothing else."""
    lengths: dict[str, int] = {}
    return Ads(_ad(facts.job, lengths), _ad(facts.machine, lengths), lengths, step)


def _ad(facts: Iterable[tuple[str, str]], lengths: dict[str, int]) -> classad2.ClassAd:
    """An ad of facts, whose lengths are noted."""
    entries = [(_own(name), text) for name, text in facts]
    for name, text in entries:
        lengths[name] = max(lengths.get(name, 0), len(text))
    return classad2.ClassAd("[" + "; ".join(f"'{name}' = {text}" for name, text in entries) + "]")


def value(text: str, ads: Ads) -> Any:
    """The value of an expression, lists with the values of their items; Undefined and Error are ``classad2.Value``
    members. Facts that are too long for it (:data:`MAX_HANDLED`) are Errors in it."""
    _, tree, calls, many = compiled(text)
    if many and sum(ads.lengths.get(name, 0) for name in many) > MAX_HANDLED:
        ads = _without_long(ads, MAX_HANDLED // len(many))
    for call in calls:
        ads.step()
        ads.job[call.attribute] = regexp.result(call, _value(call.subject, ads), ads.step)
    ads.step()
    return _value(tree, ads)


def _without_long(ads: Ads, most: int) -> Ads:
    """Ads in which facts of more than ``most`` characters are Errors."""
    long = {name for name, length in ads.lengths.items() if length > most}
    job, machine = (
        classad2.ClassAd({name: classad2.Value.Error if name.lower() in long else ad.lookup(name) for name in ad})
        for ad in (ads.job, ads.machine)
    )
    return ads._replace(job=job, machine=machine)


def _value(tree: classad2.ExprTree, ads: Ads) -> Any:
    return _with_items(evaluation.evaluated(tree, ads.job, ads.machine), ads)


def _with_items(found: Any, ads: Ads) -> Any:
    if isinstance(found, classad2.ExprTree):
        # HTCondor leaves the items of a list as they are written.
        return _value(found, ads)
    return [_with_items(item, ads) for item in found] if isinstance(found, list) else found


def holds(text: str | None, ads: Ads) -> bool:
    """True if a predicate is true; None (no predicate) always is."""
    if text is None:
        return True
    result = value(text, ads)
    # Value is an enumeration of integers: without this test, Undefined would be a number that is not zero.
    if isinstance(result, classad2.Value):
        return False
    return isinstance(result, bool | int | float) and bool(result)


def always(text: str | None) -> bool:
    """True if a predicate is true whatever the ads have, such as ``true``; None (no predicate) always is."""
    return text is None or (not references(text).written and holds(text, ads_of(Facts())))


def values_met(text: str | None, ads: Ads) -> tuple[tuple[str, str], ...]:
    """The attributes that an expression refers to, as written, each with its value as ClassAd text."""
    if text is None:
        return ()
    met = []
    for name in references(text).written:
        try:
            met.append((name, literal(value(name, ads))))
        except AdError:
            # The bindings report a quoted name ('a b', 'a.1') without its quotes where nothing is selected out of it.
            met.append((name, literal(value(_quoted(name), ads))))
    return tuple(met)


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
