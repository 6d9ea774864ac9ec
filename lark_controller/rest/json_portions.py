"""Answers in JSON, written in portions: Python's encoder keeps the interpreter to itself until its text is whole, for a
long list many milliseconds, in which nothing else of the controller goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from flask import Response
from werkzeug.datastructures import Headers

from lark_common.turns import by_portions

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Entries that are written at once: the encoder takes longer to begin than for most of them.
_AT_ONCE: Final = 16
# Made once: json.dumps makes an encoder for each text.
encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def listed(values: Iterable[object]) -> str:
    """The entries of a list in JSON, without its brackets."""
    rest = iter(values)
    return ",".join(encode(some)[1:-1] for some in iter(lambda: list(islice(rest, _AT_ONCE)), []))


def text(members: Mapping[str, object]) -> str:
    """An object in JSON, with the entries of its long lists in portions."""
    for each in members.values():
        if type(each) is list and len(each) > _AT_ONCE:
            return f"{{{','.join(f'{encode(name)}:{_value(value)}' for name, value in members.items())}}}"
    return encode(members)


def _value(value: object) -> str:
    return f"[{listed(by_portions(value))}]" if isinstance(value, list) else encode(value)


class _Written(Response):
    """An answer whose headers are sent as they are: its length is known, and its location is a path in ASCII."""

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:
        """As of a response; Flask would parse and put together the location, and copy all headers."""
        return self.headers


def answer(body: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of a text in JSON."""
    return _Written(f"{body}\n", status, headers, content_type="application/json")


def written(members: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return answer(text(members), status, headers)
