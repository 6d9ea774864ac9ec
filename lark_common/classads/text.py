"""ClassAd text and JSON -> ``classad2.ClassAd`` with nothing dropped on the way.

``classad2.parseOne`` stops at the first line that it does not understand, drops what follows a complete expression,
turns integers of more than 64 bits into 0, and its C++ code overflows the stack on chains of some 50,000 operators.
Here every line is checked before it is parsed, so an ad comes out whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import classad2

from lark_common.classads.parts import Ad, PartAd, lower_names, whole
from lark_common.classads.written import UNQUOTED, read_again
from lark_common.errors import AdError

# The parser gives up at some hundred levels and the evaluator at some hundred more; real ads stay below ten.
MAX_DEPTH: Final = 64
# Characters of one expression outside its string literals. Trees are freed recursively: 50,000 operators in a chain
# overflow an 8 MiB stack, and an operator takes at least one character.
MAX_EXPRESSION: Final = 16384
# Brackets of all kinds that one ad opens. A list costs its parser ten times as much as its text; the largest machine
# ads have some hundred.
MAX_BRACKETS: Final = 8192
# Characters of an expression, at most, whose check is remembered: more than most requirements of jobs have.
MAX_REMEMBERED: Final = 1024
# HTCondor's private attributes are capabilities; they are kept out of what is stored and shown.
PRIVATE_ATTRIBUTES: Final = frozenset(
    {
        "capability",
        "childclaimids",
        "claimid",
        "claimidlist",
        "claimids",
        "pairedclaimid",
        "transferkey",
        "transfersocket",
    }
)

_PRIVATE: Final = "_condor_priv"

# The first parse of a line in old syntax switches the ClassAd library, for the whole process, to HTCondor's rules for
# names: without it a name without a scope is never looked up in TARGET, and what an expression means would depend on
# what was parsed before.
classad2.parseOne("Lark = true", classad2.Parser.Old)

_LINE = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_.]*)[ \t]*=(?!=)(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
# A literal that the old-syntax parser takes whole. In old syntax \" is the only escape, and a backslash before the
# last quote of the line is itself.
_OLD_LITERAL = re.compile(
    r'"[^"\\]*+(?:\\"?[^"\\]*+)*"|-?(?:0|[1-9][0-9]{0,17})|-?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,18}(?:[eE][+-]?[0-9]{1,2})?'
    r"|true|false|undefined|error",
    re.IGNORECASE,
)
# A line as HTCondor writes most of them: a literal, and one blank on either side of the equals sign.
_PLAIN = (
    r'([A-Za-z_][A-Za-z0-9_.]*+) = (?:"[^"\\\n]*+(?:\\"?[^"\\\n]*+)*"|-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?'
    r"|(?i:true|false|undefined))"
)
_PLAIN_LINE = re.compile(_PLAIN, re.ASCII)
# Every line of a text, one after the other: the name of a plain one, and nothing of another.
_PLAIN_NAMES = re.compile(rf"(?:{_PLAIN}|.*)(?:\n|\Z)", re.ASCII)
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|\'[^\'\\]*+(?:\\.[^\'\\]*+)*+\'?', re.DOTALL)
_LONG_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[0-9]{19,}(?![.0-9])")
# HTCondor reads no text of this time: the number by which its C library returns it is that of an error.
_UNREADABLE: Final = datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
_EXPR_JSON = re.compile(r"/Expr\((.*)\)/", re.DOTALL)


def without_strings(text: str) -> str:
    """The expression with every string literal emptied, for looking at its structure."""
    return _STRING.sub('""', text)


class _Brackets:
    """Limits the brackets that the expressions of one ad open together."""

    def __init__(self) -> None:
        self._opened = 0

    def open(self, name: str, count: int = 1) -> None:
        """Count brackets of an attribute. Raises AdError."""
        self._opened += count
        if self._opened > MAX_BRACKETS:
            raise AdError(name, f"the ad opens more than {MAX_BRACKETS} brackets up to here")

    def open_in(self, name: str, expression: str) -> None:
        """Count the brackets of an expression. Raises AdError."""
        self.open(name, _opened_in(expression))


def _opened_in(expression: str) -> int:
    return _opened(without_strings(expression)) if len(expression) > 1 else 0


def _opened(bare: str) -> int:
    return bare.count("(") + bare.count("[") + bare.count("{")


def _structure_problem(expression: str) -> str:
    """The reason why an expression must not reach the C++ parser, or ``""``."""
    bare = without_strings(expression)
    if len(bare) > MAX_EXPRESSION:
        return f"an expression of {len(bare)} characters outside strings; at most {MAX_EXPRESSION} are accepted"
    depth = 0
    for character in bare:
        if character in "([{?":
            depth += 1
            if depth > MAX_DEPTH:
                return f"nested too deeply; at most {MAX_DEPTH} levels are accepted"
        elif character in ")]}":
            depth -= 1
    return _long_number_problem(bare)


def _long_number_problem(bare: str) -> str:
    # 20 digits decide: a number that is longer is too large whatever follows (and int() of very long text is slow).
    large = any(int(number[:20]) >= 1 << 63 for number in _LONG_NUMBER.findall(bare))
    return "an integer of more than 64 bits" if large else ""


def _old_expression_problem(expression: str) -> str:
    """The reason why an expression in old syntax is not one complete expression, or ``""``."""
    if len(expression) > MAX_REMEMBERED:
        return _found_problem(expression)
    return _remembered(expression)[1]


def _found_problem(expression: str) -> str:
    if not expression:
        return "no value after the equals sign"
    problem = _structure_problem(expression)
    if problem:
        return problem
    # The parser ignores what follows a complete expression. Inside parentheses that is an error unless it closes
    # them, inside braces unless it closes those; no text but a complete expression does well in both.
    try:
        both = classad2.parseOne(f"x = ({expression})\ny = {{{expression}}}", classad2.Parser.Old)
    except ValueError:
        both = classad2.ClassAd()
    if len(both) != 2:
        return f"{_excerpt(expression)} is not one complete ClassAd expression"
    if "'" in expression:
        try:
            read_again(repr(both.lookup("x")))
        except AdError as error:
            return error.reason
    return ""


# Most expressions of an ad are those of many others: of a whole submit, or of every slot of a site.
@lru_cache(maxsize=512)
def _remembered(expression: str) -> tuple[int, str]:
    """The brackets that an expression opens, and what is wrong with it."""
    return _opened_in(expression), _found_problem(expression)


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def parse_expression(text: str) -> classad2.ExprTree:
    """One expression, as operators write it (new-syntax strings). Raises AdError where anything is left over."""
    problem = _structure_problem(text)
    if not problem and "\0" in text:
        problem = "a NUL character"
    if not problem:
        try:
            both = classad2.ClassAd(f"[x = ({text}\n); y = {{{text}\n}}]")
            if len(both) == 2:
                return classad2.ExprTree(f"{text}\n")
        except (classad2.ClassAdException, ValueError):
            pass
        problem = f"{_excerpt(text)} is not one complete ClassAd expression"
    raise AdError("", problem)


def parse_ad(text: str) -> tuple[classad2.ClassAd, str]:
    """An ad in old syntax (lines) or new syntax (``[ a = 1; … ]``), and its text without private attributes.

    Names are case-insensitive and the last of two equal names wins. Raises AdError for the first line at fault.
    """
    ad, shown, _ = parse_named(text)
    return whole(ad), shown


def parse_named(text: str, asked: frozenset[str] | None = None) -> tuple[Ad, str, frozenset[str]]:
    """As :func:`parse_ad`, with the names of all attributes in lower case. Where most of what will be looked at is
    ``asked`` (in lower case), the others are parsed when somebody asks for one of them."""
    if "\0" in text:
        raise AdError(_attribute_before(text[: text.index("\0")]), "a NUL character in an ad")
    if text.lstrip().startswith("["):
        ad, shown = _parse_new(text.strip())
        return ad, shown, lower_names(ad)
    lines = text.split("\n")
    names = _PLAIN_NAMES.findall(text)
    # The expression finds nothing once more at the end of a last line that is not empty.
    del names[len(lines) :]
    odd = frozenset(map(str.lower, _read_others(lines, names)))
    joined = "\n".join(names).lower()
    lowered = joined.split("\n") if names else []
    known = frozenset(lowered)
    # The parser takes every plain line, whatever stands beside it: those that are not have to be shown to it.
    plain = known if asked is None else (known & asked) - odd
    chosen = plain | odd
    seen = lines if asked is None else [line for line, name in zip(lines, lowered, strict=True) if name in chosen]
    # parseOne would copy each attribute once more, in Python, into an ad of several.
    try:
        part = classad2.parseNext("\n".join(seen), classad2.Parser.Old) if seen else classad2.ClassAd()
    except ValueError:
        part = None
    if part is None or len(part) != len(chosen):
        raise _first_lost(lines)
    found = part if asked is None else PartAd("\n".join(lines), known, part, plain)
    private = PRIVATE_ATTRIBUTES & known
    if _PRIVATE in joined:
        private |= {name for name in known if name.startswith(_PRIVATE)}
    if private:
        lines = [line for line, name in zip(lines, lowered, strict=True) if name not in private]
    lines.append("")
    return found, "\n".join(lines), known


def _read_others(lines: list[str], names: list[str]) -> list[str]:
    """Read the lines that are not plain, whose names are empty, and leave out those that have no attribute; returns the
    names of the others. Raises AdError for the first line at fault."""
    brackets = _Brackets()
    others = [place for place, name in enumerate(names) if not name]
    empty, found_names = list[int](), list[str]()
    for place in others:
        line = lines[place]
        found = _LINE.match(line)
        if found is None:
            bare = line.strip()
            if not bare or bare.startswith("#"):
                empty.append(place)
                continue
            reason = f"line {place + 1}, {_excerpt(bare)}, is not of the form 'Name = value'"
            raise AdError(_attribute_before(line), reason)
        name, expression = found.groups()
        expression = expression.strip()
        if not _OLD_LITERAL.fullmatch(expression):
            if len(expression) > MAX_REMEMBERED:
                brackets.open_in(name, expression)
                problem = _found_problem(expression)
            else:
                opened, problem = _remembered(expression)
                brackets.open(name, opened)
            if problem:
                raise AdError(name, problem)
        names[place], lines[place] = name, f"{name} = {expression}"
        found_names.append(name)
    if empty:
        gone = set(empty)
        lines[:] = [line for place, line in enumerate(lines) if place not in gone]
        names[:] = filter(None, names)
    return found_names


def attribute_lines(names: Iterable[str]) -> re.Pattern[str]:
    """The lines of these attributes in an ad's text, for :func:`plain_part`."""
    either = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf"\n((?:{either or '(?!)'}) = .*)", re.IGNORECASE | re.ASCII)


