"""The form of an answer that a request accepts: :func:`preferred`.

werkzeug's own takes the square of a header's length for blanks in it: four seconds for 32 kB, in which nothing else
goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flask import request

# Characters of a weight (RFC 9110, section 12.4.2).
_WEIGHT: Final = 5


def preferred(offers: tuple[str, ...]) -> str:
    """The media type of these that the request's Accept header gives most weight; the first of those with the same, and
    of all where it accepts none."""
    header = request.headers.get("Accept", "*/*")
    if header == "*/*":
        return offers[0]
    found: dict[str, float] = {}
    for media, weight in _ranges(header):
        found[media] = max(weight, found.get(media, 0.0))

    def rank(offer: str) -> tuple[float, int]:
        # The range that names it best decides, also where another has more weight.
        ranges = enumerate((offer, f"{offer.partition('/')[0]}/*", "*/*"))
        return next(((found[each], -place) for place, each in ranges if each in found), (0.0, 0))

    best = max(offers, key=rank)
    return best if rank(best)[0] > 0 else offers[0]


def _ranges(header: str) -> Iterator[tuple[str, float]]:
    """The media types of an Accept header with their weights; what is none is left out."""
    for part in header.split(","):
        media, *parameters = part.split(";")
        weight = 1.0
        for each in parameters:
            name, _, value = each.partition("=")
            if name.strip().lower() == "q":
                weight = _weight(value.strip())
        if media := media.strip().lower():
            yield media, weight


def _weight(text: str) -> float:
    """A weight from 0 to 1; 0 for what is none."""
    digits = text.replace(".", "", 1)
    return min(1.0, float(text)) if len(text) <= _WEIGHT and digits.isascii() and digits.isdigit() else 0.0
