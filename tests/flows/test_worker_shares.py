"""A worker's own queues for its bridge and nat jobs: tables."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest

from lark_common.runs import NetworkType
from lark_common.worker_rules import WayOut, WaysOut, from_json, to_json
from lark_controller.flows.desired import Desired
from lark_controller.flows.worker_shares import is_limited, worker_shares
from lark_controller.jobs.job import Job, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.flows.test_desired import a_job

HOST = "worker1"
Table = dict[str, dict[str, tuple[float, float]]]


def policy(rule: str = "{mode: cap}", edge: str = "") -> str:
    return f"""
version: 1
networks: {{jobs: [10.64.0.0/16], local: [10.0.0.0/8]}}
edge: {{inbound: open{edge}}}
policies:
  - block: {{when: 'Owner == "mallory"'}}
{f"  - bandwidth: {rule}" if rule else ""}
"""


def a_ruled_job(number: int, rate: float | None = None, owner: str = "alice", *flows: ReservedFlow) -> Job:
    job = a_job(number, owner=owner, datapath=None, network_type=NetworkType.NAT)
    return replace(job, bandwidth=rate, host=HOST, reserved=flows)


def desired_of(text: str, *jobs: Job) -> Desired:
    loaded = load(text)
    desired, decider = Desired(loaded), Decider(loaded)
    for job in jobs:
        desired.put(job, decider.decide(job.facts))
    return desired


def test_a_job_without_a_network_is_not_limited() -> None:
    jobs = (a_ruled_job(1, 10.0), a_ruled_job(2), a_ruled_job(3, 10.0, "mallory"))
    desired = desired_of(policy(), *jobs)
    assert {placed.job.number: is_limited(placed) for placed in desired.placed.values()} == {
        1: True,
        2: False,
        3: False,
    }


def table(
    desired: Desired, speeds: dict[str, float | None], *ways: WayOut
) -> tuple[Table, dict[str, float], dict[str, str]]:
    """Shares at the uplinks and towards jobs in Mb/s, and who comes short, by the job's number."""
    found = worker_shares(desired.policy, HOST, desired.ruled_at(HOST), WaysOut(speeds, ways))
    assert found.uplinks is not None
    numbers = {placed.job.id: str(placed.job.number) for placed in desired.placed.values()}

    def named(key: str) -> str:
        job, _, flow = key.partition("/")
        return numbers[job] + (f"/{flow}" if flow else "")

    uplinks = {
        name: {"": (each.rest.least / 1e6, each.rest.most / 1e6)}
        | {named(key): (share.least / 1e6, share.most / 1e6) for key, share in each.shares.items()}
        | {f"part of {named(key)}": (share.least / 1e6, share.most / 1e6) for key, share in each.parts.items()}
        for name, each in found.uplinks.items()
    }
    inward = {numbers[job]: share.most / 1e6 for job, share in found.inward.items()}
    return uplinks, inward, {numbers[job]: why for job, why in found.short.items()}


