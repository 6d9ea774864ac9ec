"""Reads JSON values out of a stream of text, at the speed of the standard library's decoder.

The ``ovs`` library has a parser of its own, which takes one character after the other in Python unless it was compiled
with Open vSwitch's headers: three quarters of the time that it takes to connect a switch's database. This one has the
same methods.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

# A string, or what there is of it where its end has not come yet.
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|(\\?)\Z)', re.DOTALL)
# Between values inside an array or an object there is a comma.
_NEXT: Final = re.compile(r"[}\]]\s*[{\[]")
# The longest value that is read: a database has tens of thousands of queues, of some hundred characters each, a hostile
# one no end. The decoder lets no other thread run meanwhile.
_MOST: Final = 16 << 20
# Arrays and objects in it (an empty one takes thirty times the memory of its text), and all values.
_MOST_OPENED: Final = 1 << 20
_MOST_VALUES: Final = 1 << 21
_DECODER: Final = json.JSONDecoder()


class Parser:
    """One JSON array or object, which comes in pieces; what follows it is left alone (RFC 7047, section 4)."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._depth = 0
        self._opened = 0
        self._commas = 0
        # The beginning of a string without its end: a quotation mark, and the backslash that came last.
        self._open = ""
        self._value: Any = None
        self._done = False

    @property
    def waiting(self) -> int:
        """The characters of a value whose end has not come."""
        return 0 if self._done else self._length

    def feed(self, text: str) -> int:
        """Take the next piece; returns the number of its characters that belong to the value (or stand before it)."""
        if not self._pieces:
            stripped = text.lstrip()
            if not stripped:
                return len(text)
            skipped, text = len(text) - len(stripped), stripped
        else:
            skipped = 0
        before = self._length
        self._pieces.append(text)
        self._length += len(text)
        complete = self._complete(text)
        if beyond := self._beyond():
            self._pieces.clear()
            self._done = True
            self._value = f"more than {beyond} in one value"
        if self._done or not complete:
            return skipped + len(text)
        self._done = True
        whole = "".join(self._pieces)
        self._pieces.clear()
        try:
            if whole[0] not in "{[":
                raise ValueError("neither an object nor an array")
            value, end = _DECODER.raw_decode(whole)
            if end < before:
                raise ValueError("what follows it is neither an object nor an array")
            self._value = value
        except (ValueError, RecursionError) as error:
            self._value, end = f"no JSON: {error}", len(whole)
        return skipped + end - before

    def is_done(self) -> bool:
        """True if the value is whole, or cannot become one."""
        return self._done

    def finish(self) -> Any:
        """The value; a text with the reason why there is none."""
        return self._value if self._done else "the stream ends within a value"

    def _beyond(self) -> str:
        """The bound that the value exceeds; ``""`` where it exceeds none."""
        bounds = (
            (self._length, _MOST, "characters"),
            (self._opened, _MOST_OPENED, "arrays and objects"),
            (self._commas, _MOST_VALUES, "values"),
        )
        return next((f"{most} {what}" for count, most, what in bounds if count > most), "")

    def _complete(self, text: str) -> bool:
        """True if the value ends within this piece, so that what has come is decoded once and no more."""
        rest = ""

        def left_out(found: re.Match[str]) -> str:
            nonlocal rest
            if found[1] is not None:
                rest = '"' + found[1]
            return ""

        outside = _STRING.sub(left_out, self._open + text)
        self._open = rest
        opened, closed = (outside.count(one) + outside.count(other) for one, other in ("{[", "}]"))
        self._depth += opened - closed
        self._opened += opened
        self._commas += outside.count(",")
        return (self._depth <= 0 and not self._open) or _NEXT.search(outside) is not None
