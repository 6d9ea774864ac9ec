"""``/v1/reservations``, ``/v1/links``: over HTTP, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lark_common.client import Client, ProblemError
from lark_controller.cli import main as cli
from lark_controller.jobs.job import JobState, Standing
from lark_controller.policies.bandwidth import NO_RULE
from lark_controller.qos.reservation import Reservation, ReservationKind
from tests.common.test_client import served
from tests.fixtures.fake_controls import TOKENS, bearer
from tests.fixtures.rest_app import Api, make_api
from tests.fixtures.rest_socket import served as over_socket

__all__ = ["over_socket", "served"]


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def ask(api: Api, method: str, path: str, body: object = None, scope: str = "operate") -> Any:
    return api.client.open(path, method=method, json=body, headers=bearer(scope))


WISH = {"source": "worker1.example", "destination": "192.0.2.1", "rate": 60, "duration": 60}


def test_a_reservation_from_begin_to_end(api: Api) -> None:
    made = ask(api, "POST", "/v1/reservations", WISH)
    assert made.status_code == 201
    where = made.headers["Location"]
    assert made.json["holds"][-1] == {"channel": "internet core1>wan", "rate": 60.0}
    assert (made.json["addresses"], made.json["actor"]) == (["192.0.2.1/32"], "operate")
    assert api.get(where).json == made.json
    assert api.get("/v1/reservations").json["reservations"] == [made.json]
    changed = ask(api, "PATCH", where, {"rate": 100, "duration": None})
    assert (changed.json["rate"], changed.json["until"]) == (100.0, None)
    internet = [each for each in api.get("/v1/links").json["links"] if each["name"] == "internet"]
    assert [(each["source"], each["best_effort"]) for each in internet] == [("core1", 0.0), ("wan", 100.0)]
    assert (made.json["steady"], ask(api, "PATCH", where, {"steady": True}).json["steady"]) == (False, True)
    assert ask(api, "PATCH", where, {"rate": 90}).json["steady"] is True
    assert ask(api, "DELETE", where).json["id"] == made.json["id"]
    assert ask(api, "DELETE", where).status_code == 404
    assert 'lark_link_capacity_bytes_per_second{link="bus",source="",target=""} 1.25e+07' in api.get("/metrics").text
    assert "access:" not in api.get("/metrics").text


def test_what_does_not_fit_says_which_link_and_what_is_left(api: Api) -> None:
    ask(api, "POST", "/v1/reservations", WISH)
    refused = ask(api, "POST", "/v1/reservations", WISH)
    assert refused.status_code == 409
    assert refused.json["type"] == "urn:lark:problem:capacity"
    assert refused.json["refused"] == "hold"
    assert refused.json["links"] == [
        {
            "link": "internet",
            "source": "core1",
            "target": "wan",
            "capacity": 100.0,
            "reserved": 60.0,
            "available": 40.0,
            "asked": 60.0,
            "held": 0.0,
            "own": 0.0,
        }
    ]
    assert (
        "link internet (core1 to wan) has 40 of 100 Mb/s left, and 60 are asked (others hold 60)"
        in refused.json["detail"]
    )


def test_a_hook_reserves_for_jobs_alone(api: Api) -> None:
    job = api.register()
    assert ask(api, "POST", "/v1/reservations", {**WISH, "source": job["id"]}, "hook").json["job"] == job["id"]
    refused = ask(api, "POST", "/v1/reservations", WISH, "hook")
    assert (refused.status_code, refused.json["type"]) == (422, "urn:lark:problem:topology")
    assert ask(api, "POST", "/v1/reservations", WISH, "read").status_code == 403
    assert ask(api, "GET", "/v1/links", None, "hook").status_code == 200


def test_how_far_a_reservation_is_enforced_is_shown_and_can_be_waited_for(api: Api) -> None:
    api.controls.gate.clear()
    job = api.register()
    made = ask(api, "POST", "/v1/reservations", {**WISH, "source": job["id"]})
    where, states = made.headers["Location"], [made.json["state"]]
    states.append(api.get(where).json["state"])
    # The confirmation does not come while this one waits.
    states.append(api.get(f"{where}?wait=0.01").json["state"])
    api.controls.gate.set()
    states.append(api.get(f"{where}?wait=30").json["state"])
    assert states == ["registering"] * 3 + ["enforced"]
    # What is asked for now is not what was confirmed.
    assert ask(api, "PATCH", where, {"rate": 70}).json["state"] == "registering"
    assert ask(api, "PATCH", where, {"duration": 90}).json["state"] == "enforced"
    # No longer than a post may wait, without a word.
    assert api.get(f"{where}?wait=600").json["state"] == "enforced"
    assert api.get(f"{where}?wait=x").status_code == 422
    # Nobody enforces what no job sends.
    assert ask(api, "POST", "/v1/reservations", {**WISH, "rate": 1}).json["state"] is None


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        ("alice", ("enforced", "")),
        ("mallory", ("pending", "nothing of the job passes: it is blocked (policy line 3)")),
        ("oscar", ("pending", NO_RULE)),
    ],
)
def test_a_request_bandwidth_that_is_not_enforced_is_not_shown_so(api: Api, owner: str, shown: tuple[str, str]) -> None:
    job = api.register(owner=owner)
    api.controls.jobs.confirm(job["id"], 5)
    known = api.controls.reservations.known
    known["a"] = Reservation(1, "a", ReservationKind.JOB, 5, "worker1.example", "worker1.example", {}, job=job["id"])
    (found,) = api.get("/v1/reservations").json["reservations"]
    assert (found["state"], found["reason"]) == shown


def test_a_flow_of_which_nothing_passes_between_its_ends_is_pending(api: Api) -> None:
    job = api.register()
    made = ask(api, "POST", "/v1/reservations", {**WISH, "source": job["id"]}).json
    where = f"/v1/reservations/{made['id']}"
    assert api.get(f"{where}?wait=5").json["state"] == "enforced"
    why = "nothing of it passes: slices keep the two jobs apart (policy line 7)"
    api.controls.reservations.apart.known[made["id"]] = why
    shown = api.get(where).json
    assert (shown["state"], shown["reason"]) == ("pending", why)


def test_the_rule_that_lets_nothing_pass_comes_before_a_queue_that_is_missing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = api.register()
    made = ask(api, "POST", "/v1/reservations", {**WISH, "source": job["id"]}).json
    why = "nothing of it passes: slices keep the two jobs apart (policy line 7)"
    queue = "switch worker1: bandwidth: the address of its database is not set (LARK_OVSDB)"
    monkeypatch.setattr(api.controls.jobs, "reserved", lambda _: Standing(JobState.PENDING, queue))
    where = f"/v1/reservations/{made['id']}"
    assert api.get(where).json["reason"] == queue
    api.controls.reservations.apart.known[made["id"]] = why
    assert api.get(where).json["reason"] == f"{why}; also {queue}"
    # While the job is in quarantine no rule of the policy is the reason.
    monkeypatch.setattr(api.controls.jobs, "reserved", lambda _: Standing(JobState.QUARANTINED, "it is"))
    assert (api.get(where).json["state"], api.get(where).json["reason"]) == ("quarantined", "it is")


def test_what_a_flow_has_delivered_is_shown_until_it_is_known(api: Api) -> None:
    job = api.register()
    made = ask(api, "POST", "/v1/reservations", {**WISH, "source": job["id"]}).json
    where = f"/v1/reservations/{made['id']}/delivered"
    found = api.get(where).json
    (flow,) = found["flows"]
    assert (flow["reservation"], flow["job"], flow["promised"]) == (made["id"], job["id"], 60.0)
    assert (flow["delivered"], flow["delivered_seconds"], flow["delivered_bytes"]) == (7.5, 1.0, 1_000_000)
    assert api.get(f"/v1/jobs/{job['id']}/delivered").json == found
    assert api.get(f"{where}?after={found['version']}&wait=1").json == {"version": found["version"], "flows": None}
    assert api.get(f"{where}?wait=61").status_code == 422
    assert api.get(f"/v1/reservations/{0:016x}/delivered").status_code == 404


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "source"),
        ({**WISH, "rate": 0}, "rate"),
        ({**WISH, "rate": 1e12}, "rate"),
        ({**WISH, "rate": "many"}, "rate"),
        ({**WISH, "duration": -1}, "duration"),
        ({**WISH, "duration": 1e300}, "duration"),
        ({**WISH, "destination": "a b"}, "destination"),
        ({**WISH, "more": 1}, "more"),
        ({**WISH, "steady": None}, "steady"),
        ({**WISH, "steady": "often"}, "steady"),
        ([], "body"),
    ],
)
def test_what_is_wrong_with_a_body_is_named(api: Api, body: object, parameter: str) -> None:
    answer = ask(api, "POST", "/v1/reservations", body)
    assert answer.status_code == 422
    assert parameter in [each["parameter"] for each in answer.json["errors"]]


def test_bodies_that_are_no_json(api: Api) -> None:
    for data, status in ((b"{", 400), (b"\xff", 400), (b"{}" * 4000, 413)):
        answer = api.client.post(
            "/v1/reservations", data=data, content_type="application/json", headers=bearer("operate")
        )
        assert answer.status_code == status


def test_from_python(served: tuple[Api, str]) -> None:
    _, url = served
    client = Client(url, TOKENS["operate"])
    made = client.reserve("worker1.example", "wan", 60.0, 30.0)
    assert client.reservation(made["id"]) == made
    assert client.change_reservation(made["id"], rate=70.0)["until"] == made["until"]
    assert [each["rate"] for each in client.reservations()] == [70.0]
    with pytest.raises(ProblemError) as caught:
        client.reserve("worker1.example", "wan", 31.0, 30.0)
    assert caught.value.problem["links"][0]["available"] == 30.0
    assert client.links()[0]["reserved"] == 70.0
    assert client.change_reservation(made["id"], steady=True)["steady"]
    client.release(made["id"])
    assert client.reserve("worker1.example", "wan", 60.0, 30.0, steady=True)["steady"]
    client.release(next(client.reservations())["id"])
    assert list(client.reservations()) == []


def test_from_the_command_line(over_socket: Api, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str, code: int = cli.OK) -> str:
        assert cli.main(["reserve", *words]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    made = json.loads(run("add", "worker1.example", "wan", "60", "--seconds", "60", "--json"))
    assert "60 Mb/s of internet core1>wan" in run("show", made["id"])
    assert "has 40 of 100 Mb/s left" in run("add", "worker1.example", "wan", "60", code=cli.NO)
    assert run("list").splitlines()[1].split()[:3] == [made["id"], "flow", "60"]
    run("change", made["id"], "--rate", "75.5")
    assert ["internet", "core1", "to", "wan", "100", "75.5", "24.5"] in [
        line.split() for line in run("links").splitlines()
    ]
    assert "nothing is to change" in run("change", made["id"], code=cli.USAGE)
    run("release", made["id"])
    assert run("list", "--json") == "[]\n"
