"""Counting flows: the packets of a job that they count, through simulated tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lark_controller.accounting.readings import CountKind
from lark_controller.flows.cookies import Category, count_cookie, counted_by, parse
from lark_controller.flows.simulation.simulate import Result
from tests.fixtures import frames
from tests.flows.test_pipeline import (
    EDGE,
    EXCEPTION,
    GATEWAY,
    OUTSIDE,
    POLICY,
    UPLINK,
    VERSIONS,
    Site,
    a_job,
    at,
    mac,
)

INSIDE = {4: "10.1.1.1", 6: "2001:db8:1::1"}


def counts(result: Result) -> list[tuple[int, CountKind]]:
    """The job's number and what is counted, for every counting flow that a packet met."""
    found = [counted_by(hit.data.cookie) for hit in result.trace if hit.data is not None]
    return [(whose[0], CountKind(whose[1])) for whose in found if whose is not None]


def test_cookies_say_whose_and_what() -> None:
    assert counted_by(count_cookie(7, CountKind.DROP_IN)) == (7, CountKind.DROP_IN)
    assert counted_by(count_cookie(2**37 - 1, 7)) == (2**37 - 1, 7)
    assert parse(count_cookie(7)).category == Category.COUNT
    assert counted_by(0x1A4B03 << 40 | 7) is None
    with pytest.raises(ValueError, match="does not fit"):
        count_cookie(2**37)


@VERSIONS
def test_the_wan_is_counted_by_direction_and_local_traffic_is_not(version: int) -> None:
    alice, again = a_job(1, "alice"), a_job(2, "alice")
    site = Site(alice, again)
    out = frames.udp(mac(alice), GATEWAY, at(alice, version), OUTSIDE[version])
    back = frames.udp(GATEWAY, mac(alice), OUTSIDE[version], at(alice, version))
    assert counts(site.send(site.edge, 11, out)) == [(1, CountKind.WAN_OUT)]
    assert counts(site.send(site.edge, UPLINK, back)) == [(1, CountKind.WAN_IN)]
    for other, target in ((mac(again), at(again, version)), (GATEWAY, INSIDE[version])):
        local = frames.udp(mac(alice), other, at(alice, version), target)
        result = site.send(site.edge, 11, local)
        assert result.ports
        assert counts(result) == []
    arp = frames.arp(mac(alice), "00:00:00:00:00:00", "10.64.0.1", "00:00:00:00:00:00", "10.64.0.2")
    assert counts(site.send(site.edge, 11, arp)) == []


@VERSIONS
def test_what_policies_drop_is_the_senders_and_from_outside_the_receivers(version: int) -> None:
    alice, bob, mallory = a_job(1, "alice"), a_job(3, "bob"), a_job(4, "mallory")
    site = Site(alice, bob, mallory)

    def sent(source: int, frame: bytes) -> list[tuple[int, CountKind]]:
        result = site.send(site.edge, source, frame)
        assert result.ports == ()
        return counts(result)

    to_bob = frames.udp(mac(alice), mac(bob), at(alice, version), at(bob, version))
    assert sent(11, to_bob) == [(1, CountKind.DROP_OUT)]
    assert sent(13, frames.udp(mac(bob), GATEWAY, at(bob, version), OUTSIDE[version])) == [(3, CountKind.DROP_OUT)]
    assert sent(UPLINK, frames.udp(GATEWAY, mac(bob), OUTSIDE[version], at(bob, version))) == [(3, CountKind.DROP_IN)]
    assert sent(14, frames.udp(mac(mallory), GATEWAY, at(mallory, version), OUTSIDE[version])) == [
        (4, CountKind.DROP_OUT)
    ]
    to_mallory = frames.udp(GATEWAY, mac(mallory), OUTSIDE[version], at(mallory, version))
    assert sent(UPLINK, to_mallory) == [(4, CountKind.DROP_IN)]
    # A spoofed address is refused at the port, and is no policy's drop.
    assert sent(11, frames.udp(mac(alice), GATEWAY, OUTSIDE[version], EXCEPTION[version])) == []
    allowed = frames.udp(mac(bob), GATEWAY, at(bob, version), EXCEPTION[version])
    assert counts(site.send(site.edge, 13, allowed)) == [(3, CountKind.WAN_OUT)]


@VERSIONS
def test_a_sliced_jobs_packets_to_an_address_that_no_job_has_are_its_drops(version: int) -> None:
    alice = a_job(1, "alice")
    site = Site(alice)
    nobody = at(a_job(9, "alice"), version)
    result = site.send(site.edge, 11, frames.udp(mac(alice), GATEWAY, at(alice, version), nobody))
    assert (result.ports, counts(result)) == ((), [(1, CountKind.DROP_OUT)])


@VERSIONS
def test_connections_in_the_wrong_direction_are_dropped_and_counted(version: int) -> None:
    closed = a_job(5, "carol", inbound=False)
    site = Site(closed)
    call = frames.udp(GATEWAY, mac(closed), OUTSIDE[version], at(closed, version))
    result = site.send(site.edge, UPLINK, call)
    assert (result.ports, counts(result)) == ((), [(5, CountKind.DROP_IN)])


@VERSIONS
def test_a_job_whose_mac_is_not_known_is_counted_by_its_addresses(version: int) -> None:
    job = replace(a_job(1, "alice"), mac=None)
    site = Site(job)
    back = frames.udp(GATEWAY, "02:00:00:00:00:77", OUTSIDE[version], at(job, version))
    kind = CountKind.WAN_IN if version == 4 else CountKind.WAN_IN_IPV6
    assert counts(site.send(site.edge, UPLINK, back)) == [(1, kind)]


def test_jobs_that_are_not_accounted_have_no_such_flows_and_none_takes_the_tables_too() -> None:
    alice = a_job(1, "alice")
    site = Site(alice, policy=POLICY + "accounting: requested\n")
    out = frames.udp(mac(alice), GATEWAY, at(alice, 4), OUTSIDE[4])
    result = site.send(site.edge, 11, out)
    assert (result.ports, counts(result)) == ((UPLINK,), [])
    asking = replace(alice, facts=replace(alice.facts, job=(*alice.facts.job, ("networkaccounting", "true"))))
    site = Site(asking, policy=POLICY + "accounting: requested\n")
    assert counts(site.send(site.edge, 11, out)) == [(1, CountKind.WAN_OUT)]
    sizes = {
        word: len(Site(alice, policy=f"{POLICY}accounting: {word}\n").desired.build(EDGE).flows)
        for word in ("all", "none")
    }
    site = Site(alice, policy=POLICY + "accounting: none\n")
    assert site.send(site.edge, 11, out).ports == (UPLINK,)
    local = 12  # 10/8, 2001:db8::/32 and what never is the WAN, without overlaps
    assert sizes["all"] - sizes["none"] == 4 + 2 * (local - 2) + 4


def test_counting_flows_stay_as_they_are_when_the_policy_changes() -> None:
    alice = a_job(1, "alice")
    before = Site(alice).desired.build(EDGE).flows
    after = (
        Site(alice, policy=POLICY.replace('"alice"', '"x"').replace("dscp: 10", "dscp: 11")).desired.build(EDGE).flows
    )
    counting = {key: data for key, data in before.items() if counted_by(data.cookie)}
    assert len(counting) == 4
    assert counting.items() <= after.items()
