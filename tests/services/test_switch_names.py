"""Switches' descriptions of themselves: they take over no name of the policy's, nor that of a host that has jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from tests.fixtures.browser import POLICY, WORKER1, WORKER2, Site
from tests.fixtures.controllers import until
from tests.fixtures.service import Json

STRANGER = 0xBAD
ID = f"{STRANGER:016x}"


@contextmanager
def stranger(site: Site, network: FakeNetwork, description: str, datapath: int = STRANGER) -> Iterator[None]:
    """A switch that nobody has declared, which calls itself so."""
    switch = FakeSwitch(datapath, {1: "eth0"}, description=description)
    network.call(switch.connect(*site.lark.service.controller.openflow_addresses[0]))
    until(lambda: status(site, f"{datapath:016x}")["connected"] is True)
    assert status(site, f"{datapath:016x}")["description"] == description
    yield
    network.run(switch.disconnect)
    until(lambda: status(site, f"{datapath:016x}")["connected"] is False)


def status(site: Site, word: str) -> Json:
    """The switch of this name, empty where there is none."""
    answer = site.lark.request("GET", f"/v1/switches/{word}")
    return answer.body if answer.status == 200 else {"connected": False}


def subjects(site: Site, word: str) -> set[str]:
    """The subjects of the audit trail's entries about a word."""
    return {each["subject"] for each in site.lark.get(f"/v1/audit?subject={word}")["entries"]}


def test_the_audit_trails_own_words_are_no_switch(site: Site, network: FakeNetwork) -> None:
    for word, description in (("policy", "policy"), ("controller", "controller.example")):
        with stranger(site, network, description):
            assert subjects(site, word) == {word}


def test_a_declared_host_is_not_the_stranger_of_its_name(site: Site, network: FakeNetwork) -> None:
    job = site.run("carol", WORKER2)
    site.passed(job, 300, 0)
    until(lambda: edge(site, "worker2")["rate"]["outward"] > 0)
    for turn, description in enumerate(("worker2.example", "WORKER2.example", "worker2", f"{WORKER2:016x}"), 2):
        with stranger(site, network, description):
            for word in ("worker2.example", "worker2", "Worker2.example", f"{WORKER2:016x}"):
                assert status(site, word)["datapath"] == f"{WORKER2:016x}", (description, word)
            found = status(site, ID)
            assert (found["name"], found["host"]) == (ID, ""), description
            site.passed(job, turn * 300, 0)
            until(lambda: edge(site, "worker2")["rate"]["outward"] > 0)
            drawn = edge(site, ID)
            assert (drawn["jobs"], drawn["rate"]["outward"]) == (0, 0)


def test_a_host_with_jobs_is_not_the_stranger_of_its_name(site: Site, network: FakeNetwork) -> None:
    away = 0xE9
    with stranger(site, network, "w9", away):
        site.run("carol", away)  # On worker9.example, which nobody has declared.
        with stranger(site, network, "worker9.example"):
            assert status(site, "worker9.example")["datapath"] == f"{away:016x}"
            assert (status(site, ID)["name"], status(site, ID)["host"]) == (ID, "")
    with stranger(site, network, "worker8.example"):
        # Nothing else is called so.
        found = status(site, "worker8")
        assert (found["datapath"], found["name"], found["host"]) == (ID, "worker8.example", "worker8.example")


def test_the_rates_of_a_host_in_two_cases_are_added_up(site: Site) -> None:
    ads = [site.ads("carol", WORKER2), site.ads("carol", WORKER2).replace("worker2.example", "WORKER2.example")]
    jobs = [site.lark.post(each, 5.0).body for each in ads]
    total = itertools.count(1)

    def drawn() -> tuple[int, float, float]:
        """The number of jobs on the map, the rate that the host has there, and that of all jobs."""
        megabytes = next(total)
        for job, part in zip(jobs, (1, 2), strict=True):
            site.passed(job, part * megabytes, 0)
        found = site.lark.get("/v1/map")
        here = next(each for each in found["edges"] if each["name"] == "worker2")
        return here["jobs"], here["rate"]["outward"], found["wan"]["rate"]["outward"]

    def both() -> bool:
        rates = [each["rate"]["outward"] for each in site.lark.get("/v1/rates?by=host")["rates"]]
        jobs, here, everywhere = drawn()
        return bool(len(rates) == 2 and jobs == 2 and here > max(rates) * 1.2 and here == everywhere)

    until(both)


def test_a_rate_is_that_of_one_of_a_hosts_switches(site: Site) -> None:
    site.lark.put_policy(POLICY.replace("host: worker3.example", "host: worker2.example"))
    job = site.run("carol", WORKER2)
    total = itertools.count(1)

    def flows() -> bool:
        site.passed(job, next(total), 0)
        return bool(edge(site, "worker2")["rate"]["outward"] > 0)

    until(flows)
    assert (edge(site, "worker2")["jobs"], edge(site, "worker3")["jobs"]) == (1, 0)
    assert edge(site, "worker3")["rate"]["outward"] == 0


