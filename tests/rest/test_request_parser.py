"""A stranger's request costs no more than linear in its length; requests are read as waitress does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waitress.adjustments import Adjustments
from waitress.parser import HTTPRequestParser

from lark_controller.rest.server.request_parser import CHUNK_OVERHEAD, FIELDS, RequestParser
from lark_controller.rest.server.waitress_server import HEADER_BYTES
from tests.fixtures.work import assert_linear

LIMITS = Adjustments(max_request_header_size=HEADER_BYTES, max_request_body_size=1 << 22)
# Eight times as much is nearly all that a head may have.
HEAD = 4_000
# Eight times as much is what is read from a connection with TLS at once.
BODY = 8_000
BEGIN = b"GET /healthz HTTP/1.1\r\n"
CHUNKED = b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"

HEADS: dict[str, Callable[[int], bytes]] = {
    "blanks before a value that is none": lambda size: BEGIN + b"a:" + b" " * size + b"\0",
    "tabs before a value that is none": lambda size: BEGIN + b"a:" + b"\t" * size + b"\x7f",
    "blanks in a value that is none": lambda size: BEGIN + b"a: x" + b" " * size + b"\0",
    "words in a value that is none": lambda size: BEGIN + b"a: " + b"x " * (size // 2) + b"\0",
    "blanks on a line of their own": lambda size: BEGIN + b"a:\r\n" + b" " * size + b"\0",
    "a folded field": lambda size: BEGIN + b"a: b\r\n" + b" c\r\n" * (size // 4),
    "a field again and again": lambda size: BEGIN + b"a:\r\n" * (size // 4),
    "fields": lambda size: BEGIN + b"".join(b"a%d:\r\n" % number for number in range(size // 7)),
    "a long name": lambda size: BEGIN + b"a" * size,
    "colons": lambda size: BEGIN + b":" * size,
    "a target like a URL with more behind it": lambda size: b"GET a://" + b"b" * size + b" c d",
    "a target of digits with more behind it": lambda size: b"GET a://" + b"1" * size + b" c d",
    "a target with slashes": lambda size: b"GET " + b"a://" * (size // 4) + b" HTTP/1.1",
    "a target with brackets": lambda size: b"GET http://" + b"[" * size + b" HTTP/1.1",
    "a long method": lambda size: b"G" * size + b" / HTTP/1.1",
    "words in the first line": lambda size: b"GET " * (size // 4),
    "a long length": lambda size: BEGIN + b"Content-Length: " + b"1" * size,
    "codings": lambda size: BEGIN + b"Transfer-Encoding: " + b"chunked," * (size // 8),
}
BODIES: dict[str, Callable[[int], bytes]] = {
    "chunks of a byte": lambda size: b"1\r\na\r\n" * (size // 6),
    "empty lines between chunks": lambda size: b"\r\n" * (size // 2),
    "a length without end": lambda size: b"0" * size,
    "an extension without end": lambda size: b"1;" + b"a=b;" * (size // 4),
    "an extension that is none": lambda size: b"1" + b';a="' * (size // 4) + b"\r\n",
    "a trailer without end": lambda size: b"0\r\n" + b"a: b\r\n" * (size // 6),
}


def requests_of(pieces: Iterator[bytes] | list[bytes], kind: type[Any] = RequestParser) -> list[Any]:
    """The requests in some pieces of a connection, as waitress's own connections take them in."""
    found, request = [], None
    for piece in pieces:
        rest = piece
        while rest:
            request = request or kind(LIMITS)
            taken = request.received(rest)
            if request.completed:
                found += [] if request.empty else [request]
                request = None
            if taken >= len(rest):
                break
            rest = rest[taken:]
    return found


@pytest.mark.parametrize("shape", HEADS)
def test_a_head_costs_no_more_than_linear(shape: str) -> None:
    assert_linear(lambda head: requests_of([head]), lambda size: HEADS[shape](size) + b"\r\n\r\n", HEAD)


@pytest.mark.parametrize("shape", BODIES)
def test_a_chunked_body_costs_no_more_than_linear(shape: str) -> None:
    assert_linear(lambda body: requests_of([CHUNKED, body]), BODIES[shape], BODY)


