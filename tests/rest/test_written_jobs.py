"""Answers about jobs are those that the schemas document, and are sent with less work."""

from __future__ import annotations

import cProfile
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from flask import Response
from marshmallow import Schema
from werkzeug.test import create_environ

from lark_common.runs import NetworkType
from lark_controller.accounting.usage import JobUsage, Peak, Rate, Usage
from lark_controller.api.jobs import Confirmation, Waiting
from lark_controller.jobs.job import Job
from lark_controller.rest.json_portions import written
from lark_controller.rest.schemas.answers import JobSchema, Joined, ListedJobSchema, RegisteredSchema
from lark_controller.rest.written_jobs import job_members, listed_members, registered_members, written_page
from tests.fixtures.databases import FULL, NOW, a_run
from tests.fixtures.fake_controls import post_body
from tests.fixtures.rest_app import make_api

BARE = Job(0, FULL.run, FULL.id, "bob", "", "", 0, 0, "worker1", NetworkType.NONE)


@pytest.mark.parametrize("job", [FULL, BARE, a_run(3, bandwidth=2.0, inbound=True, quarantine="why", vouched=True)])
def test_a_job_has_the_members_of_its_schema(job: Job) -> None:
    assert json.dumps(job_members(job)) == json.dumps(Schema.dump(JobSchema(), job))


@pytest.mark.parametrize(
    ("job", "used", "isolated"),
    [
        (BARE, None, True),
        (FULL, JobUsage(), False),
        (FULL, JobUsage(Usage(*range(18)), Rate(*range(6)), NOW, True, Peak(1_500_000, 3)), False),
    ],
)
def test_a_job_in_a_list_has_the_members_of_its_schema(job: Job, used: JobUsage | None, isolated: bool) -> None:
    dumped = Schema.dump(ListedJobSchema(), Joined(job, SimpleNamespace(usage=used, isolated=isolated)))
    assert json.dumps(listed_members(job, used, isolated)) == json.dumps(dumped)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_page_is_sent_as_one_value(count: int) -> None:
    members = [{"id": str(number), "owner": "Jürgen"} for number in range(count)]
    rest = {"next": "/v1/jobs?cursor=a%22b", "next_cursor": None}
    assert written_page(iter(members), rest).json == {"jobs": members, **rest}


@pytest.mark.parametrize(
    "confirmation",
    [Confirmation(BARE), Confirmation(FULL, ("00000000000000c0",), (Waiting("0000000000000001", "is away"),))],
)
def test_a_registration_has_the_members_of_its_schema(confirmation: Confirmation) -> None:
    dumped = Schema.dump(RegisteredSchema(), Joined(confirmation, confirmation.job))
    assert json.dumps(registered_members(confirmation)) == json.dumps(dumped)


def _sent(response: Response) -> tuple[list[tuple[str, str]], bytes, int]:
    """The headers and the body that a response sends, and the calls of functions that this takes."""
    response.headers["Location"] = "/v1/jobs/0123456789abcdef"
    environ = create_environ()
    profile = cProfile.Profile()
    profile.enable()
    body, _, headers = response.get_wsgi_response(environ)
    profile.disable()
    return headers, b"".join(body), sum(each.callcount for each in profile.getstats())


def test_an_answer_is_sent_as_any_other_with_less_work() -> None:
    members = {"owner": "Jürgen", "state": "enforced"}
    mine = _sent(written(members))
    text = json.dumps(members, separators=(",", ":"))
    other = _sent(Response(f"{text}\n", content_type="application/json"))
    assert mine[:2] == other[:2]
    assert ("Content-Length", str(len(mine[1]))) in mine[0]
    assert mine[2] < other[2] / 2


def test_an_answer_has_each_header_once(tmp_path: Path) -> None:
    answer = make_api(tmp_path).post(post_body(1))
    assert answer.status_code == 201
    names = [name.lower() for name, _ in answer.headers]
    assert len(names) == len(set(names))
    assert {"x-content-type-options", "cache-control", "content-security-policy", "referrer-policy"} < set(names)
    assert answer.headers["Location"] == f"/v1/jobs/{answer.json['id']}"
    assert int(answer.headers["Content-Length"]) == len(answer.data)
