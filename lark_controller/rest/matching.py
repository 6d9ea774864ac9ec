"""Routes found without garbage.

werkzeug's matcher makes a function for each request that refers to itself. A collection alone frees such garbage, and
stops every thread while it looks at all that has come since the one before. Where a path leads to a rule, that is found
here by werkzeug's own table of states; what is refused or redirected is left to werkzeug.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import Any

from werkzeug.routing import Map, Rule, RuleFactory
from werkzeug.routing.matcher import State, StateMachineMatcher

# A rule with the values of its variables.
_Found = tuple[Rule, tuple[str, ...]]


class _LeftToWerkzeugError(Exception):
    """The path may lead to a redirect, or a variable may be more than one whole part of it."""


class _Matcher(StateMachineMatcher):
    def match(self, domain: str, path: str, method: str, websocket: bool) -> tuple[Rule, MutableMapping[str, Any]]:
        """As werkzeug's."""
        try:
            found = None if websocket else _found(self._root, (domain, *path.split("/")), 0, (), method)
        except _LeftToWerkzeugError:
            found = None
        if found is None or found[0].alias or found[0].defaults:
            return super().match(domain, path, method, websocket)
        rule, values = found
        converted = zip(rule._converters.items(), values, strict=True)
        try:
            return rule, {name: converter.to_python(value) for (name, converter), value in converted}
        except ValueError:
            return super().match(domain, path, method, websocket)


class Routes(Map):
    """The application's routes."""

    def __init__(self, rules: Iterable[RuleFactory] = (), **options: Any) -> None:
        super().__init__(**options)
        self._matcher = _Matcher(self.merge_slashes)
        for each in rules:
            self.add(each)


def _found(state: State, parts: tuple[str, ...], place: int, values: tuple[str, ...], method: str) -> _Found | None:
    """The rule to which a path leads from a state on, in werkzeug's order. Raises _LeftToWerkzeugError."""
    if place == len(parts):
        for rule in state.rules:
            if (rule.methods is None or method in rule.methods) and not rule.websocket:
                return rule, values
        if "" in state.static:
            raise _LeftToWerkzeugError
        return None
    part = parts[place]
    then = state.static.get(part)
    if then is not None and (found := _found(then, parts, place + 1, values, method)) is not None:
        return found
    for test, then in state.dynamic:
        expression = re.compile(test.content)
        if test.final or expression.groups != 1:
            raise _LeftToWerkzeugError
        matched = expression.match(part)
        if matched is not None:
            found = _found(then, parts, place + 1, (*values, matched[1]), method)
            if found is not None:
                return found
    if not part and place == len(parts) - 1 and state.rules:
        raise _LeftToWerkzeugError
    return None