def test_a_head_in_pieces_and_lines_without_a_request_cost_no_more_than_linear() -> None:
    def pieces(size: int) -> list[bytes]:
        return [bytes([byte]) for byte in BEGIN + b"a: " + b"b" * size + b"\r\n\r\n"]

    assert_linear(requests_of, pieces, HEAD)
    assert_linear(requests_of, lambda size: [b"\r\n" * (size // 2)], BODY)


def status(data: bytes) -> int | None:
    """The status with which a request is refused; None where it is not."""
    (request,) = requests_of([data])
    return None if request.error is None else int(request.error.code)


@pytest.mark.parametrize(
    "head",
    [
        b"GET",
        b"GET ",
        b"GET  HTTP/1.1",
        b"GET / HTTP/1.1 x",
        b"GET / HTTPS/1.1",
        b"get / HTTP/1.1",
        b"GET http://[ HTTP/1.1",
        b"GET / HTTP/1.1\r\na: b\r\n c",
        b"GET / HTTP/1.1\r\n a: b",
        b"GET / HTTP/1.1\r\na",
        b"GET / HTTP/1.1\r\na: b\nc: d",
        b"POST / HTTP/1.1\r\nContent-Length: " + b"1" * 5000,
        BEGIN + b"a:\r\n" * FIELDS + b"b:",
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    assert status(head + b"\r\n\r\n") == 400


@pytest.mark.parametrize(
    "head",
    [
        CHUNKED[:-2] + b"Content-Length: 5",
        CHUNKED[:-2] + b"content-length:0",
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0")[:-4],
        CHUNKED.replace(b" HTTP/1.1", b"")[:-4],
        CHUNKED[:-2] + b"Transfer-Encoding: chunked",
        BEGIN + b"Transfer-Encoding: chunked, chunked",
        BEGIN + b"Transfer-Encoding: ,",
        BEGIN + b"Transfer-Encoding:",
    ],
)
def test_a_body_whose_end_a_proxy_may_find_elsewhere_is_refused(head: bytes) -> None:
    """The next request by the proxy's connection, another caller's, would be appended to what is left of this one."""
    first, *_ = requests_of([head + b"\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"])
    assert first.error is not None
    assert first.error.code == 400


def test_what_is_long_is_refused_and_what_is_not_is_taken() -> None:
    assert status(BEGIN + b"a:\r\n" * FIELDS + b"\r\n") is None
    assert status(BEGIN + b"a: " + b"b" * HEADER_BYTES) == 431
    assert status(CHUNKED + b"1\r\na\r\n" * CHUNK_OVERHEAD) == 400
    assert status(CHUNKED + (b"400\r\n" + b"a" * 1024 + b"\r\n") * 2000 + b"0\r\n\r\n") is None
    assert status(CHUNKED + b"40000\r\n" + b"a" * 0x40000 + b"\r\nx\r\n") == 400
    assert status(CHUNKED + b"800000\r\n" + b"a" * 0x800000) == 413


WORD = st.text("abcxyzABC-", min_size=1, max_size=8).map(str.encode)
VALUE = st.lists(st.text("ab:;=\xe9\"',/", min_size=1, max_size=6), max_size=3).map(" ".join)
BLANK = st.sampled_from([b"", b" ", b"\t", b"  \t "])
FIELD = st.builds(
    lambda name, before, value, after: name + b":" + before + value.encode("latin-1") + after, WORD, BLANK, VALUE, BLANK
)
FIRST = st.sampled_from([
    b"GET / HTTP/1.1", b"POST /v1/jobs?a=b%20c HTTP/1.1", b"GET //a HTTP/1.0", b"GET http://h/a?b#c HTTP/1.1",
    b"OPTIONS * HTTP/1.1", b"GET /",
])  # fmt: skip
PARTS = st.lists(st.binary(max_size=40), max_size=4)


@st.composite
def a_request(draw: st.DrawFn) -> bytes:
    """A request that is one, with a body or without."""
    lines = [draw(FIRST), *draw(st.lists(FIELD, max_size=4))]
    # waitress overlooks chunks of other versions, and takes them for the next request.
    match draw(st.sampled_from(["none", "whole", "chunked"] if lines[0].endswith(b"1.1") else ["none", "whole"])):
        case "whole":
            body = draw(st.binary(max_size=100))
            lines.append(b"Content-Length: %d" % len(body))
        case "chunked":
            lines.append(b"Transfer-Encoding: chunked")
            chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in draw(PARTS) if part]
            body = b"".join(chunks) + b"0" + draw(st.sampled_from([b"", b";a=b"])) + b"\r\n"
            body += draw(st.sampled_from([b"", b"t: u\r\n"])) + b"\r\n"
        case _:
            body = b""
    return draw(st.sampled_from([b"", b"\r\n"])) + b"\r\n".join(lines) + b"\r\n\r\n" + body


@given(st.lists(a_request(), min_size=1, max_size=3), st.lists(st.integers(0, 800), max_size=6))
def test_requests_are_what_waitress_makes_of_them_in_whatever_pieces(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(ends)]

    def seen(pieces: list[bytes], kind: type[Any]) -> list[object]:
        return [
            each.error.code if each.error else
            (each.command, each.path, each.query, each.version, each.headers, each.get_body_stream().read())
            for each in requests_of(pieces, kind)
        ]  # fmt: skip

    assert seen(pieces, RequestParser) == seen([data], HTTPRequestParser)
