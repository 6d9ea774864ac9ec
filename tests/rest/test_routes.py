from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import classad2
import pytest

from lark_common.errors import (
    AddressError,
    BusyError,
    LarkError,
    RuleLimitError,
    StoreError,
    SwitchError,
    UnsupportedError,
)
from lark_common.runs import NetworkType
from lark_common.worker_rules import WayOut, WaysOut, from_json
from lark_controller.jobs.job import JobState
from lark_controller.rest.forwarding.questions import PATHS
from lark_controller.rest.problems import CONTENT_TYPE
from tests.fixtures.fake_controls import DPID, bearer, post_body
from tests.fixtures.rest_app import Api, make_api
from tests.rest.guarded import GUARDED, JOB, PUBLIC


# Every operation that needs a token: method, path, the scopes that may.
@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def assert_problem(answer: Any, status: int, kind: str = "") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.content_type == CONTENT_TYPE
    found: dict[str, Any] = answer.json
    assert list(found)[:4] == ["type", "title", "status", "detail"]
    assert found["type"] == (f"urn:lark:problem:{kind}" if kind else "about:blank")
    assert found["status"] == status
    assert found["title"]
    assert found["detail"]
    return found


@pytest.mark.parametrize(
    ("state", "over"), [(JobState.ENDED, "has ended"), (JobState.REFUSED, "was refused (no capacity)")]
)
def test_nothing_is_explained_for_a_job_that_is_over(api: Api, state: JobState, over: str) -> None:
    job = api.register()
    known = api.controls.jobs.known
    known[job["id"]] = replace(known[job["id"]], state=state, reason="no capacity")
    for ends in (f"src={job['id']}&dst=192.0.2.1", f"src=192.0.2.1&dst={job['id']}"):
        problem = assert_problem(api.client.get(f"/v1/explain?{ends}", headers=bearer("read")), 404)
        words = f"{over}: nothing passes for it; accepted are live jobs and addresses"
        assert problem["detail"] == f"job {job['cluster']}.{job['proc']} {words}"


def test_a_job_has_the_names_that_htcondors_users_have(api: Api) -> None:
    job = api.register(1, "alice")
    other = api.register(2, "bob")
    number = f"{job['cluster']}.{job['proc']}"
    reader = bearer("read")
    for word in (number, job["global_job_id"].replace("#", "%23"), job["id"][:8]):
        shown: Any = api.client.get(f"/v1/jobs/{word}", headers=reader).json
        assert shown["id"] == job["id"]
        assert api.client.get(f"/v1/jobs/{word}/rates", headers=reader).status_code == 200
        explained = api.client.get(f"/v1/explain?src={word}&dst=10.0.0.2", headers=reader)
        assert explained.status_code == 200, explained.text
        listed: Any = api.client.get(f"/v1/audit?subject={word}", headers=reader).json
        assert {each["subject"] for each in listed["entries"]} == {job["id"]}
        # The token of a worker names its jobs by id alone.
        assert_problem(api.client.get(f"/v1/jobs/{word}", headers=bearer("hook")), 404)
    same = replace(api.controls.jobs.known[other["id"]], cluster=job["cluster"], proc=job["proc"])
    api.controls.jobs.known[other["id"]] = same
    problem = assert_problem(api.client.get(f"/v1/jobs/{number}", headers=reader), 409, "ambiguous")
    assert [each["id"] for each in problem["candidates"]] == [job["id"], other["id"]]


