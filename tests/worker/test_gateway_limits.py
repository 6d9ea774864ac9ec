"""Limits on the connections of each address at a plain Linux gateway: real namespaces, nftables and connections."""

from __future__ import annotations

import socket

import pytest

from lab.namespaces import Host
from lab.run import run
from lark_worker.errors import NetworkError
from lark_worker.network.commands import run as nft
from lark_worker.rules import gateway
from tests.fixtures.wires import open_socket
from tests.worker.test_gateway import FIRST, OUTSIDE, SECOND, Site, listening, over_socket, reached, site

__all__ = ["over_socket", "site"]

pytestmark = pytest.mark.ovs


def test_one_addresses_connections_leave_room_for_all_others(site: Site) -> None:
    """The kernel has one table for the connections of all addresses."""
    site.start(connections=50)
    site.told.give(FIRST, "10.64.0.1", "udp/5000")
    site.told.give(SECOND, "10.64.0.2", "tcp/80")
    site.step()
    # None of them is over before the last is counted.
    run(["ip", "netns", "exec", site.gateway.namespace, "sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=600"])

    def flood(source: Host, address: str) -> None:
        for port in range(20000, 20300):
            with open_socket(source, socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind(("0.0.0.0", port))
                sender.sendto(b"x", (address, 5000))

    # The gateway's own ports are in its table, too.
    for source, address in ((site.out, FIRST), (site.a, OUTSIDE), (site.b, "10.64.0.254")):
        before = tracked(site)
        flood(source, address)
        # Some tens more were opened while it went on.
        assert 50 <= tracked(site) - before <= 120
    assert reached(site, site.b, SECOND, 80)
    # An address that opens no more takes no place for ever.
    for name in ("in_rate", "out_rate"):
        assert "expires" in site.listed("set", "inet", gateway.TABLE, name)
    # Another run of the program keeps to it, and its probe is gone.
    site.start(connections=50)
    site.step()
    assert site.program._stands
    flood(site.out, FIRST)
    assert tracked(site) <= 3 * 120 + 60
    assert site.listed("tables").split() == ["table", "inet", gateway.TABLE]


def test_a_kernel_that_counts_no_connections_translates_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without(command: list[str], script: str = "") -> str:
        if "ct count" in script:
            raise NetworkError("nft: Could not process rule: No such file or directory")
        return nft(command, script)

    monkeypatch.setattr(gateway, "run", without)
    site.start(connections=16)
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    site.step()
    assert reached(site, site.a, FIRST, 80)
    assert "nft_connlimit" in caplog.text


def test_packets_without_an_answer_are_one_connection(site: Site) -> None:
    site.start(connections=16)
    site.told.give(FIRST, "10.64.0.1", "udp/5000")
    site.step()
    with (
        listening(site.a, 5000, socket.SOCK_DGRAM) as job,
        open_socket(site.out, socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        for _ in range(100):
            out.sendto(b"x", (FIRST, 5000))
        for _ in range(100):
            assert job.recv(10) == b"x"


def tracked(site: Site) -> int:
    """The connections that the gateway's kernel tracks."""
    count = "/proc/sys/net/netfilter/nf_conntrack_count"
    return int(run(["ip", "netns", "exec", site.gateway.namespace, "cat", count]).stdout)