def plain_part(text: str, wanted: re.Pattern[str]) -> classad2.ClassAd | None:
    """The wanted attributes of an ad whose text :func:`parse_ad` has made; None where the whole ad is needed.

    That is where one of them is more than a literal, since it may refer to others, and in new syntax.
    """
    lines = wanted.findall(f"\n{text}")
    if text.startswith("[") or not all(map(_PLAIN_LINE.fullmatch, lines)):
        return None
    return classad2.parseNext("\n".join(lines), classad2.Parser.Old) if lines else classad2.ClassAd()


def name_part(text: str) -> str:
    """A text as a part of an attribute's name, with ``_`` for whatever such a name cannot have."""
    return _NO_NAME.sub("_", text)


def is_private(name: str) -> bool:
    """True for an attribute (in lower case) that HTCondor itself never shows."""
    return name in PRIVATE_ATTRIBUTES or name.startswith(_PRIVATE)


def _first_lost(lines: Iterable[str]) -> AdError:
    """The error of the first line that the parser does not take although it looks right."""
    for line in lines:
        name, _, expression = line.partition(" = ")
        try:
            if len(classad2.parseOne(line, classad2.Parser.Old)) == 1:
                continue
        except ValueError:
            pass
        return AdError(name, f"{_excerpt(expression)} is not a ClassAd expression")
    return AdError("", "the ad cannot be parsed as a whole")


