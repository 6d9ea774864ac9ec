"""Regular expressions of predicates, matched by RE2, whose time is linear in the text that it looks at.

HTCondor's own engine (PCRE) can take for ever. So the calls of ``regexp``, ``regexps`` and ``regexpMember`` are taken
out of an expression before HTCondor evaluates it; an attribute of the small ad that holds the facts stands in the place
of each. The pattern must be a string, so that it is checked when the policy is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import classad2

from lark_common.classads.written import Token, tokens
from lark_common.errors import AdError

FUNCTIONS: Final = frozenset({"regexp", "regexps", "regexpmember"})
MAX_CALLS: Final = 16
MAX_PATTERN: Final = 512
# RE2's worst is the product of its program and the text, some 80 ms for these two; common patterns take microseconds.
MAX_PROGRAM: Final = 500
MAX_TEXT: Final = 4096
_OPTIONS: Final = frozenset("ims")


class Call(NamedTuple):
    """One call: ``attribute`` stands for it in the expression; ``template`` is what regexps makes of a match."""

    attribute: str
    of_list: bool
    pattern: Any
    subject: classad2.ExprTree
    template: tuple[str | int, ...] | None


def without_calls(text: str) -> tuple[str, tuple[Call, ...]]:
    """An expression in HTCondor's own text, attributes in the place of its calls, and the calls in order.

    Raises AdError for a call that cannot be made.
    """
    calls: list[Call] = []
    while True:
        parts = tokens(text)
        # The last one has no other in its arguments.
        place = max((place for place in range(len(parts)) if _begins_call(parts, place)), default=-1)
        if place < 0:
            return text, tuple(calls)
        if len(calls) == MAX_CALLS:
            raise AdError("", f"more than {MAX_CALLS} regular expressions in one expression")
        arguments, end = _arguments(text, parts, place + 2)
        # No attribute of an ad has such a name.
        attribute = f"regexp {len(calls)}"
        calls.append(_call(attribute, parts[place].text.strip("'"), arguments))
        text = f"{text[: parts[place].start]}MY.'{attribute}'{text[end:]}"


def _begins_call(parts: list[Token], place: int) -> bool:
    part = parts[place]
    follows = parts[place + 1].kind if place + 1 < len(parts) else ""
    return part.kind == "name" and follows == "(" and part.text.strip("'").lower() in FUNCTIONS


def _arguments(text: str, parts: list[Token], first: int) -> tuple[list[str], int]:
    """The arguments of a call that begin at part ``first``, and where the text goes on behind it."""
    arguments = []
    depth, start = 0, parts[first].start
    for part in parts[first:]:
        if depth == 0 and part.kind in (",", ")"):
            arguments.append(text[start : part.start].strip())
            start = part.start + 1
            if part.kind == ")":
                return arguments, start
        depth += (part.kind in ("(", "[", "{")) - (part.kind in (")", "]", "}"))
    # HTCondor's own text has as many brackets that close as that open.
    raise AssertionError(text)


def _call(attribute: str, name: str, arguments: list[str]) -> Call:
    substitutes = name.lower() == "regexps"
    least = 3 if substitutes else 2
    if not least <= len(arguments) <= least + 1:
        raise AdError("", f"{name}() with {len(arguments)} arguments; {least} or {least + 1} are accepted")
    pattern = _string(name, "pattern", arguments[0])
    options = _string(name, "options", arguments[least]) if len(arguments) > least else ""
    if not set(options) <= _OPTIONS:
        raise AdError("", f"options {options[:20]!r} of {name}(); i, m and s are accepted")
    template = _template(name, _string(name, "substitute", arguments[2])) if substitutes else None
    compiled = _compiled(name, pattern, options, template)
    return Call(attribute, name.lower() == "regexpmember", compiled, classad2.ExprTree(arguments[1]), template)


def _string(name: str, what: str, argument: str) -> str:
    parts = tokens(argument)
    value = classad2.ExprTree(argument).eval() if len(parts) == 1 and parts[0].kind == "string" else None
    if not isinstance(value, str):
        raise AdError("", f"the {what} of {name}() is an expression; a string is accepted, so that it can be checked")
    return value


def _compiled(name: str, pattern: str, options: str, template: tuple[str | int, ...] | None) -> Any:
    # Only who matches by regular expressions needs RE2.
    import re2

    if len(pattern) > MAX_PATTERN:
        raise AdError("", f"a pattern of {len(pattern)} characters in {name}(); at most {MAX_PATTERN} are accepted")
    settings = re2.Options()
    settings.log_errors = False
    settings.never_capture = template is None
    try:
        found = re2.compile(f"(?{options}){pattern}" if options else pattern, settings)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else str(error)
        raise AdError(
            "", f"the pattern {pattern[:60]!r} of {name}(): {reason}; accepted is RE2's syntax: no \\1, no (?=…)"
        ) from None
    if found.programsize > MAX_PROGRAM:
        raise AdError("", f"the pattern {pattern[:60]!r} of {name}() repeats too much; smaller counts are accepted")
    for part in template or ():
        if isinstance(part, int) and part > found.groups:
            raise AdError("", f"\\{part} in the substitute of {name}(): the pattern has {found.groups} groups")
    return found


def _template(name: str, substitute: str) -> tuple[str | int, ...]:
    r"""The substitute of regexps in parts; an integer is a group (``\1``), 0 the whole match."""
    parts: list[str | int] = []
    pieces = substitute.split("\\")
    for place, piece in enumerate(pieces):
        if place == 0:
            parts.append(piece)
        elif piece[:1].isascii() and piece[:1].isdigit():
            parts += [int(piece[0]), piece[1:]]
        else:
            parts.append("\\" + piece)
    if sum(isinstance(part, int) for part in parts) > MAX_CALLS:
        raise AdError("", f"more than {MAX_CALLS} groups in the substitute of {name}()")
    return tuple(parts)


def result(call: Call, subject: Any, step: Callable[[], None] = lambda: None) -> Any:
    """The result of a call for the value of its second argument, as HTCondor's function of that name gives it; ``step``
    is called for each item of a list."""
    if subject is classad2.Value.Undefined:
        return subject
    if call.of_list:
        if not isinstance(subject, list):
            return classad2.Value.Error
        for item in subject:
            step()
            if (one := _match(call, item)) is not False:
                return one
        return False
    return _match(call, subject)


def _match(call: Call, subject: Any) -> Any:
    if subject is classad2.Value.Undefined:
        return subject
    if not isinstance(subject, str) or len(subject) > MAX_TEXT:
        return classad2.Value.Error
    found = call.pattern.search(subject)
    if call.template is None:
        return found is not None
    if found is None:
        return ""
    return "".join(part if isinstance(part, str) else found.group(part) or "" for part in call.template)