@pytest.mark.parametrize(
    ("text", "jobs", "uplinks", "inward"),
    [
        # Who asks for nothing has no queue, and where nobody asks there is none.
        (policy(), [a_ruled_job(1)], {}, {}),
        (policy(""), [a_ruled_job(1, 30)], {}, {}),
        (policy(), [a_ruled_job(1, 30), a_ruled_job(2)], {"eth0": {"": (70, 100), "1": (30, 30)}}, {"1": 30}),
        (
            policy("{mode: guarantee, ceiling: 50}"),
            [a_ruled_job(1, 30), a_ruled_job(2, 10)],
            {"eth0": {"": (60, 100), "1": (30, 50), "2": (10, 50)}},
            {"1": 50, "2": 50},
        ),
        # A blocked job sends nothing.
        (
            policy(), [a_ruled_job(1, 30, "mallory"), a_ruled_job(2, 10)],
            {"eth0": {"": (90, 100), "2": (10, 10)}}, {"2": 10},
        ),
        # The policy's word of the speed wins over the interface's.
        (policy(edge=", speed: 1Gbit"), [a_ruled_job(1, 30)], {"eth0": {"": (970, 1000), "1": (30, 30)}}, {"1": 30}),
        # What comes in is split among those that nobody limits, where the policy says so.
        (
            policy().replace("inbound: open", "inbound: split"),
            [a_ruled_job(1, 40), a_ruled_job(2), a_ruled_job(3)],
            {"eth0": {"": (60, 100), "1": (40, 40)}},
            {"1": 40, "2": 30, "3": 30},
        ),
        # Flows that are reserved have shares of their own, also where the policy limits no job.
        (
            policy(""),
            [a_ruled_job(1, None, "alice", ReservedFlow(7, 25_000, (ip_network("10.0.0.5/32"),)))],
            {"eth0": {"": (25, 100), "part of 1": (25, 100), "1/7": (50, 100)}},
            {},
        ),
        (
            policy(""),
            [
                a_ruled_job(1, None, "alice", ReservedFlow(7, 20_000, (ip_network("10.0.0.5/32"),), steady=True)),
                a_ruled_job(2),
            ],
            {"eth0": {"": (80, 100), "1/7": (20, 20)}},
            {},
        ),
        # Each job beside it has as much of what is free.
        (
            policy(""),
            [
                a_ruled_job(1, None, "alice", ReservedFlow(7, 10_000, (ip_network("10.0.0.5/32"),))),
                *map(a_ruled_job, (2, 3, 4)),
            ],
            {
                "eth0": {"": (15, 100), "1/7": (25, 100)}
                | {f"part of {number}": (15, 100) for number in range(1, 5)}
            },
            {},
        ),
        # A job that the policy limits sends no more than its own rate and what it has reserved.
        (
            policy(),
            [a_ruled_job(1, 30, "alice", ReservedFlow(7, 20_000, (ip_network("10.0.0.5/32"),))), a_ruled_job(2)],
            {"eth0": {"": (50, 100), "1": (30, 30), "1/7": (20, 20)}},
            {"1": 30},
        ),
        # What it has of the rest is no part of it where it may exceed its rate, and neither is that of its flow.
        (
            policy("{mode: guarantee}"),
            [a_ruled_job(1, 30, "alice", ReservedFlow(7, 10_000, (ip_network("10.0.0.5/32"),))), a_ruled_job(2)],
            {"eth0": {"": (15, 100), "1": (45, 100), "part of 2": (15, 100), "1/7": (25, 100)}},
            {},
        ),
        # Whoever asks for a rate that it may exceed has a part beside those that ask for nothing, as they have.
        (
            policy("{mode: guarantee, ceiling: 30}"),
            [a_ruled_job(1, 1), a_ruled_job(2), a_ruled_job(3, 30), a_ruled_job(4, 20)],
            {"eth0": {"": (12, 100), "1": (13, 30), "part of 2": (12, 100), "3": (30, 30), "4": (30, 30)}},
            {"1": 30, "3": 30, "4": 30},
        ),
        # One that may not exceed it shares nothing, so nobody has a part.
        (
            policy("{mode: guarantee, ceiling: 30}"),
            [a_ruled_job(1, 30), a_ruled_job(2)],
            {"eth0": {"": (70, 100), "1": (30, 30)}},
            {"1": 30},
        ),
        # A default is a rate as one that is asked for, and a job without a network sends nothing.
        (
            policy("{mode: guarantee, default: 5}"),
            [a_ruled_job(1, 30), a_ruled_job(2), a_ruled_job(3, None, "mallory")],
            {"eth0": {"": (65, 100), "1": (30, 100), "2": (5, 100)}},
            {},
        ),
        # Between two jobs of one worker no uplink is crossed.
        (
            policy(),
            [
                a_ruled_job(1, 30, "alice", ReservedFlow(7, 20_000, (ip_network("10.64.0.2/32"),))),
                a_ruled_job(2, None, "alice", ReservedFlow(7, 20_000, incoming=True)),
            ],
            {"eth0": {"": (70, 100), "1": (30, 30)}},
            {"1": 30},
        ),
    ],
)  # fmt: skip
def test_the_shares_of_a_worker(text: str, jobs: list[Job], uplinks: Table, inward: dict[str, float]) -> None:
    desired = desired_of(text, *jobs)
    assert table(desired, {"eth0": 100.0}) == (uplinks, inward, {})
    rules = desired.worker_rules(HOST, WaysOut({"eth0": 100.0}))
    assert from_json(to_json(rules)) == rules
    # A controller of a release before sends no parts.
    sent = to_json(rules)
    for uplink in sent["uplinks"].values():
        del uplink["parts"]
    assert from_json(sent) == replace(
        rules, uplinks={name: replace(each, parts={}) for name, each in (rules.uplinks or {}).items()}
    )


