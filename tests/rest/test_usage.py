"""The API's answers about usage: history, rates, counters of workers."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lark_controller.accounting.usage import JobUsage, Peak, Usage
from lark_controller.api.usage import UsageFilter, UsageRow
from tests.fixtures.fake_controls import bearer, post_body
from tests.fixtures.fake_usage import a_pair
from tests.fixtures.rest_app import Api, make_api
from tests.rest.test_routes import assert_problem

DAY_ONE = 1_700_006_400
USE = Usage(*(*range(1, 13), 1500, *range(14, 18), 18_000))


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


def asked(api: Api) -> UsageFilter:
    assert api.controls.usage.asked is not None
    return api.controls.usage.asked


def wrong(answer: Any) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {each["parameter"]: each["problem"] for each in answer.json["errors"]}


def test_rows_have_their_subject_and_every_sum(api: Api) -> None:
    api.controls.usage.history = [UsageRow(USE, DAY_ONE, DAY_ONE + 3600, user="alice@example", group="group_cms")]
    body = api.get(f"/v1/usage?by=user&from={DAY_ONE}&to={DAY_ONE + 3600}").json
    assert (body["start"], body["end"], body["bucket_seconds"]) == (
        "2023-11-15T00:00:00.000Z",
        "2023-11-15T01:00:00.000Z",
        60,
    )
    assert body["rows"] == [
        {
            "start": "2023-11-15T00:00:00.000Z", "end": "2023-11-15T01:00:00.000Z", "job": None, "owner": None,
            "user": "alice@example", "group": "group_cms", "host": None, "final": None, "bytes_in": 1, "bytes_out": 2,
            "packets_in": 3, "packets_out": 4, "wan_bytes_in": 5, "wan_bytes_out": 6, "wan_packets_in": 7,
            "wan_packets_out": 8, "policy_drops_in": 9, "policy_drops_out": 10, "rate_drops_in": 11,
            "rate_drops_out": 12, "throttled_seconds": 1.5, "transfer_bytes_in": 14, "transfer_bytes_out": 15,
            "transfer_wan_bytes_in": 16, "transfer_wan_bytes_out": 17, "transfer_seconds": 18.0,
        }
    ]  # fmt: skip
    assert (body["next"], body["next_cursor"]) == (None, None)


@pytest.mark.parametrize(
    ("query", "start", "end", "seconds"),
    [
        (f"from={DAY_ONE + 5}&to={DAY_ONE + 65}", DAY_ONE, DAY_ONE + 120, 60),
        ("from=2023-11-15T00:00:05Z&to=2023-11-15T01:01:00%2B01:00", DAY_ONE, DAY_ONE + 60, 60),
        ("from=2023-11-15&to=2023-11-20&bucket=day", DAY_ONE, DAY_ONE + 5 * 86400, 86400),
        ("from=2023-11-15T00:00:05&to=2023-11-15T12:00:01", DAY_ONE, DAY_ONE + 13 * 3600, 3600),
        (f"to={DAY_ONE + 60}", DAY_ONE - 86400, DAY_ONE + 3600, 3600),
    ],
)
def test_times_are_read_in_either_form_and_rounded_to_whole_buckets(
    api: Api, query: str, start: int, end: int, seconds: int
) -> None:
    assert api.get(f"/v1/usage?{query}").status_code == 200
    chosen = asked(api)
    assert (chosen.start, chosen.end, chosen.seconds) == (start, end, seconds)


def test_a_jobs_stretch_is_as_it_was_asked(api: Api) -> None:
    api.get(f"/v1/usage?by=job&from={DAY_ONE + 5.5}&to={DAY_ONE + 7}&host=worker1&user=alice&group=group_cms")
    chosen = asked(api)
    assert (chosen.start, chosen.end, chosen.bucket) == (DAY_ONE + 5.5, DAY_ONE + 7, None)
    assert (chosen.host, chosen.user, chosen.group) == ("worker1", "alice", "group_cms")


def test_what_is_not_kept_is_refused(api: Api) -> None:
    assert wrong(api.get("/v1/usage?by=host&group=group_cms")) == {"group": "use by host is not kept by group"}
    assert wrong(api.get("/v1/usage?by=group&user=a&host=b")).keys() == {"user", "host"}
    assert wrong(api.get("/v1/usage?by=job&bucket=hour")) == {"bucket": "use by job is kept for the whole job"}
    assert wrong(api.get("/v1/usage?from=2023-11-16&to=2023-11-15")) == {"from": "a time before `to` is accepted"}
    for text in ("yesterday", "-5", "99999999999999", "nan", "2023-13-01"):
        assert wrong(api.get(f"/v1/usage?from={text}")).keys() == {"from"}, text
    for query in ("by=address", "bucket=week", "limit=0", "limit=10001", "format=xml", "since=1"):
        assert api.get(f"/v1/usage?{query}").status_code == 422, query
    assert api.get("/v1/usage?cursor=nonsense").status_code == 404


def test_pages_go_on_by_their_cursor(api: Api) -> None:
    api.controls.usage.history = [UsageRow(USE, DAY_ONE, DAY_ONE + 60, group=f"group_{n}") for n in range(5)]
    path: str | None = f"/v1/usage?limit=2&from={DAY_ONE}&to={DAY_ONE + 60}"
    found = []
    while path:
        body = api.get(path).json
        found += [row["group"] for row in body["rows"]]
        path = body["next"]
    assert found == [f"group_{n}" for n in range(5)]


@pytest.mark.parametrize("how", ["format=csv", "Accept"])
def test_csv_has_the_members_as_columns_and_no_formulas(api: Api, how: str) -> None:
    names = ["group_cms", '=HYPERLINK("http://evil")', "+1", "-1", "@x", 'a "b", c']
    api.controls.usage.history = [UsageRow(USE, DAY_ONE, DAY_ONE + 60, group=name) for name in names]
    headers = {"Accept": "text/csv"} if how == "Accept" else {}
    answer = api.get(f"/v1/usage?limit=5&{how if how != 'Accept' else ''}", **headers)
    assert answer.content_type == "text/csv; charset=utf-8"
    assert 'rel="next"' in answer.headers["Link"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["group"] for row in rows] == ["group_cms", *(f"'{name}" for name in names[1:5])]
    assert rows[0]["bytes_out"] == "2"
    assert rows[0]["job"] == ""
    assert set(rows[0]) == set(api.get("/v1/usage").json["rows"][0])


def test_advice_has_every_number_and_a_sentence(api: Api) -> None:
    body = post_body(1).replace("JobPrio = 0", "RequestBandwidth = 100")
    job = api.post(body).json["id"]
    assert api.get(f"/v1/jobs/{job}/advice").json == {
        "job": job, "verdict": "unknown", "reason": "not counted",
        "sentence": "nothing is known of its use: the policy does not count it, or it is not kept any more",
        "asked": 100.0, "mode": "cap", "counts": 100.0, "advised": None, "bounded_by": "", "seconds": 0.0,
        "mean": {"inward": 0.0, "outward": 0.0}, "highest": {"inward": 0.0, "outward": 0.0}, "throttled": 0.0,
        "dropped_in": 0, "dropped_out": 0, "so_far": False, "wan_bytes_in": None, "wan_bytes_out": None,
        "pairs": None,
    }  # fmt: skip
    usage = Usage(
        bytes_in=125_000_000, packets_in=90_000, wan_bytes_in=70_000, wan_bytes_out=9, rate_drops_in=5, throttled=31_000
    )
    api.controls.jobs.used[job] = JobUsage(usage, at=1.7e9 + 100, peak=Peak(99_000_000, 1_000_000))
    for name in (job, job[:6], "1.0", "submit.example%231.0%231700000000"):
        found = api.get(f"/v1/jobs/{name}/advice").json
        assert found == {
            "job": job, "verdict": "too little", "reason": "", "asked": 100.0, "mode": "cap", "counts": 100.0,
            "sentence": "asked for 100 Mb/s, used 99 at most, throttled 31 % of the time, lost 5 packets in its queues:"
            " ask for 180",
            "advised": 180, "bounded_by": "", "seconds": 100.0, "mean": {"inward": 10.0, "outward": 0.0},
            "highest": {"inward": 99.0, "outward": 1.0}, "throttled": 0.31, "dropped_in": 5, "dropped_out": 0,
            "so_far": True, "wan_bytes_in": 70_000, "wan_bytes_out": 9, "pairs": None,
        }  # fmt: skip
    assert api.get(f"/v1/jobs/{job}").json["usage"]["peak"] == {"inward": 99.0, "outward": 1.0}
    assert_problem(api.get("/v1/jobs/0000000000000000/advice"), 404)
    assert_problem(api.get("/v1/jobs/77.0/advice"), 404)


def test_a_hook_asks_for_advice_by_ids_alone(api: Api) -> None:
    job = api.register(1)["id"]
    for word, status in ((job, 200), (job[:6], 404), ("1.0", 404)):
        assert api.client.get(f"/v1/jobs/{word}/advice", headers=bearer("hook")).status_code == status


def test_pairs_have_every_number_and_a_sentence(api: Api) -> None:
    job, peer = api.register(1)["id"], api.register(2)["id"]
    assert api.get(f"/v1/jobs/{job}/pairs").json["pairs"] == []
    api.controls.usage.reserved = [a_pair(job, peer)]
    pair = {
        "name": "node 0 to node 1", "job": job, "node": 0, "peer": peer, "peer_node": 1, "destination": "worker2",
        "verdict": "too much", "reason": "", "asked": 100.0, "asked_least": 50.0, "steady": True, "advised": 40,
        "bounded_by": "", "seconds": 1000.0, "mean": 8.0, "highest": 34.0, "highest_seconds": 10.0, "throttled": 0.0,
        "dropped": 3, "so_far": True,
        "sentence": "asked for steady 50 to 100 Mb/s, used 34 at most, never throttled, lost 3 packets in its queue:"
        " 40 is enough",
    }  # fmt: skip
    short = {"sentence": f"1 pair, 1 asked for too much; node 0 to node 1: {pair['sentence']}", "advised": 40}
    for name in (job, job[:6], "1.0"):
        found = api.get(f"/v1/jobs/{name}/pairs").json
        assert found == {"job": job, "jobs": 1, "left_out": 0, "pairs": [pair], **short}
    assert api.get(f"/v1/jobs/{peer}/pairs").json["pairs"] == []
    whole = api.get(f"/v1/jobs/{peer}/pairs?application=true").json
    assert (whole["job"], whole["jobs"], whole["pairs"]) == (peer, 2, [pair])
    assert api.get(f"/v1/jobs/{job}/advice").json["pairs"] == short
    assert api.get(f"/v1/jobs/{peer}/advice").json["pairs"] is None
    assert_problem(api.get(f"/v1/jobs/{job}/pairs?application=some"), 422, "parameters")
    assert_problem(api.get("/v1/jobs/0000000000000000/pairs"), 404)


def test_a_parallel_job_is_named_as_a_whole_for_its_application_alone(api: Api) -> None:
    first = api.register(1)["id"]
    other = api.post(post_body(1).replace("slot1_1@", "slot1_9@").replace("10.64.0.1", "10.64.0.9")).json["id"]
    assert first != other
    assert_problem(api.get("/v1/jobs/1.0/pairs"), 409, "ambiguous")
    assert api.get("/v1/jobs/1.0/pairs?application=true").json["job"] == first


def test_who_asks_for_own_jobs_sees_no_other_users_job_at_the_other_end(api: Api) -> None:
    job, peer = (api.post(post_body(number, owner)).json["id"] for number, owner in ((1, "alice"), (2, "bob")))
    for own in (True, False):
        api.controls.usage.reserved = [a_pair(job, peer, own)]
        shown = {scope: api.get(f"/v1/jobs/{job}/pairs", scope=scope).json for scope in ("self", "read")}
        assert shown["self"]["pairs"][0]["peer"] == (peer if own else None)
        assert shown["read"]["pairs"][0]["peer"] == peer
    assert_problem(api.get(f"/v1/jobs/{peer}/pairs", scope="self"), 404)


def test_a_worker_says_in_what_time_all_that_is_new_came(api: Api) -> None:
    job = api.register(1)["id"]
    said = {"bytes_in": 10, "bytes_out": 20, "packets_in": 1, "packets_out": 2, "new_within": 10_500}
    assert api.post(json.dumps(said), path=f"/v1/jobs/{job}/counters", kind="application/json").json["counted"]
    assert api.controls.usage.reports[-1].new_within == 10.5


def test_what_is_asked_together_is_not_asked_by_job(api: Api) -> None:
    assert api.get("/v1/usage?by=group&group=group_cms&bucket=minute&together=true").status_code == 200
    assert_problem(api.get("/v1/usage?by=job&together=true"), 422, "parameters")


def test_rates_and_groups_are_in_megabits(api: Api) -> None:
    drops = api.controls.drops
    drops.are_away, drops.are_uncounted, drops.are_unread = 2, 3, 4
    answer = api.get("/v1/rates").json
    (row,) = answer["rates"]
    assert (answer["away"], answer["uncounted"], answer["unread"]) == (2, 3, 4)
    assert api.get("/v1/groups").json["unread"] == api.get("/v1/drops").json["unread"] == 4
    drops.cores_are_unread = 1
    assert api.get("/v1/drops").json["cores_unread"] == api.get("/v1/overview").json["drops"]["cores_unread"] == 1
    transfers = {"transfer_inward": 0.0, "transfer_outward": 0.0}
    assert row["rate"] == {"inward": 8.0, "outward": 4.0, "wan_inward": 2.0, "wan_outward": 0.0, **transfers}
    for group in api.get("/v1/groups").json["groups"]:
        assert set(group["rate"]) == set(row["rate"])
        assert group["usage"]["bytes_in"] == 0
    assert api.get("/v1/rates?by=address").status_code == 422
    assert api.get("/v1/rates?by=access_point").status_code == 200
    (point,) = api.get("/v1/groups").json["access_points"]
    assert (point["name"], point["transfer_capacity"]) == ("submit1.example.org", 10_000.0)
    assert point["rate"]["transfer_inward"] == 4000.0
    # The history is not kept by access point.
    assert api.get("/v1/usage?by=access_point").status_code == 422


def test_a_jobs_counters_are_in_the_job_and_in_lists(api: Api) -> None:
    job = api.register(1)["id"]
    api.post(post_body(2))
    assert api.get(f"/v1/jobs/{job}").json["usage"] is None
    said = {"bytes_in": 10, "bytes_out": 20, "packets_in": 1, "packets_out": 2}
    split = {"wan_bytes_in": 4, "wan_bytes_out": 5, "wan_packets_in": 1, "wan_packets_out": 1}
    drops = {"policy_drops_in": 3, "policy_drops_out": 4, "rate_drops_in": 5, "rate_drops_out": 6}
    path = f"/v1/jobs/{job}/counters"
    answer = api.post(json.dumps({**said, **split, **drops, "interval": 30_000}), path=path, kind="application/json")
    assert (answer.status_code, answer.json) == (200, {"counted": True})
    usage = api.get(f"/v1/jobs/{job}").json["usage"]
    assert {name: usage[name] for name in (*said, *split, *drops)} == {**said, **split, **drops}
    assert (usage["at"], usage["final"], usage["rate"]["outward"]) == ("2023-11-14T22:13:50.000Z", False, 4.0)
    listed = {each["id"]: each["usage"] for each in api.get("/v1/jobs").json["jobs"]}
    assert listed.pop(job) == usage
    assert list(listed.values()) == [None]
    assert api.post(json.dumps({**said, "final": True}), path=path, kind="application/json").json["counted"]
    assert not api.post(json.dumps(said), path=path, kind="application/json").json["counted"]


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"bytes_in": -1}, "bytes_in"),
        ({"bytes_in": 2**63}, "bytes_in"),
        ({"bytes_in": True}, "bytes_in"),
        ({"bytes_in": "1"}, "bytes_in"),
        ({"bytes_in": None}, "bytes_in"),
        ({"final": 1}, "final"),
        ({"speed": 1}, "speed"),
        ({"new_within": -1}, "new_within"),
        ({"new_within": 0.5}, "new_within"),
        ({"wan_bytes_in": 1}, "wan_bytes_out"),
        ({"policy_drops_out": 1}, "policy_drops_in"),
    ],
)
def test_counters_that_cannot_be_are_refused(api: Api, change: dict[str, Any], parameter: str) -> None:
    job = api.register(1)["id"]
    said = {"bytes_in": 10, "bytes_out": 20, "packets_in": 1, "packets_out": 2, **change}
    answer = api.post(json.dumps(said), path=f"/v1/jobs/{job}/counters", kind="application/json")
    assert parameter in wrong(answer)


def test_counters_of_no_job(api: Api) -> None:
    said = json.dumps({"bytes_in": 10, "bytes_out": 20, "packets_in": 1, "packets_out": 2})
    for job, status in (("0123456789abcdef", 404), ("nonsense", 404)):
        assert api.post(said, path=f"/v1/jobs/{job}/counters", kind="application/json").status_code == status
    job = api.register(1)["id"]
    assert api.post("[]", path=f"/v1/jobs/{job}/counters", kind="application/json").status_code == 422
    assert api.post("{", path=f"/v1/jobs/{job}/counters", kind="application/json").status_code == 400
    assert api.post(said, path=f"/v1/jobs/{job}/counters").status_code == 415
    assert api.post(" " * 5000, path=f"/v1/jobs/{job}/counters", kind="application/json").status_code == 413


def test_what_a_job_sent_lately_comes_with_its_times(api: Api) -> None:
    job_id = api.register()["id"]
    rate = {"inward": 8.0, "outward": 4.0, "wan_inward": 2.0, "wan_outward": 1.0}
    rate |= {"transfer_inward": 0.5, "transfer_outward": 0.25}
    assert api.get(f"/v1/jobs/{job_id}/rates").json == {"rates": [{"at": "2023-11-14T22:13:20.000Z", "rate": rate}]}
    assert api.get(f"/v1/jobs/{'0' * 16}/rates").status_code == 404


def test_a_jobs_use_is_read_anew_where_that_is_asked_for(api: Api) -> None:
    job_id = api.register()["id"]
    assert api.get(f"/v1/jobs/{job_id}").status_code == api.get(f"/v1/jobs/{job_id}?fresh=false").status_code == 200
    assert api.controls.jobs.read == []
    assert api.get(f"/v1/jobs/{job_id}?fresh=true", "hook").json["id"] == job_id
    assert api.controls.jobs.read == [job_id]
    assert api.get(f"/v1/jobs/{job_id}?fresh=perhaps").status_code == 422


def test_a_worker_gets_the_wan_part_of_its_own_jobs_at_once(api: Api) -> None:
    own, other, uncounted = (api.register(number)["id"] for number in (1, 2, 3))
    for job in (own, other):
        api.controls.jobs.used[job] = JobUsage(Usage(wan_bytes_in=7, wan_bytes_out=9), at=1.7e9)
    api.controls.jobs.known[other] = replace(api.controls.jobs.known[other], host="another")
    host = api.controls.jobs.known[own].host
    asked = json.dumps({"jobs": [own, other, uncounted, "0" * 16]})
    answer = api.post(asked, f"/v1/hosts/{host}/use", "application/json")
    assert answer.json == {"jobs": [{"job": own, "wan_bytes_in": 7, "wan_bytes_out": 9}]}
    assert_problem(api.post("{}", f"/v1/hosts/{host}/use", "application/json"), 422, "parameters")


def test_advice_at_a_jobs_end_goes_by_counters_of_now(api: Api) -> None:
    job = api.register(1)["id"]
    for query, read in (("", 0), ("?fresh=true", 1)):
        assert api.get(f"/v1/jobs/{job}/advice{query}").status_code == 200
        assert len(api.controls.jobs.read) == read


def test_a_worker_asks_for_the_marks_of_its_jobs(api: Api) -> None:
    job = api.register(1)["id"]
    answer = api.post(json.dumps({"jobs": [job]}), "/v1/hosts/worker1/scitags", "application/json")
    assert answer.json == {
        "revision": "5f0e12ab.17", "collectors": [{"host": "192.0.2.9", "port": 10514}], "destinations": False,
        "silent": ["10.0.0.0/8"], "ongoing": 60, "labels": False, "own": False,
        "jobs": [{"job": job, "experiment": 3, "activity": 12}],
    }  # fmt: skip
    assert_problem(api.post("{}", "/v1/hosts/worker1/scitags", "application/json"), 422, "parameters")
