"""Requests are parsed in time that grows with their length alone, whatever stands in them: :class:`RequestParser`.

Everybody who reaches the port can have a request parsed, by the one thread that serves all connections, and a regular
expression keeps the interpreter to itself until it is through: 32 kB of blanks before a field's value took waitress's
own four seconds. What has the form that those expressions are quick with is left to waitress, and all else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest

# Fields of a head. Each that is there twice is put behind the first, which is copied for that.
FIELDS: Final = 128
# Bytes of a chunked body beside what it carries, in lengths, extensions and trailers: so many, and so small a part of
# what it carries. A chunk has five to ten.
CHUNK_OVERHEAD: Final = 4096
CHUNK_PART: Final = 64
# waitress copies what is left of a portion for each chunk in it.
_PORTION: Final = 1024
_END: Final = b"\r\n\r\n"
_LINE: Final = b"\r\n"
_BLANKS: Final = b" \t"
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_ENCODING: Final = re.compile(rb"(?:\A|\r\n)transfer-encoding:([^\r]*)", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"(?:\A|\r\n)content-length:", re.IGNORECASE)


class RequestParser(HTTPRequestParser):  # type: ignore[misc]  # waitress publishes no types, so its class is Any
    """A request as it arrives."""

    completed: bool
    error: Any

    def __init__(self, adj: Any) -> None:
        super().__init__(adj)
        self._head = bytearray()

    def received(self, data: bytes) -> int:
        """Take in more; returns how many bytes were this request's."""
        if self.completed:
            return 0
        if self.body_rcv is None:
            return self._head_received(data)
        return self._chunks_received(data) if self.chunked else int(super().received(data))

    def _head_received(self, data: bytes) -> int:
        """Give waitress the head once it is there: it looks through the whole of it again for every piece."""
        # Empty lines before a request are skipped (RFC 9112, section 2.2), all of them at once.
        rest = data if self._head else data.lstrip(_LINE)
        known, empty = len(self._head), len(data) - len(rest)
        self._head += rest
        ended = self._head.find(_END, max(0, known - len(_END) + 1)) >= 0
        if not ended and len(self._head) < self.adj.max_request_header_size:
            return len(data)
        self.header_plus, self.header_bytes_received = bytes(self._head[:known]), known
        self._head.clear()
        return empty + int(super().received(rest))

    def _chunks_received(self, data: bytes) -> int:
        taken = 0
        while taken < len(data) and not self.completed:
            taken += super().received(data[taken : taken + _PORTION])
            carried = len(self.body_rcv)
            if self.error is None and self.body_bytes_received - carried > CHUNK_OVERHEAD + carried // CHUNK_PART:
                self.error = BadRequest("the chunks of the body are too small")
                self.completed = True
        # Nothing is looked for behind a body that is broken.
        return taken if self.error is None else len(data)

    def parse_header(self, header_plus: bytes) -> None:
        """Read the head. Raises ParsingError, TransferEncodingNotImplemented."""
        first, _, fields = header_plus.partition(_LINE)
        _check_first_line(first)
        encodings = _ENCODING.findall(fields)
        if encodings:
            _check_encodings(first, fields, encodings)
        try:
            super().parse_header(first + _LINE + _without_blanks(fields))
        except ValueError:
            # Of a target that is no URL, and of a length with thousands of digits.
            raise ParsingError("The target or a length cannot be read") from None
        if encodings and not self.chunked:
            raise ParsingError("Transfer-Encoding without an encoding")


class Unread:
    """The parser of what a connection sends beyond the requests that are taken in: nobody looks at it."""

    completed = empty = True
    expect_continue = False

    def received(self, data: bytes) -> int:
        """All of it."""
        return len(data)


def _check_first_line(line: bytes) -> None:
    """Raises ParsingError for a line that is not method, target and version, or without the last."""
    words = line.rstrip().split(b" ")
    known = len(words) == 2 or (len(words) == 3 and _VERSION.fullmatch(words[2]))
    if not known or not all(words):
        raise ParsingError("The first line is not a method, a target and a version")


def _check_encodings(line: bytes, fields: bytes, encodings: Sequence[bytes]) -> None:
    """Raises ParsingError for a body whose end a proxy on the way may find elsewhere (RFC 9112, section 6.1): what is
    behind it would be the next request to one of the two, with the token of whoever sends that."""
    if not line.rstrip().endswith(b" HTTP/1.1"):
        raise ParsingError("Transfer-Encoding needs HTTP/1.1")
    if _LENGTH.search(fields):
        raise ParsingError("Content-Length beside Transfer-Encoding")
    if b",".join(encodings).lower().count(b"chunked") > 1:
        raise ParsingError("Transfer-Encoding names chunked twice")


def _without_blanks(fields: bytes) -> bytes:
    """The fields without the blanks around their values. Raises ParsingError for too many, and for folded lines, which
    a server may refuse (RFC 9112, section 5.2)."""
    # The head's end is an empty line.
    if fields.count(_LINE) - 1 > FIELDS:
        raise ParsingError(f"The head has more than {FIELDS} fields")
    if b"  " not in fields and b"\t" not in fields and b"\r\n " not in fields and fields[:1] != b" ":
        # As of most clients: one blank does not keep waitress's expression busy.
        return fields
    found = []
    for line in fields.split(_LINE):
        if line[:1] and line[:1] in _BLANKS:
            raise ParsingError("A field is folded over several lines")
        name, colon, value = line.partition(b":")
        found.append(name + colon + value.strip(_BLANKS))
    return _LINE.join(found)