def test_what_does_not_fit_comes_short_and_is_limited() -> None:
    uplinks, inward, short = table(desired_of(policy(), a_ruled_job(1, 70), a_ruled_job(2, 40)), {"eth0": 100.0})
    assert uplinks == {"eth0": {"": (30, 100), "1": (70, 70), "2": (0, 40)}}
    assert inward == {"1": 70, "2": 40}
    assert short.keys() == {"2"}
    assert "has 30 Mb/s left, and this job needs 40" in short["2"]


@pytest.mark.parametrize(
    ("speeds", "reason"),
    [
        ({"eth0": None}, "the speed of uplink eth0 is not known; the policy can say it (speed)"),
        ({}, "the worker has no uplink as the policy describes them"),
    ],
)
def test_without_a_link_or_its_speed_nothing_is_promised(speeds: dict[str, float | None], reason: str) -> None:
    uplinks, _, short = table(desired_of(policy(), a_ruled_job(1, 10)), speeds)
    assert (uplinks, short) == ({}, {"1": reason})


def test_the_policys_uplinks_are_chosen_among_those_that_the_worker_tells() -> None:
    speeds: dict[str, float | None] = {"eth1": 100.0, "bond0": 100.0, "tap0": 10.0}
    for patterns, chosen in (("eth*", {"eth1"}), ("bond*, eth*", {"bond0", "eth1"}), ("en*", {*speeds})):
        text = policy(edge=f", uplinks: [{patterns}]")
        uplinks, _, _ = table(desired_of(text, a_ruled_job(1, 10)), speeds)
        assert uplinks.keys() == chosen


def test_a_topology_says_what_the_access_link_carries() -> None:
    text = policy() + "topology:\n  hosts: {default: {switch: rack, capacity: 50}}\n"
    uplinks, _, _ = table(desired_of(text, a_ruled_job(1, 10)), {"eth0": 100.0})
    assert uplinks == {"eth0": {"": (40, 50), "1": (10, 10)}}


BRIDGE_AND_NAT = (
    WayOut(NetworkType.BRIDGE, frozenset({"eth1"})),
    WayOut(NetworkType.BRIDGE, frozenset({"team0"})),
    WayOut(NetworkType.NAT, frozenset({"br0"})),
)


def test_of_each_way_out_the_policys_uplinks_are_chosen_or_else_all() -> None:
    """The default patterns name eth1 alone: what leaves by the others is under its share all the same."""
    jobs = (a_ruled_job(1, 10), replace(a_ruled_job(2, 20), network_type=NetworkType.BRIDGE))
    desired = desired_of(policy(), *jobs)
    uplinks, _, short = table(desired, {"br0": 100.0, "eth1": 100.0, "team0": 100.0}, *BRIDGE_AND_NAT)
    assert short == {}
    assert uplinks.keys() == {"br0", "eth1", "team0"}
    assert all(each == {"": (70, 100), "1": (10, 10), "2": (20, 20)} for each in uplinks.values())


def test_a_job_comes_short_of_nothing_at_an_uplink_by_which_it_does_not_leave() -> None:
    jobs = (a_ruled_job(1, 70), replace(a_ruled_job(2, 20), network_type=NetworkType.BRIDGE))
    desired = desired_of(policy(), *jobs)
    _, _, short = table(desired, {"br0": None, "eth1": 50.0, "team0": 50.0}, *BRIDGE_AND_NAT)
    assert short == {"1": "the speed of uplink br0 is not known; the policy can say it (speed)"}
    _, _, short = table(desired, {"br0": 100.0, "eth1": 50.0, "team0": 50.0}, *BRIDGE_AND_NAT)
    assert short == {}


def test_before_the_worker_has_told_its_uplinks_what_stands_stays() -> None:
    desired = desired_of(policy(), a_ruled_job(1, 10))
    assert desired.worker_rules(HOST).uplinks is None
    assert desired_of(policy(), a_ruled_job(1)).worker_rules(HOST).uplinks == {}


def test_the_rules_of_a_worker_tell_the_shares_of_its_jobs() -> None:
    flows = ReservedFlow(7, 20_000, (ip_network("192.0.2.0/24"),)), ReservedFlow(8, 10_000, incoming=True)
    desired = desired_of(policy(), a_ruled_job(1, 30), a_ruled_job(2, None, "alice", *flows))
    out = WaysOut({"eth0": 100.0})
    shares = worker_shares(desired.policy, HOST, desired.ruled_at(HOST), out)
    rules = desired.worker_rules(HOST, out)
    assert rules.uplinks == shares.uplinks
    assert {job.id: job.inward for job in rules.jobs if job.inward is not None} == shares.inward != {}
    assert [[each.target for each in job.reserved] for job in rules.jobs] == [[], [flows[0].target]]