def _attribute_before(text: str) -> str:
    """The attribute that the last line of ``text`` belongs to, where it can be determined."""
    line = text[text.rfind("\n") + 1 :]
    found = re.match(r'[\s\[{"]*([A-Za-z_][A-Za-z0-9_.]*)"?\s*[=:]', line)
    if found:
        return found.group(1)
    return ""


def attribute_at(body: bytes, offset: int) -> str:
    """The attribute in whose value byte ``offset`` of a posted body lies, ``""`` where it cannot be determined."""
    before = body[:offset].decode("latin-1")
    members = re.findall(r'"([A-Za-z_][A-Za-z0-9_.]*)"\s*:\s*"[^"]*$', before[-4096:])
    return members[-1] if members else _attribute_before(before)


def _parse_new(text: str) -> tuple[classad2.ClassAd, str]:
    problem = _structure_problem_of_record(text)
    if problem:
        raise AdError("", problem)
    try:
        both = classad2.ClassAd(f"[x = ({text}\n); y = {{{text}\n}}]")
        ad = classad2.ClassAd(text)
    except (classad2.ClassAdException, ValueError):
        both = ad = classad2.ClassAd()
    if len(both) != 2:
        raise AdError("", f"not one complete ad in new syntax, '[ Name = value; … ]'; it begins {_excerpt(text)}")
    return _checked(ad)


