"""The origin of a request that is handed on: sealed with the term's key, for one request and token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lark_controller.rest.forwarding.origin import Head, Origin, opened, sealed

KEY, OTHER = "ab" * 32, "cd" * 32
HEAD = Head("GET", "/v1/jobs?limit=2", "Bearer t")
ORIGIN = Origin("192.0.2.7", ("worker1.example", "worker2.example"))


def test_an_origin_is_read_again() -> None:
    for origin in (ORIGIN, Origin(""), Origin("2001:db8::1", ()), Origin("", None, unix=True)):
        assert opened(KEY, 8, sealed(KEY, 8, origin, HEAD), HEAD) == origin


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "POST"},
        {"target": "/v1/jobs?limit=3"},
        {"authorization": "Bearer u"},
        {"target": "", "method": "GET/"},
    ],
)
def test_an_origin_is_of_one_request_and_token(changed: dict[str, str]) -> None:
    assert opened(KEY, 8, sealed(KEY, 8, ORIGIN, HEAD), replace(HEAD, **changed)) is None


def test_an_origin_is_of_one_key_and_term() -> None:
    header = sealed(KEY, 8, ORIGIN, HEAD)
    assert opened(OTHER, 8, header, HEAD) is None
    assert opened(KEY, 9, header, HEAD) is None
    assert opened("", 8, sealed("", 8, ORIGIN, HEAD), HEAD) is None
    for wrong in ("", ".", "a.b", "a.b.c", header[1:], header[:-1], header + "0", "\xe9.\xe9", "." * 20_000):
        assert opened(KEY, 8, wrong, HEAD) is None
