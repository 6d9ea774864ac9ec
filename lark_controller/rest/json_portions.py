"""Answers in JSON, written in portions: Python's encoder keeps the interpreter to itself until its text is whole, for a
long list many milliseconds, in which nothing else of the controller goes on."""

from __future__ import annotations

import json
from typing import Any

from flask.json.provider import DefaultJSONProvider

from lark_common.turns import by_portions


class PortionedJson(DefaultJSONProvider):
    """Flask's JSON, with the entries of an object's lists written one by one."""

    # Problem documents are the only errors; sorting keys would cost a hundredth of every answer for nothing.
    sort_keys = False

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """As of the base class; the text is the same."""
        if (
            not isinstance(obj, dict)
            or kwargs.get("indent")
            or not any(isinstance(each, list) for each in obj.values())
        ):
            return super().dumps(obj, **kwargs)
        options = {"default": self.default, "ensure_ascii": self.ensure_ascii, "sort_keys": self.sort_keys, **kwargs}
        encoder = json.JSONEncoder(**options)
        comma, colon = encoder.item_separator, encoder.key_separator

        def written(value: Any) -> str:
            if not isinstance(value, list):
                return encoder.encode(value)
            return f"[{comma.join(encoder.encode(each) for each in by_portions(value))}]"

        return f"{{{comma.join(f'{encoder.encode(name)}{colon}{written(value)}' for name, value in obj.items())}}}"
