"""Misuse of external addresses and faults under them, on real parts: clear answers, entries in the trail, no leak."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_controller.flows.cookies import Category
from lark_controller.rest.tokens import Scope, add
from tests.e2e.test_external import FIRST, OUTSIDE, POOL, SECTION, ask, closed, policy, reaches, sees, shut
from tests.fixtures.service import CORE, WORKER1, WORKER2, Lark, Site, wait

pytestmark = pytest.mark.ovs

HOSTS = {name: WORKER1 if number % 2 else WORKER2 for number, name in enumerate("abcdefghij")}
WISH = 'RequestExternalAddress=true\nExternalPorts="tcp/80"'


@pytest.fixture(scope="module")
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        made = Site(ovs, net, HOSTS)
        gateway = made["gw"]
        run(["ip", "-n", gateway.namespace, "route", "add", POOL, "dev", gateway.device, "src", OUTSIDE])
        yield made
        for bridge in made.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


@pytest.fixture
def directory() -> Iterator[Path]:
    with temporary_directory() as made:
        yield Path(made)


@pytest.fixture
def lark(site: Site, directory: Path) -> Iterator[Lark]:
    lark = Lark(directory, policy(site), LARK_COUNTER_SECONDS="0.5")
    lark.start()
    site.connect(lark)
    yield lark
    lark.end_all()
    # Nothing is left of any address once its job has ended.
    wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
    lark.stop()


REFUSED = "no external address"


def asks(lark: Lark, job_id: str, **more: Any) -> Any:
    body = json.dumps({"job": job_id, **more})
    return lark.request("POST", "/v1/external-addresses", body, "application/json")


def trail(lark: Lark, subject: str) -> list[str]:
    return [each["action"] for each in lark.get(f"/v1/audit?subject={subject}")["entries"]]


def test_a_hundred_requests_from_ten_jobs_at_once_get_what_the_user_may_have(site: Site, lark: Lark) -> None:
    jobs = [site.run(lark, name, "alice") for name in HOSTS]
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda number: asks(lark, jobs[number % 10]["id"], open=["tcp/80"]), range(100)))
    assert {each.status for each in answers} <= {200, 201, 409}
    given = {each.body["address"] for each in answers if each.status != 409}
    assert len(given) == 2
    assert [each.status for each in answers].count(201) == 2
    refused = {each.body["detail"] for each in answers if each.status == 409}
    assert refused == {"the jobs of alice have 2 external addresses; at most 2"}
    shown = lark.get("/v1/external-addresses")
    assert ({each["address"] for each in shown["addresses"]}, shown["pools"][0]["used"]) == (given, 2)
    # In a loop, and one entry for each job all the same.
    loser = next(job["id"] for job in jobs if job["id"] not in {each["job"] for each in shown["addresses"]})
    assert {asks(lark, loser).status for _ in range(50)} == {409}
    assert trail(lark, loser).count("no external address") == 1
    winner = shown["addresses"][0]["job"]
    assert trail(lark, winner).count("associate") == 1


def test_a_pool_that_is_exhausted_says_so_and_the_next_one_gets_what_has_rested(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, section=SECTION.replace("per_user: 2", "per_user: 9")))
    jobs = [site.run(lark, name, "alice") for name in "abcde"]
    answers = [asks(lark, job["id"], open=["tcp/80"]) for job in jobs]
    assert [each.status for each in answers] == [201, 201, 201, 201, 409]
    assert answers[4].body["detail"] == "pool public has no address left: all 4 are given or rest"
    assert "no external address" in trail(lark, jobs[4]["id"])
    held = lark.post(site.ads("f", "alice", job=WISH))
    assert (held.status, held.body["refused"]) == (409, "hold")
    lark.request("DELETE", f"/v1/external-addresses/{answers[1].body['id']}")
    wait(lambda: lark.get("/v1/external-pools")["pools"][0]["free"] == 1)
    again = ask(lark, jobs[4], "tcp/80")
    assert again["address"] == answers[1].body["address"]
    assert reaches(site, "e", again["address"], 80)
    assert shut(site, "b", again["address"], 80)


def test_another_users_run_is_not_to_be_had(site: Site, lark: Lark) -> None:
    alice, bob = site.run(lark, "a", "alice"), site.run(lark, "b", "bob")
    own = lark.token
    lark.token = add(lark.directory / "tokens.yaml", "bobs", [Scope.SELF], user="bob")
    wait(lambda: lark.request("GET", "/v1/external-addresses").status == 200)
    assert asks(lark, alice["id"]).status == 404
    mine = asks(lark, bob["id"]).body
    lark.token = own
    theirs = ask(lark, alice, "tcp/80")
    lark.token = add(lark.directory / "tokens.yaml", "bobs2", [Scope.SELF], user="bob")
    wait(lambda: lark.request("GET", "/v1/external-addresses").status == 200)
    assert [each["id"] for each in lark.get("/v1/external-addresses")["addresses"]] == [mine["id"]]
    for method in ("GET", "DELETE"):
        assert lark.request(method, f"/v1/external-addresses/{theirs['id']}").status == 404
    lark.token = own
    entries = lark.get(f"/v1/audit?subject={alice['id']}")["entries"]
    assert ("bobs", "no external address") in {(each["actor"], each["action"]) for each in entries}
    assert reaches(site, "a", theirs["address"], 80)


def test_nobody_chooses_an_address(site: Site, lark: Lark) -> None:
    job = site.run(lark, "a", "alice")
    for more in ({"address": "198.51.100.99"}, {"pool": "other"}):
        answer = asks(lark, job["id"], **more)
        assert (answer.status, answer.body["errors"][0]["parameter"]) == (422, next(iter(more)))
    # In the trail once in a while, with the first reason.
    refusals = [each for each in lark.get(f"/v1/audit?subject={job['id']}")["entries"] if each["action"] == REFUSED]
    assert [each["detail"] for each in refusals] == ["address: Unknown field."]
    # Nor by the words with which the controller answers.
    other = lark.post(site.ads("b", "alice", job=WISH + '\nLarkExternalAddressIPv4="198.51.100.99"'))
    assert other.body["external_addresses"] == [FIRST]


def test_the_gateways_switch_is_away_when_the_job_starts(site: Site, lark: Lark) -> None:
    site.ovs.set_controller(site.bridges[CORE], "tcp:127.0.0.1:9")
    wait(lambda: not lark.switch(CORE).get("connected", True))
    job = lark.post(site.ads("a", "alice", job=WISH), 1)
    assert job.status == 201
    assert (job.body["state"], job.body["external_addresses"]) == ("pending", [FIRST]), job
    assert job.body["reason"]
    wait(lambda: "external address waits" in trail(lark, job.body["id"]))
    assert shut(site, "a", FIRST, 80)
    site.connect(lark)
    wait(lambda: lark.get(f"/v1/jobs/{job.body['id']}")["state"] == "enforced")
    # The router has asked in vain for the address, and asks anew in a second.
    wait(lambda: not shut(site, "a", FIRST, 80))


def test_a_policy_that_changes_under_live_addresses(site: Site, lark: Lark) -> None:
    alice, bob = site.run(lark, "a", "alice"), site.run(lark, "b", "bob")
    first, second = ask(lark, alice, "tcp/80"), ask(lark, bob, "any")
    # Another pool, less that is open, no section at all: each ends what it no longer gives, with the reason.
    changed = SECTION.replace("open: [any]", "open: [udp]")
    lark.put_policy(policy(site, section=changed))
    assert lark.get(f"/v1/external-addresses/{second['id']}")["why"] == "the policy opens any no more"
    assert reaches(site, "a", first["address"], 80)
    assert shut(site, "b", second["address"], 80)
    lark.put_policy(policy(site, section=changed.replace(POOL, "198.51.100.128/30")))
    over = lark.get(f"/v1/external-addresses/{first['id']}")
    assert over["why"] == f"{first['address']} is not in pool public"
    assert trail(lark, alice["id"])[:2] == ["dissociate", "associate"]
    assert shut(site, "a", first["address"], 80)
    third = ask(lark, alice, "tcp/80")
    assert third["address"] == "198.51.100.128"
    # Number and time hold for what is asked for from then on.
    fewer = changed.replace(POOL, "198.51.100.128/30").replace("per_user: 2", "per_user: 0, seconds: 1")
    lark.put_policy(policy(site, section=fewer))
    kept = ask(lark, alice, "tcp/80", status=200)
    assert (kept["id"], kept["state"], kept["until"]) == (third["id"], "open", None)
    again = site.run(lark, "d", "alice")
    assert "the jobs of alice have 1 external addresses; at most 0" in ask(lark, again, status=409)["detail"]
    lark.put_policy(policy(site, section=""))
    assert lark.get(f"/v1/external-addresses/{third['id']}")["why"] == "the policy has no external addresses"
    assert "the policy has no external addresses" in ask(lark, alice, status=409)["detail"]


def test_quarantine_closes_it(site: Site, lark: Lark) -> None:
    job = site.run(lark, "a", "alice")
    ask(lark, job, "tcp/80")
    assert reaches(site, "a", FIRST, 80)
    lark.service.controller._registration.quarantine(job["id"], "the pool contradicts it", "pool")
    wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
    assert shut(site, "a", FIRST, 80)


def test_a_job_that_is_not_renewed_loses_it_with_its_lease(site: Site, directory: Path) -> None:
    lark = Lark(directory, policy(site), changed={"lease_seconds": 3.0})
    lark.start()
    try:
        site.connect(lark)
        job = site.run(lark, "a", "alice")
        given = ask(lark, job, "tcp/80")
        wait(lambda: lark.get(f"/v1/external-addresses/{given['id']}")["why"] == "the job has ended")
        assert shut(site, "a", FIRST, 80)
        assert {"expire", "dissociate"} <= set(trail(lark, job["id"]))
        wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
    finally:
        lark.stop()


def test_groups_queues_accounts_and_scitags_see_the_job_and_not_the_translation(site: Site, lark: Lark) -> None:
    rules = "scitags: {when: 'Owner == \"alice\"', experiment: 2, activity: 3}"
    groups = ("default: {port: wan, dscp: 10}", "group_cms: {port: wan, dscp: 18}")
    lark.put_policy(site.policy(rules, groups=groups) + SECTION)
    job = site.run(lark, "a", "alice", job='AcctGroup="group_cms"')
    ask(lark, job, "udp", "tcp/80")
    assert reaches(site, "a", FIRST, 80)
    seen = site.net.capture(site["gw"], f"-v --immediate-mode udp and src host {FIRST}")
    assert [sees(site, "a", 7100 + number, 5000) for number in range(3)] == [FIRST] * 3
    # The mark of the job's group is on what leaves with the external address.
    assert "tos 0x48" in "".join(seen())
    detail = lark.get(f"/v1/jobs/{job['id']}")
    assert (detail["decision"]["group"], detail["decision"]["scitag"]["experiment"]) == ("group_cms", "2")
    wait(lambda: lark.get(f"/v1/jobs/{job['id']}")["usage"]["wan_bytes_out"] > 0)
    wait(lambda: lark.get(f"/v1/jobs/{job['id']}")["usage"]["wan_bytes_in"] > 0)
