"""HTCondor's own text of an expression: its parts, and whether it stands for the same expression.

It is the ``repr`` of an ExprTree (``str`` adds blanks, as many as the square of its depth), and has no comments.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import classad2

from lark_common.errors import AdError

# The reason against an expression that HTCondor writes as another one.
UNQUOTED: Final = "has a quoted name behind a dot; accepted there are letters, digits and '_', and no word as true"
_TOKEN: Final = re.compile(
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+")|([A-Za-z_][A-Za-z0-9_]*+|\'[^\'\\]*+(?:\\.[^\'\\]*+)*+\')|'
    r"([0-9][A-Za-z0-9_.]*+)|\s++|(.)",
    re.DOTALL,
)


class Token(NamedTuple):
    """A part of an expression's text. ``kind``: ``string``, ``name``, ``number``, or the sign itself."""

    kind: str
    text: str
    start: int


def tokens(text: str) -> list[Token]:
    """The parts of an expression in HTCondor's own text of it, without blanks."""
    kinds = (None, "string", "name", "number", None)
    return [
        Token(kinds[found.lastindex] or found.group(), found.group(), found.start())
        for found in _TOKEN.finditer(text)
        if found.lastindex is not None
    ]


def read_again(text: str, name: str = "") -> classad2.ExprTree:
    """The expression that HTCondor's own text of one stands for. Raises AdError where that is another text.

    Behind a dot HTCondor writes a name without its quotes, whatever it has in it. With ``; Owner = "root"`` in it, the
    text of an ad would have another owner; with quotes or comments of their own, two such names hide all that stands
    between them; and the name ``true`` is then none.
    """
    try:
        tree = classad2.ExprTree(text)
        again = repr(tree)
    except (classad2.ClassAdException, UnicodeDecodeError):
        tree, again = None, ""
    # Not by text alone, since of two signs in a row the blank between them gets lost.
    if again != text and [part.text for part in tokens(again)] != [part.text for part in tokens(text)]:
        raise AdError(name, UNQUOTED)
    return tree