def _structure_problem_of_record(text: str) -> str:
    """As :func:`_structure_problem`, for a whole record: its attributes are what stands between semicolons."""
    bare = without_strings(text)
    longest = deepest = depth = start = 0
    for place, character in enumerate(bare):
        if character == ";" and depth <= 1:
            longest, start = max(longest, place - start), place + 1
        else:
            depth += (character in "([{") - (character in ")]}")
            deepest = max(deepest, depth)
    longest = max(longest, len(bare) - start)
    if longest > MAX_EXPRESSION:
        return f"an expression of {longest} characters outside strings; at most {MAX_EXPRESSION} are accepted"
    if deepest > MAX_DEPTH:
        return f"nested too deeply; at most {MAX_DEPTH} levels are accepted"
    if _opened(bare) > MAX_BRACKETS:
        return f"the ad opens more than {MAX_BRACKETS} brackets"
    return _long_number_problem(bare)


def _checked(ad: classad2.ClassAd) -> tuple[classad2.ClassAd, str]:
    """An ad from new syntax or JSON, its names checked, and text that reads back to the same."""
    for name in list(ad.keys()):
        if not _NAME.fullmatch(name):
            raise AdError(name, "not an attribute name: letters, digits, '_' and '.' are accepted")
        if is_private(name.lower()):
            del ad[name]
    strange = not_text(ad)
    if strange:
        raise AdError(strange[0], "its escapes make something other than UTF-8")
    text = ad_text(ad)
    _check_reads_back(text, len(ad))
    return ad, text


def _check_reads_back(text: str, count: int) -> None:
    """Raise AdError where :func:`parse_ad` would refuse the text of an ad of ``count`` attributes.

    The limits for ads in JSON are not quite the same, and HTCondor writes a quoted name behind a dot without quotes.
    """
    if text.startswith("["):
        problem = _structure_problem_of_record(text)
        if not problem and not _is_ad_of(text, count):
            problem = UNQUOTED
        if problem:
            raise AdError("", problem)
        return
    for line in text.split("\n"):
        name, _, expression = line.partition(" = ")
        problem = "" if not line or _OLD_LITERAL.fullmatch(expression) else _old_expression_problem(expression)
        if problem:
            raise AdError(name, problem)


