"""The treatments of transfers in a worker's posts, and in their answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lark_common.transfers import SharedRate, Treatment
from tests.fixtures.fake_controls import post_body
from tests.fixtures.rest_app import Api, make_api

COUNTS = {"bytes_in": 1, "bytes_out": 2, "wan_bytes_in": 0, "wan_bytes_out": 0, "millis": 5}


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def post(api: Api, **more: Any) -> Any:
    job = api.post(post_body(1)).json["id"]
    host = api.get(f"/v1/jobs/{job}").json["host"]
    return job, api.post(
        json.dumps({"jobs": [{"job": job, **COUNTS, **more}]}), f"/v1/hosts/{host}/transfers", "application/json"
    )


def test_a_worker_is_answered_the_treatments_and_says_what_it_has_in_place(api: Api) -> None:
    job, answer = post(api)
    assert (answer.status_code, answer.json["treatments"]) == (200, None)
    assert (api.controls.usage.moved[job].treatment, api.controls.usage.moved[job].trouble) == (None, "")
    api.controls.usage.treatments = {job: Treatment(50_000_000, 9)}
    _, answer = post(api, treatment=None, trouble="no nf_tables")
    assert answer.json["treatments"] == {job: {"rate": 50_000_000, "dscp": 9, "block": False, "shared": []}}
    assert api.controls.usage.moved[job].trouble == "no nf_tables"
    _, answer = post(api, treatment=answer.json["treatments"][job])
    assert api.controls.usage.moved[job].treatment == Treatment(50_000_000, 9)
    # A worker of an earlier release knows no shared limits, and says none.
    _, answer = post(api, treatment={"rate": 5, "dscp": None, "block": False})
    assert api.controls.usage.moved[job].treatment == Treatment(5)
    shared = Treatment(shared=(SharedRate("group cms", 8), SharedRate("access point ap1", 9)))
    api.controls.usage.treatments = {job: shared}
    _, answer = post(api)
    _, answer = post(api, treatment=answer.json["treatments"][job])
    assert api.controls.usage.moved[job].treatment == shared


def test_a_jobs_id_with_a_line_end_is_no_id(api: Api) -> None:
    sent = json.dumps({"jobs": [{"job": "0123456789abcdef\n", **COUNTS}]})
    answer = api.post(sent, "/v1/hosts/w1/transfers", "application/json")
    assert answer.status_code == 422
    assert "16 hexadecimal digits" in answer.json["detail"]


@pytest.mark.parametrize(
    "treatment",
    [
        {"rate": 0, "dscp": None, "block": False},
        {"rate": "5", "dscp": None, "block": False},
        {"rate": 10**12, "dscp": None, "block": False},
        {"rate": None, "dscp": 64, "block": False},
        {"rate": None, "dscp": True, "block": False},
        {"rate": None, "dscp": None},
        {"rate": None, "dscp": None, "block": False, "shared": [{"name": "a", "rate": 0}]},
        {"rate": None, "dscp": None, "block": False, "shared": [{"name": "a", "rate": None}]},
        {"rate": None, "dscp": None, "block": False, "shared": [{"name": "a" * 2000, "rate": 1}]},
        {"rate": None, "dscp": None, "block": False, "shared": 3 * [{"name": "a", "rate": 1}]},
        "block",
    ],
)
def test_what_is_no_treatment_is_refused(api: Api, treatment: Any) -> None:
    assert post(api, treatment=treatment)[1].status_code == 422
    assert post(api, trouble="x" * 2000)[1].status_code == 422
