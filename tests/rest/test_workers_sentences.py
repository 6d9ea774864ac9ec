"""Sentences of workers, in which a job may have a part, turn no text around and end no line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.fake_controls import bearer
from tests.fixtures.rest_app import Api, make_api
from tests.rest.test_transfer_treatments import post

SENT, SHOWN = "fine \u202eabc\u009b1m <b>hi</b>", "fine \ufffdabc\ufffd1m <b>hi</b>"


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


@pytest.mark.parametrize("what", ["limited", "forgery"])
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_note_is_printable(api: Api, what: str, kind: str) -> None:
    path = f"/v1/jobs/{api.register()['id']}/{what}"
    body = json.dumps({"detail": SENT}) if kind == "application/json" else SENT.encode()
    answer: Any = api.client.post(path, data=body, content_type=kind, headers=bearer("hook"))
    assert answer.status_code == 200, answer.text
    assert api.controls.audit.trail[-1].detail == SHOWN


def test_a_refusal_by_a_worker_is_printable(api: Api) -> None:
    job = api.register()["id"]
    body = json.dumps({"revision": "1.1", "refused": {job: SENT}})
    answer = api.client.put(
        "/v1/hosts/worker1/rules", data=body, content_type="application/json", headers=bearer("hook")
    )
    assert answer.status_code == 200, answer.text
    assert api.controls.workers.reports[-1][2] == {job: SHOWN}


def test_the_reason_why_no_treatment_is_in_place_is_printable(api: Api) -> None:
    job, answer = post(api, trouble=SENT)
    assert answer.status_code == 200, answer.text
    assert api.controls.usage.moved[job].trouble == SHOWN
