from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_controller.cli.main import parser
from lark_controller.jobs.job import JobState
from lark_controller.rest.hook_answer import lines
from lark_controller.rest.problems import KINDS
from lark_controller.rest.tokens import Scope
from tests.fixtures.fake_controls import FakeControls, post_body
from tests.fixtures.rest_app import Api, make_api

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
REST = (REFERENCE / "rest.md").read_text("utf-8")


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def test_every_route_is_documented_with_its_scopes(api: Api) -> None:
    spec = api.client.get("/openapi.json").get_json()
    documented = dict(re.findall(r"^\| `([A-Z]+ /[^`]*)` \| ([a-z, ]+) \|", REST, re.MULTILINE))
    real = {}
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                # operate includes read; a reader of the table is told so below it.
                real[f"{method.upper()} {path}"] = ", ".join(operation.get("x-lark-scopes", [])) or "none"
    assert documented == {**real, "GET /openapi.json": "none"}


def test_every_operation_has_words_and_problem_documents(api: Api) -> None:
    spec = api.client.get("/openapi.json").get_json()
    assert spec["openapi"].startswith("3.1")
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            assert operation["summary"], (method, path)
            if operation.get("security"):
                assert {"401", "403", "429", "503"} <= set(operation["responses"])
    for response in spec["components"]["responses"].values():
        assert set(response["content"]) == {"application/problem+json"}


def test_every_kind_of_problem_state_and_scope_is_documented() -> None:
    for kind in KINDS:
        assert f"`urn:lark:problem:{kind}`" in REST
    assert set(re.findall(r"urn:lark:problem:([a-z-]+)", REST)) == set(KINDS)
    for state in JobState:
        assert f"| `{state}` |" in REST
    tokens = (REFERENCE.parent / "how-to" / "tokens-and-tls.md").read_text("utf-8")
    for scope in Scope:
        assert f"| `{scope}` |" in tokens


def test_the_classad_answer_is_documented_as_it_is(api: Api) -> None:
    controls: FakeControls = api.controls
    job_id = api.post(post_body(), path="/v1/jobs?wait=1").json["id"]
    for line in lines(controls.jobs.confirm(job_id, 1)).splitlines():
        assert f"    {line}\n" in REST


def test_every_metric_is_documented(api: Api) -> None:
    text = (REFERENCE / "metrics.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `((?:lark|process)_[a-z_]+)` \| ([a-z]+) \|", text, re.MULTILINE))
    real = {
        family.name + ("_total" if family.type == "counter" else ""): family.type for family in api.metrics.families()
    }
    assert documented == real


def test_metrics_follow_the_controller(api: Api) -> None:
    api.register()
    api.post(post_body(2), path="/v1/jobs?wait=1")
    text = api.get("/metrics").text
    assert 'lark_jobs{state="registering"} 1.0' in text
    assert 'lark_jobs{state="enforced"} 1.0' in text
    assert 'lark_jobs{state="no_network"} 0.0' in text
    assert "lark_jobs_isolated 0.0" in text
    assert "lark_switches_connected 1.0" in text
    assert "lark_packet_ins_total 3.0" in text
    assert "lark_post_seconds_count 2.0" in text
    assert 'lark_http_requests_total{method="POST",route="/v1/jobs",status="201"} 2.0' in text


def test_a_scrape_survives_a_controller_that_fails(api: Api) -> None:
    api.controls.error = ZeroDivisionError("broken")
    text = api.get("/metrics").text
    assert "lark_jobs{" not in text
    assert "lark_http_requests_total" in text


def test_routes_that_do_not_exist_make_no_series(api: Api) -> None:
    for number in range(5):
        api.client.open(f"/nowhere/{number}", method="GET")
    series = [line for line in api.get("/metrics").text.splitlines() if 'status="404"' in line]
    assert len(series) == 1


def commands(top: argparse.ArgumentParser, prefix: str) -> Iterator[str]:
    nested = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield prefix
    for action in nested:
        for name, sub in action.choices.items():
            yield from commands(sub, f"{prefix} {name}")


def test_every_command_is_documented() -> None:
    text = (REFERENCE / "cli.md").read_text("utf-8")
    documented = {
        " ".join(word for word in words.split() if word.islower())
        for words in re.findall(r"^\| `(lark [^`]*)`", text, re.MULTILINE)
    }
    assert documented == set(commands(parser(), "lark"))