@pytest.mark.parametrize(
    ("named", "others"),
    [
        # Nobody's name, that of another declared worker with that one's in exchange, and that of a worker without it.
        ("worker9.example", "worker1.example"),
        ("worker1.example", "worker2.example"),
        ("Worker1.example", "worker9.example"),
    ],
)
def test_a_rate_is_that_of_the_jobs_at_a_switch_whose_host_a_policy_calls_otherwise(
    site: Site, named: str, others: str
) -> None:
    # The other job of its worker is at no switch, and by itself on the map: it sends nothing.
    bridged = site.lark.post(site.ads("carol", WORKER2).replace('"ovs_bridge"', '"bridge"'), 0)
    assert bridged.status == 201, bridged
    job, other = site.run("carol", WORKER2), site.run("carol", WORKER1)
    # New jobs whose host is another one than their switch's are refused; those that live stay at it.
    policy = POLICY.replace("host: worker2.example", "host: A").replace("host: worker1.example", f"host: {others}")
    site.lark.put_policy(policy.replace("host: A", f"host: {named}"))
    total = itertools.count(1)

    def rates() -> tuple[float, float, float]:
        """The rates at both switches and of all jobs."""
        megabytes = next(total)
        site.passed(job, megabytes, 0)
        site.passed(other, 9 * megabytes, 0)
        found = site.lark.get("/v1/map")
        at = {each["name"]: each["rate"]["outward"] for each in found["edges"]}
        return at["worker2"], at["worker1"], found["wan"]["rate"]["outward"]

    def apart() -> bool:
        here, there, everywhere = rates()
        return 0 < here < there and here + there == everywhere

    until(apart)
    drawn = [each for each in site.lark.get("/v1/map")["edges"] if each["datapath"] is None]
    if named.lower() == "worker2.example" or others.lower() == "worker2.example":
        # The first switch of its host's name stands for the jobs at none, too.
        assert drawn == []
    else:
        assert [(each["name"], each["jobs"], each["rate"]["outward"]) for each in drawn] == [("worker2.example", 1, 0)]


def test_the_name_beside_a_rate_finds_its_job(site: Site) -> None:
    ads = site.ads("carol", WORKER2).replace("submit.example#101.0", "submit.example#104.0")
    job = site.lark.post(ads, 5.0).body
    total = itertools.count(1)

    def rows() -> list[Json]:
        site.passed(job, next(total), 0)
        found = site.lark.get("/v1/rates?by=job")["rates"]
        assert isinstance(found, list)
        return found

    until(lambda: bool(rows()))
    (row,) = rows()
    assert row["job_name"] == "submit.example#101.0"
    assert site.lark.get(f"/v1/jobs/{quote(row['job_name'], safe='')}")["id"] == job["id"]


def edge(site: Site, name: str) -> Json:
    """A worker as the map draws it."""
    (found,) = [each for each in site.lark.get("/v1/map")["edges"] if each["name"] == name]
    assert isinstance(found, dict)
    return found


def test_a_declared_switch_is_found_in_any_case(site: Site) -> None:
    found = [status(site, word) for word in ("core1", "Core1", "CORE1", "Worker1")]
    assert [each["name"] for each in found] == ["core1", "core1", "core1", "worker1"]
    # Names may differ in nothing else; then each is its own, and another one is neither.
    other = '  Core1: {datapath: "00000000000000c9", role: core, ports: {lan: 1, wan: 2}}\n'
    site.lark.service.controller.policy.put(POLICY.replace("  core1: {", f"{other}  core1: {{", 1), "test")
    for word, datapath in (("core1", 0xC0), ("Core1", 0xC9)):
        assert status(site, word)["datapath"] == f"{datapath:016x}"
    answer = site.lark.request("GET", "/v1/switches/CORE1")
    named = "2 switches are called CORE1, by their names or hosts: 00000000000000c9, 00000000000000c0; accepted: "
    assert (answer.status, answer.body["detail"]) == (404, f"{named}one of these")


def test_an_owner_is_found_in_its_own_case_alone(site: Site) -> None:
    """BOB is another account than bob; the condition of a policy's rule, a ClassAd expression, holds for both."""
    for number, owner in enumerate(("bob", "BOB"), 50):
        assert site.lark.post(site.ads(owner, WORKER2, number=number), 5.0).status == 201
    for owner in ("bob", "BOB"):
        assert [each["owner"] for each in site.lark.get(f"/v1/jobs?owner={owner}")["jobs"]] == [owner]
    assert site.lark.get("/v1/jobs?owner=Bob")["jobs"] == []
