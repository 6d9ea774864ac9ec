"""``/v1/external-addresses``: over HTTP, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from lark_common.client import Client
from lark_controller.cli import main as cli
from lark_controller.rest.tokens import Scope, add
from tests.common.test_client import served
from tests.fixtures.fake_controls import TOKENS, bearer, post_body
from tests.fixtures.rest_app import Api, make_api
from tests.fixtures.rest_socket import served as over_socket

__all__ = ["over_socket", "served"]


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def ask(api: Api, method: str, path: str, body: object = None, scope: str = "operate") -> Any:
    return api.client.open(path, method=method, json=body, headers=bearer(scope))


def a_job(api: Api, number: int = 1, owner: str = "alice") -> str:
    made = api.client.post("/v1/jobs", data=post_body(number, owner), content_type="text/plain", headers=bearer("hook"))
    found: Any = made.json
    return str(found["id"])


def test_an_external_address_from_begin_to_end(api: Api) -> None:
    job = a_job(api)
    made = ask(api, "POST", "/v1/external-addresses", {"job": job, "open": ["tcp/80", "udp/1-3"], "seconds": 60})
    assert made.status_code == 201
    assert (made.json["address"], made.json["open"], made.json["job"]) == ("198.51.100.64", ["tcp/80", "udp/1-3"], job)
    assert made.json["inside"] == "10.64.0.1"
    where = made.headers["Location"]
    again = ask(api, "POST", "/v1/external-addresses?wait=1", {"job": job})
    assert (again.status_code, again.json) == (200, made.json)
    assert api.get(where).json == made.json
    listed = api.get(f"/v1/external-addresses?job={job}").json
    assert listed["addresses"] == [made.json]
    assert listed["pools"] == [{"name": "public", "total": 2, "used": 1, "quarantined": 0, "free": 1}]
    over = ask(api, "DELETE", where)
    assert (over.status_code, over.json["why"], over.json["inside"]) == (200, "released", None)
    assert ask(api, "DELETE", where).json == over.json
    assert api.get("/v1/external-addresses").json["addresses"] == []


def with_reservation(api: Api, seconds: float | None, own: float | None = None) -> tuple[str, str]:
    """An address that ends with a reserved flow, also after ``own`` seconds: the paths of both."""
    job = a_job(api)
    wish = {"source": job, "destination": "wan", "rate": 1, "duration": seconds}
    flow = ask(api, "POST", "/v1/reservations", wish).json["id"]
    made = ask(api, "POST", "/v1/external-addresses", {"job": job, "seconds": own, "reservation": flow}).json["id"]
    known = api.controls.external.known
    known[made] = replace(known[made], reservation=api.controls.reservations.known[flow].number)
    return f"/v1/external-addresses/{made}", f"/v1/reservations/{flow}"


def test_an_address_that_ends_with_a_reservation_has_its_time_as_it_is_now(api: Api) -> None:
    address, flow = with_reservation(api, 60)
    until = api.get(flow).json["until"]
    assert until is not None
    assert (api.get(address).json["until"], api.get(address).json["reservation"]) == (until, flow.rpartition("/")[2])
    longer = ask(api, "PATCH", flow, {"duration": 600}).json["until"]
    assert until < longer == api.get(address).json["until"]
    assert ask(api, "PATCH", flow, {"duration": None}).json["until"] is None
    assert api.get(address).json["until"] is None
    assert api.get("/v1/external-addresses").json["addresses"] == [api.get(address).json]
    ask(api, "DELETE", address)
    assert api.get(address).json["reservation"] is None


def test_an_address_with_a_time_of_its_own_ends_with_what_is_over_first(api: Api) -> None:
    address, flow = with_reservation(api, 60, 30)
    until = api.get(address).json["until"]
    assert until < api.get(flow).json["until"]
    assert ask(api, "PATCH", flow, {"duration": 10}).json["until"] == api.get(address).json["until"] < until


def test_what_cannot_be_given_says_why(api: Api) -> None:
    for number in (1, 2):
        ask(api, "POST", "/v1/external-addresses", {"job": a_job(api, number)})
    refused = ask(api, "POST", "/v1/external-addresses", {"job": a_job(api, 3)})
    assert (refused.status_code, refused.json["type"]) == (409, "urn:lark:problem:external-address")
    assert (refused.json["refused"], refused.json["detail"]) == ("hold", "pool public has no address left")
    wrong = ask(api, "POST", "/v1/external-addresses", {"job": a_job(api), "open": ["http"]})
    assert (wrong.status_code, wrong.json["errors"][0]["parameter"]) == (422, "open")
    assert ask(api, "POST", "/v1/external-addresses", {"open": []}).status_code == 422
    assert ask(api, "POST", "/v1/external-addresses", {"job": "0" * 16}).status_code == 404
    assert ask(api, "GET", "/v1/external-addresses/1").status_code in (403, 404)


@pytest.mark.parametrize(
    ("scope", "method", "status"), [("read", "POST", 403), ("read", "DELETE", 403), ("hook", "POST", 201)]
)
def test_who_may(api: Api, scope: str, method: str, status: int) -> None:
    job = a_job(api)
    path = "/v1/external-addresses"
    if method == "DELETE":
        path += "/" + ask(api, "POST", path, {"job": job}).json["id"]
    assert ask(api, method, path, {"job": job} if method == "POST" else None, scope).status_code == status


def test_from_python(served: tuple[Api, str]) -> None:
    api, url = served
    job, client = a_job(api), Client(url, TOKENS["operate"])
    made = client.associate_external_address(job, ["tcp/80"], 60)
    assert client.associate_external_address(job) == client.external_address(made["id"]) == made
    assert list(client.external_addresses(job)) == list(client.external_addresses()) == [made]
    assert client.release_external_address(made["id"])["released"] is not None


def test_from_the_command_line(over_socket: Api, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str, code: int = cli.OK) -> str:
        assert cli.main(["external", *words]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    job = a_job(over_socket)
    made = json.loads(run("add", job, "tcp/80", "icmp", "--seconds", "60", "--json"))
    assert run("add", job).splitlines()[1].split()[:2] == [made["id"], "198.51.100.64"]
    listed = run("list").splitlines()
    assert "icmp tcp/80" in listed[1]
    assert listed[-1].split() == ["public", "2", "1", "0", "1"]
    assert json.loads(run("list", "--job", job, "--json"))["addresses"] == [made]
    assert "over: released" in run("release", made["id"])
    assert "over: released" in run("show", made["id"])
    known = over_socket.controls.external.known
    known.clear()
    address, flow = (path.rpartition("/")[2] for path in with_reservation(over_socket, None))
    assert "its reservation ends" in run("show", address)
    del over_socket.controls.reservations.known[flow]
    assert "its job ends" in run("show", address)


def test_a_request_for_anothers_job_is_in_the_trail(api: Api) -> None:
    bobs = a_job(api, 2, "bob")
    refused = ask(api, "POST", "/v1/external-addresses", {"job": bobs}, "self")
    assert refused.status_code == 404
    assert [(job, reason) for job, _, reason in api.controls.external.refusals] == [
        (bobs, "asked for by another than its own user or host")
    ]
    # One that names no job at all is nobody's.
    assert ask(api, "POST", "/v1/external-addresses", {"job": "f" * 16}, "self").status_code == 404
    assert len(api.controls.external.refusals) == 1


def test_a_release_by_another_is_refused_and_in_the_trail(api: Api) -> None:
    made = ask(api, "POST", "/v1/external-addresses", {"job": (bobs := a_job(api, 2, "bob"))}).json
    path = f"/v1/external-addresses/{made['id']}"
    assert ask(api, "GET", path, scope="self").status_code == 404
    assert api.controls.external.refusals == []
    assert ask(api, "DELETE", path, scope="self").status_code == 404
    secret = add(api.tokens, "w9", {Scope.HOOK}, hosts=["worker9.example"])
    there = {"Authorization": f"Bearer {secret}"}
    assert api.client.delete(path, headers=there).status_code == 403
    why = "198.51.100.64: its release asked for by another than its job's user or host"
    assert api.controls.external.refusals == [(bobs, "self", why), (bobs, "w9", why)]
    assert api.get(path).json == made


def test_a_user_is_not_told_which_operator_or_worker_has_asked(api: Api) -> None:
    alices = a_job(api)
    made = ask(api, "POST", "/v1/external-addresses", {"job": alices}).json
    assert made["actor"] == "operate"
    shown = ask(api, "GET", f"/v1/external-addresses/{made['id']}", scope="self").json
    assert shown == made | {"actor": ""}
    assert ask(api, "GET", "/v1/external-addresses", scope="self").json["addresses"] == [shown]
    # Of what the user asked for there is no secret.
    ask(api, "DELETE", f"/v1/external-addresses/{made['id']}")
    again = ask(api, "POST", "/v1/external-addresses", {"job": alices}, "self").json
    assert again["actor"] == "self"


def test_a_name_is_a_label_and_pools_are_for_all_to_see(api: Api) -> None:
    wrong = ask(api, "POST", "/v1/external-addresses", {"job": a_job(api), "name": "a.b"})
    assert (wrong.status_code, wrong.json["errors"][0]["parameter"]) == (422, "name")
    pools = [{"name": "public", "total": 2, "used": 0, "quarantined": 0, "free": 2}]
    for scope in ("hook", "read", "operate", "self"):
        assert ask(api, "GET", "/v1/external-pools", scope=scope).json == {"pools": pools}


def test_a_gateway_is_told_what_has_changed(served: tuple[Api, str]) -> None:
    api, url = served
    client = Client(url, TOKENS["read"])
    assert client.external_translations()["translations"] == []
    ask(api, "POST", "/v1/external-addresses", {"job": a_job(api), "open": ["tcp/80"]})
    told = client.external_translations("", 0.1)
    (one,) = told["translations"]
    assert (one["address"], one["open"], told["whole"], told["more"], told["gone"]) == (
        "198.51.100.64", ["tcp/80"], True, False, [],
    )  # fmt: skip
    assert client.external_translations(told["revision"])["translations"] == []
    for scope, status in (("read", 200), ("self", 403), ("hook", 403)):
        assert ask(api, "GET", "/v1/external-translations", scope=scope).status_code == status
    assert ask(api, "GET", "/v1/external-translations?wait=61").status_code == 422


def test_a_gateway_confirms_by_its_tokens_name(served: tuple[Api, str]) -> None:
    api, url = served
    word = {"revision": "a.1", "pools": ["198.51.100.64/31"], "seconds": 4.0, "lacks": ["198.51.100.65"]}
    assert Client(url, TOKENS["gateway"]).confirm_external_translations(word) == word
    (noted,) = api.controls.external.words
    network, lacking = ip_network("198.51.100.64/31"), frozenset({ip_address("198.51.100.65")})
    assert noted == ("gateway", (network,), "a.1", 4.0, lacking)
    wrong: list[dict[str, object]] = [
        {"pools": ["2001:db8::/64"]}, {"pools": ["198.51.100.65/31"]}, {"lacks": ["x"]}, {"seconds": -1}, {"more": 1},
        {"pools": ["198.51.100.64/31"] * 65}, {"lacks": ["198.51.100.65"] * 2049}, {"revision": "9" * 65},
    ]  # fmt: skip
    for change in wrong:
        assert ask(api, "POST", "/v1/external-translations", word | change, "gateway").status_code == 422
    assert len(api.controls.external.words) == 1


def test_a_list_is_read_page_by_page(served: tuple[Api, str], monkeypatch: pytest.MonkeyPatch) -> None:
    api, url = served
    ids = [ask(api, "POST", "/v1/external-addresses", {"job": a_job(api, each)}).json["id"] for each in (1, 2)]
    first = api.get("/v1/external-addresses?limit=1").json
    assert ([each["id"] for each in first["addresses"]], len(first["pools"])) == (ids[:1], 1)
    second = api.get(first["next"]).json
    assert ([each["id"] for each in second["addresses"]], second["pools"]) == (ids[1:], [])
    assert (second["next"], second["next_cursor"]) == (None, None)
    assert ask(api, "GET", "/v1/external-addresses?cursor=x").status_code == 404
    real = Client._json
    monkeypatch.setattr(
        Client, "_json", lambda self, method, path, query=None, *more, **kw: real(self, method, path,
        {**query, "limit": 1} if query and "limit" in query else query, *more, **kw),
    )  # fmt: skip
    assert [each["id"] for each in Client(url, TOKENS["operate"]).external_addresses()] == ids
