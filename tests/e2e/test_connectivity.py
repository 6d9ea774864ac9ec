"""Connectivity by the connection tracking of a real switch: ICMP, TCP and UDP, IPv4 and IPv6."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from lab.openvswitch import OpenVSwitch
from tests.fixtures.service import (
    WORKER1,
    WORKER2,
    Lark,
    Site,
    enforcing,
    wait,
)
from tests.fixtures.wires import open_socket

pytestmark = pytest.mark.ovs

RULE = "connectivity: {inbound: requested, outbound: requested}"


@pytest.fixture(scope="module")
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    with enforcing(ovs, {"a": WORKER1, "b": WORKER1, "d": WORKER2}, lambda site: site.policy(RULE)) as made:
        yield made


@pytest.fixture
def site(started: tuple[Site, Lark]) -> Iterator[Site]:
    site, lark = started
    yield site
    lark.end_all()
    wait(lambda: not any(site.port_flows(name) for name in site.hosts))


@pytest.fixture
def lark(started: tuple[Site, Lark]) -> Lark:
    return started[1]


@pytest.mark.parametrize(
    ("inbound", "outbound"), [(True, True), (True, False), (False, True), (False, False)],
    ids=["both", "inbound only", "outbound only", "none"],
)  # fmt: skip
def test_what_the_job_asks_is_what_it_gets(site: Site, lark: Lark, inbound: bool, outbound: bool) -> None:
    asks = f"InboundConnectivity={str(inbound).lower()}\nOutboundConnectivity={str(outbound).lower()}"
    site.run(lark, "a", "alice", job=asks)
    site.runs(lark, {"b": "alice", "d": "alice"})
    inward, outward = (inbound, inbound), (outbound, outbound)
    pings = site.reached([("a", "b"), ("a", "d"), ("a", "wan1"), ("b", "a"), ("d", "a"), ("gw", "a")])
    assert pings == {
        ("a", "b"): outward, ("a", "d"): outward, ("a", "wan1"): outward,
        ("b", "a"): inward, ("d", "a"): inward, ("gw", "a"): inward,
    }  # fmt: skip
    calls = site.calls(
        [("a", other, protocol) for other in "bd" for protocol in ("tcp", "udp")]
        + [(other, "a", protocol) for other in "bd" for protocol in ("tcp", "udp")]
    )
    assert calls == {one: outward if one[0] == "a" else inward for one in calls}
    assert site.matrix("b", "d") == {"b>d", "d>b"}


def test_two_jobs_that_only_call_do_not_meet(site: Site, lark: Lark) -> None:
    for name in "ab":
        site.run(lark, name, "alice", job="InboundConnectivity=false")
    site.run(lark, "d", "alice", job="OutboundConnectivity=false")
    assert site.matrix("a", "b", "d") == {"a>d", "b>d"}


def test_a_later_job_with_the_same_address_inherits_no_connection(site: Site, lark: Lark) -> None:
    site.run(lark, "d", "alice")
    first = site.run(lark, "a", "alice", job="InboundConnectivity=false", started=1)
    site.settle()
    with (
        open_socket(site["a"], socket.AF_INET, socket.SOCK_DGRAM) as inside,
        open_socket(site["d"], socket.AF_INET, socket.SOCK_DGRAM) as outside,
    ):
        for one in (inside, outside):
            one.settimeout(20)
        inside.bind((site["a"].ipv4, 5301))
        outside.bind((site["d"].ipv4, 5302))
        inside.sendto(b"call", (site["d"].ipv4, 5302))
        assert outside.recvfrom(99)[0] == b"call"
        outside.sendto(b"answer", (site["a"].ipv4, 5301))
        assert inside.recv(99) == b"answer"
        site.end(lark, "a", first)
        site.run(lark, "a", "bob", job="InboundConnectivity=false", started=2)
        site.settle()
        outside.sendto(b"late", (site["a"].ipv4, 5301))
        assert site.net.ping(site["a"], site["d"].ipv4)
        inside.sendto(b"anew", (site["d"].ipv4, 5302))
        assert outside.recvfrom(99)[0] == b"anew"
        outside.sendto(b"again", (site["a"].ipv4, 5301))
        assert inside.recv(99) == b"again"


def test_deny_by_policy_wins_over_what_the_job_asks(site: Site, lark: Lark) -> None:
    lark.put_policy(site.policy("connectivity: {when: 'Owner == \"alice\"', inbound: deny, outbound: allow}"))
    try:
        site.run(lark, "a", "alice", job="InboundConnectivity=true\nOutboundConnectivity=false")
        site.run(lark, "b", "bob", job="InboundConnectivity=false\nOutboundConnectivity=false")
        assert site.matrix("a", "b") == {"a>b"}
    finally:
        lark.put_policy(site.policy(RULE))


def test_datagrams_in_fragments_pass_as_others_do(site: Site, lark: Lark) -> None:
    site.run(lark, "a", "alice", job="InboundConnectivity=false")
    site.runs(lark, {"b": "alice", "d": "alice"})
    site.settle()
    large, called = b"x" * 4000, 5400
    for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        of = {name: site[name].ipv4 if version == 4 else site[name].ipv6 for name in "abd"}
        for other in "bd":
            called += 2
            with (
                open_socket(site["a"], family, socket.SOCK_DGRAM) as inside,
                open_socket(site[other], family, socket.SOCK_DGRAM) as outside,
            ):
                for name, one in (("a", inside), (other, outside)):
                    one.settimeout(20)
                    one.bind((of[name], called))
                # From another port it is no answer.
                with open_socket(site[other], family, socket.SOCK_DGRAM) as stranger:
                    stranger.bind((of[other], called + 1))
                    stranger.sendto(b"a call" + large, (of["a"], called))
                inside.sendto(b"a question" + large, (of[other], called))
                assert outside.recv(9999) == b"a question" + large
                outside.sendto(b"an answer" + large, (of["a"], called))
                assert inside.recv(9999) == b"an answer" + large
