"""Answers in JSON, written in portions: Python's encoder keeps the interpreter to itself until its text is whole, for a
long list many milliseconds, in which nothing else of the controller goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from flask.json.provider import DefaultJSONProvider

from lark_common.turns import by_portions

# Entries that are written at once: the encoder takes longer to begin than for most of them.
_AT_ONCE: Final = 16


def listed(values: Iterable[object], encode: Callable[[object], str], comma: str) -> str:
    """The entries of a list in JSON, without its brackets."""
    rest = iter(values)
    return comma.join(encode(some)[1:-1] for some in iter(lambda: list(islice(rest, _AT_ONCE)), []))


class PortionedJson(DefaultJSONProvider):
    """Flask's JSON, with the entries of an object's lists written one by one."""

    # Problem documents are the only errors; sorting keys would cost a hundredth of every answer for nothing.
    sort_keys = False

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """As of the base class; the text is the same."""
        if (
            not isinstance(obj, dict)
            or kwargs.get("indent")
            or not any(isinstance(each, list) and len(each) > _AT_ONCE for each in obj.values())
        ):
            return super().dumps(obj, **kwargs)
        options = {"default": self.default, "ensure_ascii": self.ensure_ascii, "sort_keys": self.sort_keys, **kwargs}
        encoder = json.JSONEncoder(**options)
        comma, colon = encoder.item_separator, encoder.key_separator

        def written(value: Any) -> str:
            if not isinstance(value, list):
                return encoder.encode(value)
            return f"[{listed(by_portions(value), encoder.encode, comma)}]"

        return f"{{{comma.join(f'{encoder.encode(name)}{colon}{written(value)}' for name, value in obj.items())}}}"