def test_the_table_of_guarded_operations_is_complete(api: Api) -> None:
    rules = {
        (method, re.sub(r"<[^>]*>", "*", rule.rule))
        for rule in api.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    listed = {(method, path.partition("?")[0].replace(JOB, "*").replace(DPID, "*")) for method, path, _ in GUARDED}
    listed = {
        (method, path.replace("10.64.0.1", "*").replace("worker1", "*").replace("ns/1", "ns/*").replace("ctl-a", "*"))
        for method, path in listed
    }
    # Joining needs a join token, which is no scope's, and instances have the key of the present term.
    others = {("POST", "/v1/join"), ("GET", "/v1/authority"), *(("POST", path) for path in PATHS)}
    assert rules == listed | {("GET", path) for path in PUBLIC} | others


@pytest.mark.parametrize(("method", "path", "scopes"), GUARDED)
def test_tokens(api: Api, method: str, path: str, scopes: set[str]) -> None:
    without = api.client.open(path, method=method)
    assert_problem(without, 401, "token")
    assert without.headers["WWW-Authenticate"] == 'Bearer realm="lark"'
    for header in ("Bearer nonsense", "Basic YTpi", "Bearer", "nonsense"):
        wrong = api.client.open(path, method=method, headers={"Authorization": header})
        assert_problem(wrong, 401, "token")
        assert "invalid_token" in wrong.headers["WWW-Authenticate"]
    expired = api.client.open(path, method=method, headers=bearer("expired"))
    assert "expired" in assert_problem(expired, 401, "token")["detail"]
    for scope in ("hook", "read", "operate", "self", "gateway"):
        answer = api.client.open(path, method=method, headers=bearer(scope))
        if scope in scopes:
            assert answer.status_code not in (401, 403), answer.text
        else:
            assert_problem(answer, 403, "scope")
            assert "insufficient_scope" in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize("path", PUBLIC)
def test_public(api: Api, path: str) -> None:
    assert api.client.get(path.replace("*", "style.css"), follow_redirects=True).status_code == 200


def test_every_answer_carries_security_headers_and_no_cors(api: Api) -> None:
    for answer in (api.client.get("/healthz"), api.client.get("/nowhere"), api.get("/v1/jobs", Origin="http://x")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_unknown_routes_and_methods_are_problems(api: Api) -> None:
    assert_problem(api.client.get("/v1/nowhere"), 404)
    answer = api.client.patch("/v1/policy")
    assert "GET" in assert_problem(answer, 405)["detail"]
    assert "PUT" in answer.headers["Allow"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry"),
    [
        (AddressError("LarkInnerAddressIPv4", "10.64.0.1 is held", JOB), 409, "address", False),
        (StoreError("The database is gone."), 503, "store", True),
        (BusyError("Too much."), 503, "busy", True),
        (RuleLimitError("4096 rules are the limit of core1."), 409, "rule-limit", False),
        (UnsupportedError("core1 has no meters."), 409, "unsupported", False),
        (SwitchError("core1 refused."), 502, "switch", False),
        (LarkError("Something else."), 500, "", False),
        (ZeroDivisionError("secret detail"), 500, "", False),
    ],
)
@pytest.mark.parametrize("method_path", [("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("PUT", "/v1/policy")])
def test_errors_of_the_controller(
    api: Api, error: Exception, status: int, kind: str, retry: bool, method_path: tuple[str, str]
) -> None:
    api.controls.error = error
    method, path = method_path
    scope = {"POST": "hook", "GET": "read", "PUT": "operate"}[method]
    body = None if method == "GET" else post_body()
    answer = api.client.open(path, method=method, data=body, content_type="text/plain", headers=bearer(scope))
    found = assert_problem(answer, status, kind)
    assert ("Retry-After" in answer.headers) == retry
    if kind == "address":
        assert (found["holder"], found["attribute"]) == (JOB, "LarkInnerAddressIPv4")
    if status == 500:
        assert "secret" not in answer.text


def test_an_unexpected_error_has_the_id_that_is_in_the_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    api.controls.error = ZeroDivisionError("secret detail")
    found = assert_problem(api.get("/v1/switches"), 500)
    fields = [record.__dict__["lark_fields"] for record in caplog.records if "lark_fields" in record.__dict__]
    assert [field["instance"] for field in fields if "instance" in field] == [found["instance"]]
    assert all(record.exc_info is None for record in caplog.records)


def test_a_run_is_registered_once(api: Api) -> None:
    first = api.post(post_body(), path="/v1/jobs?wait=2")
    assert first.status_code == 201
    assert first.json["state"] == "enforced"
    assert first.json["confirmed"] == [DPID]
    assert first.json["waiting"] == []
    assert first.json["addresses"] == [{"address": "10.64.0.1", "family": 4, "block": "10.64.0.0/26"}]
    assert first.json["lease_until"] == "2023-11-14T22:28:20.000Z"
    assert api.get(first.headers["Location"]).json["id"] == first.json["id"]
    second = api.post(post_body())
    assert second.status_code == 200
    assert second.json["id"] == first.json["id"]
    assert api.controls.audit.trail[0].actor == "hook"


def test_json_ads(api: Api) -> None:
    job, machine = post_body().split("------\n")
    as_text = api.post(json.dumps({"job_ad": job, "machine_ad": machine}), kind="application/json")
    assert as_text.status_code == 201, as_text.text
    assert as_text.json["id"] == api.post(post_body()).json["id"]


def test_the_switches_that_have_not_confirmed_are_named(api: Api) -> None:
    api.controls.gate.clear()
    answer = api.post(post_body(), path="/v1/jobs?wait=0.01").json
    assert answer["state"] == "registering"
    assert answer["waiting"] == [{"datapath": DPID, "reason": "no barrier reply yet"}]


def test_classad_answer(api: Api) -> None:
    answer = api.post(post_body(), path="/v1/jobs?wait=1", Accept="text/plain")
    assert answer.status_code == 201
    assert answer.mimetype == "text/plain"
    ad = classad2.parseOne(answer.text)
    assert ad["LarkState"] == "enforced"
    assert ad["LarkInnerAddressIPv4"] == "10.64.0.1"
    assert ad["LarkAddressBlockIPv4"] == "10.64.0.0/26"
    assert ad["LarkConfirmed"] == DPID
    assert re.fullmatch("[0-9a-f]{16}", ad["LarkJobId"])


@pytest.mark.parametrize(
    ("body", "kind", "status", "problem"),
    [
        (b"{", "application/json", 400, "json"),
        (b"[" * 100000, "application/json", 400, "json"),
        (b"a=b", "application/x-www-form-urlencoded", 415, ""),
        (b"x" * 300000, "text/plain", 413, ""),
        (b"nonsense", "text/plain", 422, "ad"),
        (b"Owner = \xff", "text/plain", 422, "ad"),
        (b"", "text/plain", 422, "ad"),
        (post_body().replace("Owner", "Omner").encode(), "text/plain", 422, "ad"),
    ],
)
def test_bodies_that_are_refused(api: Api, body: bytes, kind: str, status: int, problem: str) -> None:
    found = assert_problem(api.post(body, kind=kind), status, problem)
    if problem == "ad":
        assert {"attribute", "reason"} <= set(found)


def test_an_ad_without_owner_names_the_attribute(api: Api) -> None:
    found = assert_problem(api.post(post_body().replace("Owner", "Omner")), 422, "ad")
    assert found["attribute"] == "Owner"


def test_an_address_held_by_another_job(api: Api) -> None:
    holder = api.register(1, address="10.64.0.9")
    found = assert_problem(api.post(post_body(2, address="10.64.0.9")), 409, "address")
    assert found["holder"] == holder["id"]


@pytest.mark.parametrize("wait", ["-1", "31", "nan", "inf", "soon", ""])
def test_waits_that_are_refused(api: Api, wait: str) -> None:
    found = assert_problem(api.post(post_body(), path=f"/v1/jobs?wait={wait}"), 422, "parameters")
    assert found["errors"][0]["parameter"] == "wait"
    assert not api.controls.jobs.known


def test_a_worker_renews_all_its_jobs_and_hears_of_those_that_are_not_its_own(api: Api) -> None:
    job = api.register()
    asked = json.dumps({"jobs": [job["id"], "0" * 16]})

    def renewed(host: str, body: str) -> Any:
        return api.post(body, f"/v1/hosts/{host}/leases", "application/json")

    answer = renewed(job["host"].upper(), asked)
    assert answer.json["missing"] == ["0" * 16]
    assert answer.json["lease_until"] > job["lease_until"]
    assert renewed("elsewhere", asked).json["missing"] == [job["id"], "0" * 16]
    for wrong in ("[]", "{}", '{"jobs": "all"}', '{"jobs": [1]}', '{"jobs": [], "more": 1}'):
        assert_problem(renewed("worker1", wrong), 422, "parameters")
    assert_problem(renewed("worker1", "{"), 400, "json")


def test_renew_end_and_end_again(api: Api) -> None:
    job = api.register()
    path = f"/v1/jobs/{job['id']}"
    assert api.post("", path=f"{path}/renew").json["lease_until"] > job["lease_until"]
    for _ in range(2):
        ended = api.client.delete(path, data="ExitCode = 0", content_type="text/plain", headers=bearer("hook"))
        assert ended.get_json()["state"] == "ended"
    assert_problem(api.client.delete(path, data=b"\xff", content_type="text/plain", headers=bearer("hook")), 400)
    assert_problem(api.client.delete(path, data="<a/>", content_type="text/xml", headers=bearer("hook")), 415)
    assert_problem(api.client.delete(path, json={}, headers=bearer("hook")), 422, "parameters")
    assert api.client.delete(path, json={"exit_ad": "ExitCode = 0"}, headers=bearer("hook")).status_code == 200
    assert_problem(api.post("", path=f"{path}/renew"), 404)
    assert api.get(path).json["ended"] == "2023-11-14T22:14:20.000Z"
    assert_problem(api.get("/v1/jobs/nonsense"), 404)


def test_paging_meets_every_job_once(api: Api) -> None:
    for cluster in range(1, 8):
        api.register(cluster)
    url, seen = "/v1/jobs?limit=3&owner=alice", []
    while url:
        page = api.get(url).json
        seen += [job["cluster"] for job in page["jobs"]]
        url = page["next"]
    assert seen == list(range(1, 8))
    assert_problem(api.get("/v1/jobs?cursor=nonsense"), 404)
    assert len(api.get("/v1/audit?limit=2").json["entries"]) == 2


def test_a_page_of_the_trail_asks_for_all_its_switches_at_once(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook may note forgeries of jobs without number that nobody knows: each of them may be a switch's."""
    asked: list[int] = []
    names = api.controls.switches.names

    def counted(ids: Collection[str]) -> dict[str, str]:
        asked.append(len(ids))
        return names(ids)

    monkeypatch.setattr(api.controls.switches, "names", counted)
    monkeypatch.delattr(type(api.controls.switches), "find")
    for number in range(20):
        api.controls.audit.note("hook:test", "forged ad", f"{number:016x}")
    api.controls.audit.note("lark", "switch connected", DPID)
    listed = api.get("/v1/audit?limit=100").json["entries"]
    assert [entry["name"] for entry in listed if entry["name"]] == ["worker1"]
    assert asked == [21]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "ownr=bob", "state=gone", "owner=%00", "owner=", "cursor=%0a"]
)
def test_parameters_that_are_refused(api: Api, query: str) -> None:
    assert_problem(api.get(f"/v1/jobs?{query}"), 422, "parameters")


def test_filters(api: Api) -> None:
    api.register(1, "alice")
    api.register(2, "bob")
    assert [job["owner"] for job in api.get("/v1/jobs?owner=bob").json["jobs"]] == ["bob"]
    assert api.get("/v1/jobs?state=ended").json["jobs"] == []
    assert len(api.get("/v1/jobs?state=any").json["jobs"]) == 2


def test_the_job_behind_an_address(api: Api) -> None:
    job = api.register()
    found = api.get("/v1/addresses/10.64.0.1").json
    assert found["id"] == job["id"]
    assert found["decision"]["slice"] == {"rule": 1, "value": '"alice"'}
    assert found["decision"]["because"][0]["values"] == {"Owner": '"alice"'}
    assert_problem(api.get("/v1/addresses/10.64.0.2"), 404)
    assert_problem(api.get("/v1/addresses/nonsense"), 422, "parameters")


def test_policy(api: Api) -> None:
    def put(text: str | bytes) -> Any:
        return api.client.put("/v1/policy", data=text, content_type="application/yaml", headers=bearer("operate"))

    assert put("version: 1\nnew: true\n").json["version"] == 2
    assert api.get("/v1/policy").json["text"] == "version: 1\nnew: true\n"
    text = api.get("/v1/policy", Accept="application/yaml")
    assert (text.mimetype, text.text) == ("application/yaml", "version: 1\nnew: true\n")
    found = assert_problem(put("blok: []"), 422, "policy")
    assert [mistake["line"] for mistake in found["mistakes"]] == [1, 2]
    assert set(found["mistakes"][0]) == {"line", "column", "key", "problem", "accepted"}
    assert_problem(put(b"\xff"), 400)
    assert api.get("/v1/policy").json["version"] == 2

    def post(path: str, text: str) -> Any:
        return api.client.post(path, data=text, content_type="application/yaml", headers=bearer("read"))

    assert post("/v1/policy/check", "blok: []").json["valid"] is False
    assert post("/v1/policy/check", "version: 1").json == {"valid": True, "mistakes": [], "warnings": []}
    warned = post("/v1/policy/check", "version: 1\ntopology: {}").json
    assert (warned["valid"], warned["warnings"]) == (True, ["topology.hosts has no default"])
    assert post("/v1/policy/plan", "version: 1").json["jobs_changed"] == 1
    assert_problem(post("/v1/policy/plan", "blok: []"), 422, "policy")

    def post_json(path: str, body: object) -> Any:
        return api.client.post(path, json=body, headers=bearer("read"))

    assert post_json("/v1/policy/check", {"text": "version: 1"}).json["valid"] is True
    assert post_json("/v1/policy/plan", {"text": "version: 1"}).json["jobs_changed"] == 1
    found = assert_problem(post_json("/v1/policy/plan", {"text": "blok: []"}), 422, "policy")
    assert found["mistakes"][0]["key"] == "version"
    assert_problem(post_json("/v1/policy/check", {"policy": "version: 1"}), 422, "parameters")
    assert_problem(post_json("/v1/policy/check", ["version: 1"]), 422, "parameters")
    by_operator = api.client.put("/v1/policy", json={"text": "version: 1\n# json\n"}, headers=bearer("operate"))
    assert by_operator.get_json()["text"] == "version: 1\n# json\n"
    assert api.get("/v1/policy/schema").json["$schema"].startswith("https://json-schema.org/")


def test_the_policys_versions(api: Api) -> None:
    first = api.get("/v1/policy").json
    for number in range(2, 5):
        api.controls.policy.put(f"version: 1\n# {number}\n", "somebody")
    page = api.get("/v1/policy/versions?limit=2").json
    assert [each["version"] for each in page["versions"]] == [4, 3]
    assert set(page["versions"][0]) == {"version", "digest", "at", "actor"}
    rest = api.get(page["next"]).json
    assert [each["version"] for each in rest["versions"]] == [2, 1]
    assert rest["next"] is None
    assert api.get("/v1/policy/versions/1").json == first
    assert_problem(api.get("/v1/policy/versions/9"), 404)
    found = api.get("/v1/policy/difference?old=1&new=3").json
    assert (found["old"]["version"], found["new"]["actor"], found["added"], found["removed"]) == (1, "somebody", 1, 0)
    assert found["diff"] == "@@ -1,1 +1,2 @@\n version: 1\n+# 3\n"
    assert api.get("/v1/policy/difference?old=3").json["new"]["version"] == 4
    assert_problem(api.get("/v1/policy/difference"), 422, "parameters")

    def restore(version: int, digest: str) -> Any:
        headers = bearer("operate") | {"If-Match": f'"{digest}"'}
        return api.client.post(f"/v1/policy/versions/{version}/restore", headers=headers)

    assert_problem(restore(1, first["digest"]), 412, "changed")
    assert restore(1, api.get("/v1/policy").json["digest"]).get_json()["version"] == 5
    assert api.get("/v1/policy").json["text"] == first["text"]


def test_readiness(api: Api) -> None:
    api.controls.health.is_ready = False
    answer = api.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.get_json()["reasons"] == ["the policy was not read"]
    assert api.client.get("/healthz").status_code == 200


def test_a_worker_gets_its_rules_and_confirms_them(api: Api) -> None:
    found = api.get("/v1/hosts/worker1/rules", scope="hook").json
    assert (found["host"], found["revision"], found["waiting"]) == ("worker1", "5f0e12ab.17", ["0123456789abcdef"])
    assert from_json(found["rules"]) == api.controls.workers.rules("worker1", "", 0).rules
    assert api.register(1, "alice")["host"] == "worker1.example"
    named = {scope: api.get("/v1/hosts/worker1/rules", scope=scope).json["host"] for scope in ("read", "hook")}
    # Hooks name hosts in full alone.
    assert named == {"read": "worker1.example", "hook": "worker1"}
    assert api.get("/v1/hosts/worker1/paths", scope="read").status_code == 200
    known = api.get("/v1/hosts/worker1/rules?after=5f0e12ab.17&wait=0", scope="hook").json
    assert known["rules"] is None
    sent: dict[str, object] = {"revision": "5f0e12ab.17", "refused": {"0123456789abcdef": "why"}}
    sent |= {"late": ["fedcba9876543210"], "uplinks": {"eth0": 1000, "eth1": None}}
    sent["ways"] = [{"network_type": "nat", "uplinks": ["eth1"]}]
    answer = api.client.put("/v1/hosts/worker1/rules", json=sent, headers=bearer("hook"))
    assert answer.status_code == 200
    out = WaysOut({"eth0": 1000, "eth1": None}, (WayOut(NetworkType.NAT, frozenset({"eth1"})),))
    assert api.controls.workers.reports == [
        ("worker1", "5f0e12ab.17", {"0123456789abcdef": "why"}, "fedcba9876543210", out)
    ]


@pytest.mark.parametrize(
    "sent",
    [
        "[]",
        "{}",
        '{"revision": 1}',
        '{"revision": "a", "refused": {"b": 1}}',
        '{"revision": "a", "late": [1]}',
        '{"revision": "a", "uplinks": {"eth0": -1}}',
        '{"revision": "a", "uplinks": {"eth0\\nforged": 1}}',
        '{"revision": "a", "uplinks": {"": 1}}',
        json.dumps({"revision": "a", "uplinks": {"e" * 16: 1}}),
        '{"revision": "a", "uplinks": {"eth0": true}}',
        '{"revision": "a", "uplinks": {"eth0": "1000"}}',
        '{"revision": "a", "uplinks": {"eth0": 10000001}}',
        json.dumps({"revision": "a", "uplinks": {f"eth{number}": 1 for number in range(65)}}),
        '{"revision": "a", "ways": [{"network_type": "nat"}]}',
        '{"revision": "a", "ways": [{"network_type": "ovs_bridge", "uplinks": []}]}',
        '{"revision": "a", "ways": [{"network_type": "nat", "uplinks": ["eth0/1"]}]}',
        json.dumps({"revision": "a", "ways": [{"network_type": "nat", "uplinks": []}] * 65}),
        json.dumps({"revision": "a", "refused": {"b": "x" * 1025}}),
        '{"revision": "a", "more": 1}',
        '{"revision": "a", "late": null}',
    ],
)
def test_a_confirmation_that_is_none_is_refused(api: Api, sent: str) -> None:
    headers = bearer("hook") | {"Content-Type": "application/json"}
    answer = api.client.put("/v1/hosts/worker1/rules", data=sent, headers=headers)
    assert_problem(answer, 422, "parameters")
    assert api.controls.workers.reports == []


@pytest.mark.parametrize("text", ["\\ud800", "\\u0000", "a\\\\\\u0000"])
def test_text_that_no_store_keeps_is_refused_at_the_door(api: Api, text: str) -> None:
    """Such a reason would be tried to be written for ever, and the states of all other jobs behind it."""
    body = f'{{"revision": "1.1", "refused": {{"{JOB}": "{text}"}}}}'
    answer = api.client.put(
        "/v1/hosts/worker1/rules", data=body, content_type="application/json", headers=bearer("hook")
    )
    assert_problem(answer, 400, "json")


def test_a_backslash_before_u0000_is_text(api: Api) -> None:
    body = json.dumps({"revision": "1.1", "refused": {JOB: "C:\\u0000"}})
    answer = api.client.put(
        "/v1/hosts/worker1/rules", data=body, content_type="application/json", headers=bearer("hook")
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("method", "path"), [("DELETE", f"/v1/jobs/{JOB}"), ("POST", f"/v1/jobs/{JOB}/forgery")])
def test_a_nul_in_kept_text_is_refused_for_good(api: Api, method: str, path: str) -> None:
    answer = api.client.open(path, method=method, data=b"a = 1\0", content_type="text/plain", headers=bearer("hook"))
    assert "NUL" in assert_problem(answer, 400)["detail"]