def _is_ad_of(text: str, count: int) -> bool:
    """True for the whole text of an ad of so many attributes; in it, none stands twice."""
    try:
        again = classad2.ClassAd(text)
    except classad2.ClassAdException:
        return False
    # Of two signs in a row HTCondor's text loses the blank between them.
    return len(again) == count and len(repr(again).replace(" ", "")) == len(text.replace(" ", ""))


def ad_text(ad: classad2.ClassAd) -> str:
    """An ad as text that :func:`parse_ad` reads: old syntax, or new where old cannot say it.

    That is a line break inside a string, and a name that needs quotes (``'a.b'``, ``'true'``).
    """
    old = str(ad.printOld())
    lines = old.split("\n")
    return old if len(lines) == len(ad) + 1 and not any(line.startswith("'") for line in lines) else repr(ad)


def not_text(ad: classad2.ClassAd) -> list[str]:
    """The attributes that cannot be shown as text, since a string in them is not UTF-8."""
    if _is_text(ad):
        return []
    return [str(name) for name in list(ad.keys()) if not _is_text(classad2.ClassAd({name: ad.lookup(name)}))]


def _is_text(ad: classad2.ClassAd) -> bool:
    try:
        ad.printOld()
    except UnicodeDecodeError:
        return False
    return True


def from_json(members: Mapping[str, Any]) -> tuple[classad2.ClassAd, str]:
    """An ad from a JSON object: JSON values, and ``"/Expr(…)/"`` for expressions, as HTCondor prints them.

    Raises AdError naming the member at fault.
    """
    ad = classad2.ClassAd()
    brackets = _Brackets()
    for name, value in members.items():
        if not _NAME.fullmatch(name):
            raise AdError(_printable(name), "not an attribute name: letters, digits, '_' and '.' are accepted")
        ad[name] = _json_value(name, value, 0, brackets)
    return _checked(ad)


def _printable(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()[:60]


def _json_value(name: str, value: Any, depth: int, brackets: _Brackets) -> Any:
    if depth > MAX_DEPTH:
        raise AdError(name, f"nested too deeply; at most {MAX_DEPTH} levels are accepted")
    if isinstance(value, str):
        # A lone surrogate crashes the bindings; a NUL ends a C string.
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise AdError(name, "a NUL or half a surrogate pair in a string")
        expression = _EXPR_JSON.fullmatch(value)
        if expression is None:
            return value
        brackets.open_in(name, expression.group(1))
        try:
            return parse_expression(expression.group(1))
        except AdError as error:
            raise AdError(name, error.reason) from None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise AdError(name, "an integer of more than 64 bits")
        return value
    if isinstance(value, float):
        return value
    brackets.open(name)
    if isinstance(value, list):
        return [_json_value(name, item, depth + 1, brackets) for item in value]
    record = classad2.ClassAd()
    for key, item in value.items():
        if not _NAME.fullmatch(key):
            raise AdError(name, "a nested name that is not one: letters, digits, '_' and '.' are accepted")
        record[key] = _json_value(name, item, depth + 1, brackets)
    return record


def literal(value: Any) -> str:
    """A value as ClassAd text in new syntax; records and lists with their own text."""
    if value is None or value is classad2.Value.Undefined:
        return "undefined"
    if value is classad2.Value.Error:
        return "error"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(classad2.quote(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if value - value == 0 else f'real("{value}")'
    if isinstance(value, datetime):
        if value == _UNREADABLE:
            return "absTime(-1)"
        return f'absTime("{value.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")'
    if isinstance(value, list):
        return "{" + ", ".join(literal(item) for item in value) + "}"
    return " ".join(repr(value).split("\n")).strip()
