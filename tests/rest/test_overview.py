"""The operator's pages and the API: requests that no other client makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lark_controller.api.reservations import LinkStatus, Seen
from lark_controller.api.switches import SwitchStatus
from lark_controller.jobs.job import JobState
from lark_controller.rest.resources.overview import needs_attention
from tests.fixtures.fake_controls import bearer
from tests.fixtures.rest_app import Api, make_api


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def test_the_overview_counts_jobs_and_switches_and_names_the_switches_to_look_at(api: Api) -> None:
    for number, state in enumerate((JobState.PENDING, JobState.ENFORCED, JobState.ENFORCED)):
        job_id = api.register(number)["id"]
        api.controls.jobs.known[job_id] = replace(api.controls.jobs.known[job_id], state=state)
    found = api.get("/v1/overview").json
    states = {"registering": 0, "pending": 1, "enforced": 2, "no_network": 0, "quarantined": 0}
    assert found["jobs"] == states | {"blocked": 0, "isolated": 0}
    assert found["drops"] == {
        "jobs": 0,
        "groups": 0,
        "packets_per_second": 0.0,
        "uncounted": 0,
        "unread": 0,
        "cores_unread": 0,
        "down": [],
    }
    assert found["switches"] == {"known": 2, "connected": 1, "in_sync": 1, "desired": 10, "installed": 10}
    # Both ask for attention: core1 never connected, worker1 was changed by somebody else.
    assert [switch["name"] for switch in found["shown"]] == ["core1", "worker1"]
    assert found["policy"]["version"] == 1
    assert "text" not in found["policy"]
    assert found["ready"] is True


@pytest.mark.parametrize(
    ("changed", "asks"),
    [
        ({}, False),
        ({"in_sync": False}, True),
        ({"waiting": 1}, True),
        ({"drift": 1}, True),
        ({"desired": 89}, False),
        ({"desired": 90}, True),
    ],
)
def test_which_switches_ask_for_attention(changed: dict[str, int], asks: bool) -> None:
    calm = SwitchStatus("00000000000000e1", "w", "edge", True, True, desired=10, max_rules=100)
    assert needs_attention(replace(calm, **changed)) is asks  # type: ignore[arg-type]  # a table of changes


def test_a_worker_whose_switch_has_no_name_is_called_by_its_host_on_the_map(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, *_ = api.controls.switches.all()
    nameless = replace(edge, name=edge.datapath)
    bare = replace(nameless, datapath="00000000000000ee", name="00000000000000ee", host="")
    monkeypatch.setattr(api.controls.switches, "all", lambda: (nameless, bare))
    names = {each["datapath"]: each["name"] for each in api.get("/v1/map").json["edges"]}
    assert (names[nameless.datapath], names[bare.datapath]) == (nameless.host, bare.datapath)


def test_workers_that_are_well_stand_on_the_map_by_their_names_and_not_by_their_rates(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, *_ = api.controls.switches.all()
    well = replace(edge, connected=True, in_sync=True, waiting=0, jobs=1)
    dpids = ("00000000000000e2", "00000000000000e3", "00000000000000e1")
    several = [
        replace(well, datapath=dpid, name=name, host=name, jobs=jobs)
        for dpid, name, jobs in zip(dpids, ("worker2", "worker3", "worker1"), (9, 1, 5), strict=True)
    ]
    several[1] = replace(several[1], in_sync=False)
    monkeypatch.setattr(api.controls.switches, "all", lambda: several)
    # Those that are not come first, worker9 among them, which has no switch.
    assert [each["name"] for each in api.get("/v1/map").json["edges"]] == ["worker9", "worker3", "worker1", "worker2"]


def test_a_worker_has_on_the_map_the_capacity_of_the_links_that_the_policy_declares_at_its_host(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, *_ = api.controls.switches.all()
    several = [replace(edge, datapath=f"00000000000000e{at}", host=f"w{at}.example") for at in range(1, 5)]
    monkeypatch.setattr(api.controls.switches, "all", lambda: several)
    ends = ("W1.example", "core1")
    links = [
        LinkStatus("access:w1.example", "", "", "half", 50.0, 0.0, ()),
        LinkStatus("t1", "W1.example", "core1", "full", 60.0, 0.0, ends),
        LinkStatus("t1", "core1", "W1.example", "full", 60.0, 0.0, ends),
        LinkStatus("t2", "", "", "half", 10.0, 0.0, ("w2.example", "core1")),
        LinkStatus("t3", "", "", "half", 20.0, 0.0, ("w2.example", "core2")),
        LinkStatus("access:w3.example", "", "", "half", 50.0, 0.0, ()),
    ]
    monkeypatch.setattr(api.controls.reservations, "links", lambda: Seen("", tuple(links)))
    shown = {each["datapath"]: (each["capacity"], each["shared"]) for each in api.get("/v1/map").json["edges"]}
    assert [shown[each.datapath] for each in several] == [(60.0, False), (30.0, True), (50.0, True), (None, False)]


def test_a_token_can_ask_what_it_is(api: Api) -> None:
    assert api.get("/v1/token", "hook").json == {
        "name": "hook",
        "scopes": ["hook"],
        "expires": None,
        "hosts": None,
        "user": None,
    }
    assert api.get("/v1/token", "operate").json["scopes"] == ["operate"]
    assert api.get("/v1/token", "expired").status_code == 401


def test_jobs_from_the_newest_on_page_by_page(api: Api) -> None:
    ids = [api.register(number)["id"] for number in range(5)]
    seen, path = [], "/v1/jobs?order=newest&limit=2"
    while path:
        page = api.get(path).json
        seen += [job["id"] for job in page["jobs"]]
        path = page["next"]
    assert seen == ids[::-1]
    assert api.get("/v1/jobs?order=random").status_code == 422


def test_the_flows_of_one_job(api: Api) -> None:
    assert len(api.get("/v1/switches/worker1/flows").json["flows"]) == 1
    assert api.get("/v1/switches/worker1/flows?job=0123456789abcdef").json["flows"] == []


def test_a_policy_is_put_in_place_of_the_one_that_was_read(api: Api) -> None:
    shown = api.get("/v1/policy")
    tag = shown.headers["ETag"]
    assert tag == f'"{shown.json["digest"]}"'

    def put(text: str, **headers: str) -> int:
        made = {**bearer("operate"), **{name.replace("_", "-"): value for name, value in headers.items()}}
        answer = api.client.put("/v1/policy", data=text, content_type="application/yaml", headers=made)
        if answer.status_code == 412:
            assert "urn:lark:problem:changed" in answer.text
        return int(answer.status_code)

    assert put("version: 1\n# a\n", If_Match=tag) == 200
    assert put("version: 1\n# b\n", If_Match=tag) == 412
    assert api.get("/v1/policy").json["text"] == "version: 1\n# a\n"
    assert put("version: 1\n# b\n", If_Match="*") == 200
    assert put("version: 1\n# c\n", If_Match='"a", "b"') == 400


def test_flows_are_chosen_and_paged_as_other_lists_are(api: Api) -> None:
    found = api.get("/v1/switches/worker1/flows?table=0&text=job&limit=1").json
    assert found["tables"] == [{"number": 0, "name": "admit", "flows": 1}]
    assert (found["next"], found["next_cursor"]) == (None, None)
    assert api.get("/v1/switches/worker1/flows?cursor=x").status_code == 404
    for bad in ("table=256", "table=x", "limit=0", "text=%00"):
        assert api.get(f"/v1/switches/worker1/flows?{bad}").status_code == 422
