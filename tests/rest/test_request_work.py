"""No path, query or header costs more than linear in its length, whatever stands in it and whoever sends it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from lark_controller.rest.media_types import preferred
from lark_controller.rest.server.waitress_server import HEADER_BYTES
from tests.fixtures.fake_controls import bearer, post_body
from tests.fixtures.rest_app import Api, make_api
from tests.fixtures.work import assert_linear

# Eight times as much is nearly all that a head may have.
SIZE = HEADER_BYTES // 8 - 100
HEADERS = (
    "Accept", "Authorization", "Content-Type", "Cookie", "Host", "If-Match", "If-Modified-Since", "If-None-Match",
    "Range",
)  # fmt: skip
SHAPES: dict[str, Callable[[int], str]] = {
    "blanks": lambda size: "text/csv" + " " * size + "x",
    "blanks in the first part": lambda size: "a" + " " * size + "/b",
    "blanks in quotation marks": lambda size: '"text/csv' + " " * size + 'x" ',
    "blanks before a parameter": lambda size: "a/b" + " " * size + ";q=x",
    "tabs in a parameter": lambda size: "a/b;a=" + "\t" * size + "x",
    "an open quotation": lambda size: 'a/b;a="' + "\\" * size,
    "quotations": lambda size: '"' * size,
    "commas": lambda size: "," * size,
    "semicolons": lambda size: "a/b" + ";" * size,
    "types": lambda size: ",".join(["a/b"] * (size // 4)),
    "parameters": lambda size: "a/b" + ";a=b" * (size // 4),
    "parts of a parameter": lambda size: "a/b" + "".join(f";a*{number}=b" for number in range(size // 9)),
    "an encoded parameter": lambda size: "a/b;a*=utf-8''" + "%41" * (size // 3),
    "a long weight": lambda size: "a/b;q=0." + "1" * size,
    "digits": lambda size: "1" * size,
    "ranges": lambda size: "bytes=" + "0-1," * (size // 4),
    "colons": lambda size: "a:" + ":" * size,
    "brackets": lambda size: "[" * size,
    "dots": lambda size: "a" + ".a" * (size // 2),
    "a credential": lambda size: "Bearer " + "a." * (size // 2),
    "a long one": lambda size: "Bearer" + " " * size + "x",
    "a date": lambda size: "Mon, 01 Jan " + "(" * size,
    "a date of words": lambda size: "Mon " * (size // 4),
}
QUERIES: dict[str, Callable[[int], str]] = {
    "parameters": lambda size: "a=&" * (size // 3),
    "the same": lambda size: "limit=1&" * (size // 8),
    "a long one": lambda size: "owner=" + "a" * size,
    "encoded": lambda size: "owner=" + "%20" * (size // 3),
    "broken": lambda size: "owner=" + "%" * size,
    "digits": lambda size: "limit=" + "1" * size,
    "blanks": lambda size: "from=" + "+" * size + "x",
    "a date": lambda size: "from=2026-01-01T00:00:00" + "0" * size,
}
PATHS: dict[str, Callable[[int], str]] = {
    "slashes": lambda size: "/" * size,
    "slashes and letters": lambda size: "//a" * (size // 3),
    "folders of pages": lambda size: "/pages/" + "a/" * (size // 2),
    "slashes of pages": lambda size: "/pages/" + "/" * size + "a",
    "a long id": lambda size: "/v1/jobs/" + "a" * size,
    "a number": lambda size: "/v1/jobs/" + "1" * size + ".0",
    "an access point": lambda size: "/v1/jobs/" + "1.0@" + "a@" * (size // 2),
    "marks": lambda size: "/v1/jobs/" + "%23" * (size // 3),
    "a long host": lambda size: "/v1/hosts/" + "a." * (size // 2) + "/rules",
    "encoded slashes": lambda size: "/v1/jobs/" + "%2f" * (size // 3),
    "dots": lambda size: "/v1/" + "../" * (size // 3),
    "percents": lambda size: "/v1/jobs/" + "%" * size,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Api:
    return make_api(tmp_path_factory.mktemp("api"), rate_limit="1000000", rate_burst="1000000")


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_costs_no_more_than_linear(api: Api, header: str) -> None:
    def ask(value: str) -> None:
        sent = {**bearer("read"), header: value}
        for path in ("/v1/usage", "/v1/policy", "/pages/"):
            api.client.get(path, headers=sent)
        if header != "Content-Type":
            api.post(post_body(), **{header: value})

    for make in SHAPES.values():
        assert_linear(ask, make, SIZE)


@pytest.mark.parametrize("shape", QUERIES)
def test_a_query_costs_no_more_than_linear(api: Api, shape: str) -> None:
    def ask(query: str) -> None:
        for path in ("/v1/jobs", "/v1/usage", "/v1/audit", "/v1/external-addresses"):
            api.client.get(f"{path}?{query}", headers=bearer("read"))

    assert_linear(ask, QUERIES[shape], SIZE)


@pytest.mark.parametrize("shape", PATHS)
def test_a_path_costs_no_more_than_linear(api: Api, shape: str) -> None:
    def ask(path: str) -> None:
        for held in (bearer("read"), bearer("hook"), {}):
            api.client.get(path, headers=held)

    assert_linear(ask, PATHS[shape], SIZE)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/csv", "text/csv"),
        ("TEXT/CSV ; charset=utf-8", "text/csv"),
        ("text/*", "text/csv"),
        ("text/csv, application/json", "application/json"),
        ("*/*, text/csv", "text/csv"),
        ("application/json;q=0.1, */*;q=0.5", "text/csv"),
        ("text/csv;q=0.5, */*;q=0.4", "text/csv"),
        ("application/json;q=0, text/csv; q = 0.001", "text/csv"),
        ("image/png", "application/json"),
        ("text/csv;q=0", "application/json"),
        ("text/csv;q=none, */*", "application/json"),
        (",;,/", "application/json"),
    ],
)
def test_the_form_of_an_answer(api: Api, accept: str, chosen: str) -> None:
    with api.app.test_request_context(headers={"Accept": accept}):
        assert preferred(("application/json", "text/csv")) == chosen


def test_the_form_of_an_answer_is_what_werkzeug_takes(api: Api) -> None:
    draw = random.Random(7)
    media = ("application/json", "text/csv", "text/*", "application/*", "*/*", "image/png")
    offers = ("application/json", "text/csv", "text/plain")
    for _ in range(500):
        accept = ", ".join(f"{draw.choice(media)};q={draw.choice((0, 0.3, 0.5, 1))}" for _ in range(draw.randint(0, 4)))
        with api.app.test_request_context(headers={"Accept": accept}) as context:
            theirs = context.request.accept_mimetypes.best_match(offers, default=offers[0])
            assert preferred(offers) == theirs, accept
