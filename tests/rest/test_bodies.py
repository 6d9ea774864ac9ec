"""The answer that names the mistakes of a body does not grow with it."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest

from lark_controller.rest.problems import MOST_ERRORS, MOST_LETTERS
from lark_controller.rest.schemas.members import MOST_WRONG
from tests.fixtures.fake_controls import bearer
from tests.fixtures.peak_memory import forget_peak, peak
from tests.fixtures.rest_app import Api, make_api
from tests.rest.test_routes import assert_problem

MANY = 40_000


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def many(each: str, count: int = MANY) -> str:
    return ",".join([each] * count)


LONG = "a" * 200_000
NAMED = ",".join(f'"{number}": 1' for number in range(MANY // 2))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "transfers", f'{{"jobs": [{many("{}")}]}}'),
        ("POST", "delivered", f'{{"at": 1, "queues": [{many("{}")}]}}'),
        ("POST", "leases", f'{{"jobs": [{many("1")}]}}'),
        ("PUT", "rules", f'{{"revision": "a", "late": [{many("1")}]}}'),
        ("PUT", "rules", f'{{"revision": "a", "refused": {{{NAMED}}}}}'),
        ("PUT", "rules", f"{{{NAMED}}}"),
        ("PUT", "rules", f'{{"{LONG}": 1}}'),
    ],
)
def test_thousands_of_mistakes_are_answered_by_a_few(api: Api, method: str, path: str, body: str) -> None:
    before = forget_peak()
    answer = api.client.open(
        f"/v1/hosts/w1/{path}", method=method, data=body, content_type="application/json", headers=bearer("hook")
    )
    errors = assert_problem(answer, 422, "parameters")["errors"]
    assert 0 < len(errors) <= MOST_ERRORS
    assert len(answer.data) < 3 * MOST_ERRORS * MOST_LETTERS
    # Forty times the body's length is what its own values take.
    assert peak() < before + (24 << 20)


def test_the_first_wrong_entries_of_a_list_are_told_of(api: Api) -> None:
    sent = json.dumps({"jobs": ["a", *range(100)]})
    answer = api.client.post("/v1/hosts/w1/leases", data=sent, content_type="application/json", headers=bearer("hook"))
    (error,) = assert_problem(answer, 422, "parameters")["errors"]
    assert error["parameter"] == "jobs"
    assert error["problem"].count("Not a valid string") == MOST_WRONG
    right = json.dumps({"jobs": ["a", "b"]})
    answer = api.client.post("/v1/hosts/w1/leases", data=right, content_type="application/json", headers=bearer("hook"))
    assert answer.status_code == 200
    none = json.dumps({"jobs": "ab"})
    answer = api.client.post("/v1/hosts/w1/leases", data=none, content_type="application/json", headers=bearer("hook"))
    assert_problem(answer, 422, "parameters")


def test_a_query_of_thousands_of_unknown_parameters_is_answered_by_a_few(api: Api) -> None:
    query = "&".join(f"a{number}=" for number in range(5_000))
    answer = api.client.get(f"/v1/jobs?{query}", headers=bearer("read"))
    assert len(assert_problem(answer, 422, "parameters")["errors"]) == MOST_ERRORS


@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("hosts/w1/leases", f'{{"jobs": [{many("1")}]}}', "application/json", 422),
        ("hosts/w1/leases", f'{{"jobs": [{many("1")}', "application/json", 400),
        ("hosts/w1/leases", f'{{"jobs": ["{LONG}\ud800"]}}', "application/json", 400),
        ("jobs", f'Owner = "{LONG}', "text/plain", 422),
        ("jobs", f'{{"job_ad": "{LONG}"}}', "application/json", 422),
    ],
    ids=["members", "cut", "surrogate", "ad", "missing"],
)
def test_a_refused_body_is_let_go_at_once(api: Api, path: str, body: str, kind: str, status: int) -> None:
    """Garbage is collected seldom: what only a collection frees would add up to hundreds of megabytes."""

    def refused() -> None:
        sent = body.encode("utf-8", "surrogatepass")
        answer = api.client.post(f"/v1/{path}", data=sent, content_type=kind, headers=bearer("hook"))
        assert answer.status_code == status

    refused()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            refused()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    # The test's client keeps each body once; its members take five times as much.
    assert after - before < 15 * len(body)
