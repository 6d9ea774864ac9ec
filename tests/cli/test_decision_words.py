"""A job's decision and confirmations in words, for each kind of network: nothing is said that does not hold there."""

from __future__ import annotations

from typing import Any

import pytest

from lark_controller.cli.decision_words import confirmed, waited_for, words

NO_LIMITS = {"default": None, "maximum": None, "ceiling": None}


def decided(**changes: Any) -> dict[str, Any]:
    return {
        "quarantine": "", "blocked": False, "slice": None, "wan": 0, "inbound": True, "outbound": True,
        "bandwidth": None, "group": "", **changes,
    }  # fmt: skip


def a_job(network: str = "ovs_bridge", **changes: Any) -> dict[str, Any]:
    return {
        "network_type": network, "host": "w1", "state": "enforced", "bandwidth": None, "confirmed": [], "waiting": [],
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("network", "inbound", "outbound", "said"),
    [
        ("ovs_bridge", True, True, "nothing special"),
        ("bridge", True, True, "nothing special"),
        ("nat", True, True, "inbound connections from behind its worker's NAT alone"),
        ("nat", True, False, "no outbound connections, inbound connections from behind its worker's NAT alone"),
        ("nat", False, True, "no inbound connections"),
        ("bridge", True, False, "no outbound connections"),
    ],
)
def test_connections_by_network(network: str, inbound: bool, outbound: bool, said: str) -> None:
    assert words(decided(inbound=inbound, outbound=outbound), a_job(network)) == said


def test_no_rule_is_for_a_job_without_a_network() -> None:
    decision = decided(blocked=True, slice={"value": '"alice"'}, group="default")
    said = "outside of it: the job has no network, and nothing passes whatever the rules"
    assert words(decision, a_job("none")) == said


@pytest.mark.parametrize(
    ("rule", "asked", "said"),
    [
        ({"mode": "cap"}, 20.0, "20 Mb/s at most"),
        ({"mode": "guarantee"}, 20.0, "20 Mb/s guaranteed"),
        ({"mode": "guarantee", "maximum": 15.0}, 20.0, "15 Mb/s guaranteed"),
        ({"mode": "guarantee", "ceiling": 15.0}, 20.0, "15 Mb/s guaranteed (its ceiling, of 20 requested)"),
        ({"mode": "guarantee", "ceiling": 25.0}, 20.0, "20 Mb/s guaranteed"),
        ({"mode": "guarantee", "default": 5.0}, None, "5 Mb/s guaranteed"),
        ({"mode": "guarantee", "default": 5.0}, 0.0, "5 Mb/s guaranteed"),
        # A rule that is for it, and nothing that it asks for.
        ({"mode": "guarantee", "maximum": 15.0}, None, "no bandwidth requested"),
        ({"mode": "cap"}, None, "no bandwidth requested"),
    ],
)
def test_bandwidth_is_what_counts_of_the_request(rule: dict[str, Any], asked: float | None, said: str) -> None:
    assert words(decided(bandwidth={**NO_LIMITS, **rule}), a_job(bandwidth=asked)) == said


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (a_job(), []),
        (a_job(confirmed=["00000000000000e1"]), ["00000000000000e1"]),
        (a_job("nat"), ["worker w1"]),
        (a_job("bridge", confirmed=["00000000000000c0"]), ["worker w1", "00000000000000c0"]),
        (a_job("bridge", state="pending", waiting=[{"datapath": "", "reason": "late"}]), []),
        (a_job("bridge", state="pending", waiting=[{"datapath": "00000000000000c0", "reason": "away"}]), ["worker w1"]),
        (a_job("nat", state="ended"), []),
        (a_job("nat", state="refused"), []),
        (a_job("none"), []),
    ],
)
def test_a_worker_confirms_what_it_enforces(job: dict[str, Any], said: list[str]) -> None:
    assert confirmed(job) == said


@pytest.mark.parametrize(
    ("network", "datapath", "said"),
    [
        ("ovs_bridge", "00000000000000c0", "00000000000000c0: why"),
        # A gateway that has not confirmed an external address is not its worker.
        ("ovs_bridge", "", "why"),
        ("bridge", "", "worker w1: why"),
        ("nat", "", "worker w1: why"),
    ],
)
def test_what_a_job_waits_for_is_named(network: str, datapath: str, said: str) -> None:
    assert waited_for({"datapath": datapath, "reason": "why"}, a_job(network)) == said


def test_a_wan_rule_by_its_position_and_by_what_it_does() -> None:
    because = [{"kind": "block", "does": ""}, {"kind": "wan", "does": "drop, except 192.0.2.1"}]
    assert words(decided(wan=2, because=because), a_job()) == "WAN rule 2 (drop, except 192.0.2.1)"
    # A controller of before does not say.
    assert words(decided(wan=2, because=[{"kind": "wan"}]), a_job()) == "WAN rule 2"
