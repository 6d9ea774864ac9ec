"""Connections that a real Open vSwitch tracks for one-way jobs: all are bounded, and one job's take no other's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from lab.namespaces import temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_worker.network.ovs_connections import OvsConnections, too_many
from lark_worker.records.records import Record

pytestmark = pytest.mark.ovs


class Apart(OpenVSwitch):
    """An Open vSwitch in a network namespace of its own: one has room for one datapath, and the run's is there."""

    def _spawn(self, program: str, *args: str) -> subprocess.Popen[bytes]:
        return super()._spawn("unshare", "--net", program, *args)


@pytest.fixture
def ovs() -> Iterator[OpenVSwitch]:
    with temporary_directory() as directory, Apart(Path(directory)) as ovs:
        yield ovs


@dataclass
class Job:
    """The part of a record that counts here."""

    id: str
    addresses: tuple[str, ...]
    network_type: str = "ovs_bridge"
    over: bool = False


JOBS = cast(
    "tuple[Record, ...]",
    (
        Job("a" * 16, ("10.0.0.1/24", "2001:db8::1/64")),
        Job("b" * 16, ("10.0.0.2/24",)),
        Job("c" * 16, ("10.0.0.3/24",), "nat"),
    ),
)


def opened(ovs: OpenVSwitch, source: str, destination: str, count: int, zone: int = CT_ZONE, kind: str = "udp") -> None:
    version = "6" if ":" in source else ""
    ends = f"ipv6_src={source},ipv6_dst={destination}" if version else f"nw_src={source},nw_dst={destination}"
    ovs.ofctl("b0", "add-flow", f"{kind}{version},actions=ct(commit,zone={zone}),LOCAL")
    for number in range(count):
        ports = f"icmp_type=8,icmp_code={number % 200}" if kind == "icmp" else f"udp_src={1000 + number},udp_dst=9"
        ovs.appctl("ofproto/trace", "b0", f"in_port=LOCAL,{kind}{version},{ends},{ports}", "-generate")


def tracked(ovs: OpenVSwitch, address: str, zone: int = CT_ZONE) -> int:
    return ovs.appctl("dpctl/dump-conntrack", f"zone={zone}").count(f"orig=(src={address},")


def test_a_job_with_too_many_connections_loses_its_own_alone(ovs: OpenVSwitch) -> None:
    ovs.vsctl("add-br", "b0", "--", "set", "bridge", "b0", "datapath_type=netdev")
    told: list[tuple[str, str]] = []
    looking = OvsConnections(
        f"unix:{ovs.database_socket}",
        lambda: JOBS,
        most=10,
        total=60,
        report=lambda job, text: told.append((job, text)),
    )
    looking.look()
    limits = ovs.appctl("dpctl/ct-get-limits", f"zone={CT_ZONE},{CT_ZONE_OTHERS}")
    assert f"zone={CT_ZONE},limit=60,count=0" in limits
    assert f"zone={CT_ZONE_OTHERS},limit=7,count=0" in limits
    opened(ovs, "10.0.0.2", "192.0.2.1", 8)
    opened(ovs, "10.0.0.1", "192.0.2.1", 15)
    looking.look()
    # There is room for all.
    assert (tracked(ovs, "10.0.0.1"), tracked(ovs, "10.0.0.2")) == (15, 8)
    opened(ovs, "2001:db8::1", "2001:db8::9", 14)
    opened(ovs, "10.0.0.9", "10.0.0.2", 2)
    looking.look()
    # Open vSwitch 3.1.0 passes over some while it deletes others.
    assert tracked(ovs, "10.0.0.1") <= 10
    assert tracked(ovs, "2001:db8::1") <= 10
    assert (tracked(ovs, "10.0.0.2"), tracked(ovs, "10.0.0.9")) == (8, 2)
    assert [job for job, _ in told] == ["a" * 16]
    assert "lost 29" in told[0][1]
    # The switch takes no more in all, whoever opens them.
    opened(ovs, "10.0.0.1", "192.0.2.1", 70)
    assert f"zone={CT_ZONE},limit=60,count=60" in ovs.appctl("dpctl/ct-get-limits", f"zone={CT_ZONE}")
    looking.look()
    assert tracked(ovs, "10.0.0.1") <= 10
    assert tracked(ovs, "10.0.0.2") == 8
    # Once a minute.
    assert len(told) == 1


def test_a_switch_that_starts_again_is_told_again(ovs: OpenVSwitch) -> None:
    ovs.vsctl("add-br", "b0", "--", "set", "bridge", "b0", "datapath_type=netdev")
    looking = OvsConnections(f"unix:{ovs.database_socket}", lambda: JOBS, most=10, total=60)
    looking.look()
    ovs.restart()
    assert "limit=60" not in ovs.appctl("dpctl/ct-get-limits", f"zone={CT_ZONE}")
    looking.look()
    assert "limit=60" in ovs.appctl("dpctl/ct-get-limits", f"zone={CT_ZONE}")


def test_without_such_jobs_nothing_is_asked(ovs: OpenVSwitch) -> None:
    ovs.vsctl("add-br", "b0", "--", "set", "bridge", "b0", "datapath_type=netdev")
    OvsConnections(f"unix:{ovs.database_socket}", lambda: JOBS[2:], most=10, total=60).look()
    assert "limit=60" not in ovs.appctl("dpctl/ct-get-limits", f"zone={CT_ZONE}")


def test_a_connection_between_two_jobs_is_the_one_that_opened_it() -> None:
    line = "udp,orig=(src=%s,dst=%s,sport=1,dport=9),reply=(src=1.1.1.1,dst=2.2.2.2,sport=9,dport=1),zone=19531\n"
    dumped = line % ("10.0.0.1", "10.0.0.2") * 3 + line % ("192.0.2.1", "10.0.0.2") * 2 + "rubbish\n"
    assert too_many(dumped, ["10.0.0.1", "10.0.0.2"], 1) == [("10.0.0.1", 3), ("10.0.0.2", 2)]
    assert too_many(dumped, ["10.0.0.1", "10.0.0.2"], 2) == [("10.0.0.1", 3)]
