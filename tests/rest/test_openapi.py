from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from tests.fixtures.fake_controls import TOKENS, post_body
from tests.fixtures.rest_app import Api, make_api

# Tokens are tested route by route; that a text is an ad, a policy or an address is more than a schema can say.
_EXCLUDED = [ignored_auth, positive_data_acceptance]
_METHODS = {"get", "put", "post", "patch", "delete"}
_QUIET = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def everything(directory: Path) -> tuple[Api, Flask]:
    """An application with jobs in it, whose one token may do everything."""
    api = make_api(directory, rate_limit="1000000", rate_burst="1000000")
    text = api.tokens.read_text().replace("scopes: [read]", "scopes: [hook, operate]")
    api.tokens.write_text(text)
    for cluster in range(3):
        api.register(cluster)
    return api, api.app


def test_the_api_does_what_its_openapi_document_says(tmp_path: Path) -> None:
    _, app = everything(tmp_path)
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    headers = {"Authorization": f"Bearer {TOKENS['read']}"}
    tried: set[str] = set()

    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result.err()
        operation = result.ok()

        @settings(
            max_examples=12,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=_QUIET,
        )
        @given(case=operation.as_strategy())
        def conforms(case: Any) -> None:
            case.call_and_validate(headers=headers, excluded_checks=_EXCLUDED)

        conforms()
        tried.add(operation.label)
    described = app.test_client().get("/openapi.json").get_json()["paths"].values()
    assert len(tried) == sum(method in _METHODS for path in described for method in path) >= 37


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=400),
        st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.tuples(st.text(max_size=200), st.text(max_size=200)).map(lambda both: "\n------\n".join(both).encode()),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
        ).map(lambda value: json.dumps({"job_ad": value, "machine_ad": value}).encode()),
        st.tuples(st.integers(0, 600), st.binary(max_size=6)).map(
            lambda cut: post_body().encode()[: cut[0]] + cut[1] + post_body().encode()[cut[0] + len(cut[1]) :]
        ),
    ),
    st.sampled_from(["text/plain", "application/json", "text/plain; charset=latin-1", "", "a/b"]),
    st.sampled_from(["/v1/jobs", "/v1/policy/check", "/v1/policy/plan", "/v1/reservations"]),
)
def test_no_body_makes_the_controller_fail(tmp_path_factory: Any, body: bytes, kind: str, path: str) -> None:
    if _FUZZED.get("api") is None:
        _FUZZED["api"] = everything(tmp_path_factory.mktemp("fuzz"))[0]
    api = _FUZZED["api"]
    answer = api.client.post(path, data=body, content_type=kind, headers={"Authorization": f"Bearer {TOKENS['read']}"})
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.content_type == "application/problem+json"
        assert json.loads(answer.text)["status"] == answer.status_code


_FUZZED: dict[str, Api] = {}
