"""A path leads to the rule that werkzeug finds, and leaves no garbage behind."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from flask import request, request_started
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.routing.map import MapAdapter

from lark_controller.rest.matching import Routes
from tests.fixtures.fake_controls import bearer
from tests.fixtures.rest_app import make_api

RULES = (
    "/", "/v1/jobs", "/v1/jobs/<id>", "/v1/jobs/<id>/renew", "/v1/jobs/at", "/v1/jobs/at/<where>", "/v1/<kind>/all",
    "/v1/list/", "/v1/<kind>/list/", "/pages/<path:file>", "/n/<int:number>", "/n/x<part>y", "/n/<a>-<b>",
)  # fmt: skip
WORDS = ("", "v1", "jobs", "at", "renew", "all", "list", "pages", "n", "7", "xzy", "a-b", "über", "a b", "%2f")


def outcome(adapter: MapAdapter, path: str, method: str) -> Any:
    """The rule and the values that a path leads to; or the error."""
    try:
        rule, values = adapter.match(path, method, return_rule=True)
    except HTTPException as error:
        return type(error), getattr(error, "new_url", None), sorted(getattr(error, "valid_methods", None) or ())
    return rule.rule, rule.methods, values


def adapter(kind: type[Map]) -> MapAdapter:
    """The rules in a map of a kind."""
    made = [Rule(rule, endpoint=rule, methods=["GET"]) for rule in RULES]
    made += [Rule(rule, endpoint=f"post {rule}", methods=["POST"]) for rule in RULES[1:6]]
    made.append(Rule("/v1/plain", endpoint="plain", defaults={"id": "1"}))
    made.append(Rule("/v1/loose/", endpoint="loose", strict_slashes=False))
    return kind(made).bind("lark", "/")


def test_a_path_leads_to_what_werkzeug_finds() -> None:
    draw, ours, theirs = random.Random(1), adapter(Routes), adapter(Map)
    found = 0
    for _ in range(20_000):
        path = "/" + "/".join(draw.choice((*WORDS, "loose", "plain")) for _ in range(draw.randrange(5)))
        method = draw.choice(("GET", "HEAD", "POST", "PUT", "OPTIONS"))
        wanted = outcome(theirs, path, method)
        assert outcome(ours, path, method) == wanted, (path, method)
        found += isinstance(wanted[0], str)
    assert found > 1000


@pytest.mark.parametrize("path", ["/", "/v1/jobs", "/v1/jobs/7", "/v1/jobs/7/renew", "/v1/jobs/at/home"])
def test_a_path_that_leads_to_a_rule_leaves_no_garbage(path: str) -> None:
    ours = adapter(Routes)
    ours.match(path)
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            ours.match(path)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PUT", "/v1/jobs", 405), ("GET", "/v1/jobs", 200), ("GET", "//healthz", 308)],
)
def test_a_request_that_is_answered_is_gone(tmp_path: Path, method: str, path: str, status: int) -> None:
    """It would wait for a collection of garbage, with its body; anybody may send such, as many as they like."""
    api, requests = make_api(tmp_path), list[weakref.ref[Any]]()

    def began(_: object) -> None:
        requests.append(weakref.ref(request.environ["werkzeug.request"]))

    gc.collect()
    gc.disable()
    try:
        with request_started.connected_to(began, api.app):
            answer = api.client.open(path, method=method, headers=bearer("read"))
        assert answer.status_code == status
        answer.close()
        assert [each() for each in requests] == [None]
    finally:
        gc.enable()


def test_the_application_has_these_routes(tmp_path: Path) -> None:
    assert isinstance(make_api(tmp_path).app.url_map, Routes)
