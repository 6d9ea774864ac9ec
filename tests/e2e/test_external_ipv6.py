"""Jobs' own IPv6 addresses on real switches: opened to the WAN on what was asked for, and closed again."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

import pytest

from lab.run import run
from tests.e2e.test_external import (
    FIRST,
    IP_PMTUDISC_DO,
    SECTION,
    ask,
    directory,
    lark,
    policy,
    reaches,
    site,
    told,
)
from tests.fixtures.service import WAN, WORKER1, Lark, Site, wait
from tests.fixtures.wires import open_socket

__all__ = ["directory", "lark", "site"]

pytestmark = pytest.mark.ovs

OPENS = """external:
  rules:
    - {when: 'Owner == "alice"', family: ipv6, open: [tcp, udp], per_user: 1}
"""


def reaches6(site: Site, name: str, source: str, port: int) -> bool:
    """True if a call from a router's address outside, or from another host of the site, is accepted by the job."""
    site.settle()
    with open_socket(site[name], socket.AF_INET6, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((site[name].ipv6, port))
        server.listen()
        with open_socket(site["gw"], socket.AF_INET6, socket.SOCK_STREAM) as client:
            client.bind((source, 0))
            client.settimeout(2.0)
            try:
                client.connect((site[name].ipv6, port))
            except (TimeoutError, OSError):
                return False
            return True


@pytest.mark.parametrize("rules", [(), ("connectivity: {inbound: deny}",)], ids=["allow", "deny"])
def test_a_jobs_own_ipv6_address_is_opened_to_the_wan(site: Site, lark: Lark, rules: tuple[str, ...]) -> None:
    lark.put_policy(policy(site, *rules, section=OPENS))
    outside, inside = WAN[2], site["gw"].ipv6
    job = site.run(lark, "a", "alice")
    # Until it is asked for, connectivity alone decides.
    assert reaches6(site, "a", outside, 80) is not bool(rules)
    given = ask(lark, job, "tcp/80", family="ipv6")
    assert (given["address"], given["pool"], given["open"]) == (site["a"].ipv6, "own", ["tcp/80"])
    assert ask(lark, job, status=200) == given
    assert reaches6(site, "a", outside, 80)
    assert not reaches6(site, "a", outside, 81)
    assert reaches6(site, "a", inside, 81) is not bool(rules)
    assert "at most 1" in ask(lark, site.run(lark, "b", "alice"), status=409)["detail"]
    lark.request("DELETE", f"/v1/external-addresses/{given['id']}")
    wait(lambda: reaches6(site, "a", outside, 80) is not bool(rules))


def test_what_came_in_by_an_open_ipv6_port_ends_with_it(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, "connectivity: {inbound: deny}", section=OPENS))
    given = ask(lark, site.run(lark, "a", "alice"), "tcp/80", family="ipv6")
    site.settle()
    with (
        open_socket(site["a"], socket.AF_INET6, socket.SOCK_STREAM) as server,
        open_socket(site["gw"], socket.AF_INET6, socket.SOCK_STREAM) as client,
    ):
        # What it leaves behind is in nobody's way.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((site["a"].ipv6, 80))
        server.listen()
        client.bind((WAN[2], 0))
        client.settimeout(10.0)
        client.connect((site["a"].ipv6, 80))
        with server.accept()[0] as called:
            called.settimeout(20.0)
            client.send(b"1")
            assert called.recv(1) == b"1"
            called.settimeout(1.0)
            lark.request("DELETE", f"/v1/external-addresses/{given['id']}")
            wait(lambda: "tp_dst=80" not in " ".join(site.flows(WORKER1)))
            site.settle()
            wait(lambda: not connections_of(site))
            client.send(b"2")
            with pytest.raises(TimeoutError):
                called.recv(1)


def connections_of(site: Site) -> list[str]:
    """The connections of the job's IPv6 address that its switch tracks."""
    return [line for line in site.ovs.appctl("dpctl/dump-conntrack").splitlines() if f"={site['a'].ipv6}," in line]


# linux/in6.h
IPV6_MTU_DISCOVER, IPV6_MTU, IPV6_RECVERR = 23, 24, 25
BEYOND6 = "2001:db8:ffff::9"


def test_path_mtu_and_traceroute_reach_a_job_that_is_open_to_nobody_else(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, "connectivity: {inbound: deny}", section=OPENS))
    ask(lark, site.run(lark, "a", "alice"), "udp/5000-5003", family="ipv6")
    gateway = site["gw"].namespace
    run(["ip", "netns", "exec", gateway, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1"])
    run(["ip", "-n", gateway, "link", "add", "narrow6", "mtu", "1300", "type", "veth", "peer", "name", "end6"])
    try:
        for device in ("narrow6", "end6"):
            run(["ip", "-n", gateway, "link", "set", device, "up"])
        run(["ip", "-n", gateway, "route", "add", f"{BEYOND6}/128", "dev", "narrow6"])
        site.settle()
        with open_socket(site["a"], socket.AF_INET6, socket.SOCK_DGRAM) as client:
            client.bind((site["a"].ipv6, 5001))
            client.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_DO)
            client.connect((BEYOND6, 9))
            assert client.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) == 1500

            def narrower() -> bool:
                with suppress(OSError):
                    client.send(bytes(1400))
                return client.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) == 1300

            wait(narrower)
        with open_socket(site["a"], socket.AF_INET6, socket.SOCK_DGRAM) as client:
            client.bind((site["a"].ipv6, 5002))
            client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
            client.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)
            client.connect((BEYOND6, 33434))
            wait(lambda: told(client) == errno.EHOSTUNREACH)
        # The outside hears that nobody listens at an open port.
        with open_socket(site["gw"], socket.AF_INET6, socket.SOCK_DGRAM) as client:
            client.bind((WAN[2], 0))
            client.connect((site["a"].ipv6, 5003))
            wait(lambda: told(client) == errno.ECONNREFUSED)
    finally:
        run(["ip", "-n", gateway, "link", "del", "narrow6"])


def test_a_job_that_has_closed_itself_opens_no_ipv6_address(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, "connectivity: {inbound: requested}", section=OPENS))
    job = site.run(lark, "a", "alice", job="InboundConnectivity=false")
    assert "InboundConnectivity is false" in ask(lark, job, family="ipv6", status=409)["detail"]
    assert "no rule" in ask(lark, job, family="ipv4", status=409)["detail"]
    assert ask(lark, job, family="ipx", status=422)["errors"]


def test_the_ad_asks_for_both_families(site: Site, lark: Lark) -> None:
    both = SECTION + OPENS.partition("rules:\n")[2]
    lark.put_policy(policy(site, section=both))
    wish = 'RequestExternalAddress=true\nExternalPorts="tcp/80"\nExternalFamily="Both"'
    job = site.run(lark, "a", "alice", job=wish)
    assert job["external_addresses"] == [FIRST, site["a"].ipv6]
    assert reaches(site, "a", FIRST, 80)
    assert reaches6(site, "a", WAN[2], 80)
    wrong = lark.post(site.ads("b", "alice", job='RequestExternalAddress=true\nExternalFamily="ipx"'))
    assert (wrong.status, wrong.body["attribute"]) == (422, "ExternalFamily")
