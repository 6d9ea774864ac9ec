"""A job's usage by the controller against the bytes that were sent, on a real Open vSwitch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.network.commands import run
from tests.worker.pool import POLICY, Pool, Starter, a_pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

ROUTER, OUTSIDE = "10.64.255.254", "198.51.100.1"
HOSTS = POLICY.replace("  local:", f"  hosts: [{ROUTER}]\n  local:")
# Frames of 1,000 bytes: 14 of Ethernet, 20 of IPv4, 8 of UDP.
PAYLOAD = 958
SEND = f"""
import socket, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for target, count in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    for _ in range(count):
        udp.sendto(bytes({PAYLOAD}), (target, 9))
        # What comes faster than Open vSwitch's userspace datapath reads is lost behind the port that counted it.
        time.sleep(0.002)
"""


def send(pool: Pool, starter: Starter, *targets: object) -> None:
    """UDP packets to addresses, how many each; a first one to each, so that ARP is done before they are counted."""
    script = starter.scratch / "send.py"
    script.write_text(SEND)
    status, said = pool.inside(starter, f"python3 {script} {' '.join(map(str, targets))}")
    assert status == 0, said


def device(pool: Pool, port: str) -> dict[str, int]:
    """The kernel's count at the outer end: the other side's view of the job."""
    shown: list[dict[str, Any]] = json.loads(run(["ip", "-json", "-s", "link", "show", port]))
    counted = shown[0]["stats64"]
    return {
        "bytes_out": counted["rx"]["bytes"],
        "packets_out": counted["rx"]["packets"],
        "bytes_in": counted["tx"]["bytes"],
        "packets_in": counted["tx"]["packets"],
    }


def test_a_jobs_use_is_what_it_sent_to_the_packet(ovs: OpenVSwitch, net: Net) -> None:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, HOSTS, gateways=ROUTER) as pool:
        for command in (f"address add {ROUTER}/16", f"address add {OUTSIDE}/32"):
            run(["ip", *command.split(), "dev", pool.bridge])
        run(["ip", "link", "set", pool.bridge, "up"])
        alice, again, bob = pool.starter(1, "alice"), pool.starter(2, "alice"), pool.starter(3, "bob")
        said = [
            pool.hook(starter, "start", owner, number)
            for number, (starter, owner) in enumerate(((alice, "alice"), (again, "alice"), (bob, "bob")), 1)
        ]
        assert [value(lines, "LarkState") for lines in said] == ["enforced"] * 3
        friend, stranger = (value(said[each], "LarkInnerAddressIPv4") for each in (1, 2))
        job_id, port = value(said[0], "LarkJobId"), value(said[0], "LarkExternalInterface")

        # Neighbours are known before anything is counted; bob's never answers, so his address is told.
        mac = value(said[2], "LarkInnerMacAddress")
        run(["ip", "-n", _namespace(pool, job_id), "neigh", "replace", stranger, "lladdr", mac, "dev", "eth0"])
        send(pool, alice, OUTSIDE, 1, friend, 1)
        echoes = 0

        def answered() -> bool:
            nonlocal echoes
            echoes += 1
            return pool.inside(alice, f"ping -c1 -W2 {OUTSIDE}")[0] == 0

        eventually(answered)

        send(pool, alice, OUTSIDE, 300, friend, 200, stranger, 50)
        before = device(pool, port)
        pool.hook(alice, "exit", "alice", 1)
        eventually(lambda: (pool.client.job(job_id)["usage"] or {}).get("final", False))
        usage = pool.client.job(job_id)["usage"]

        for name, counted in before.items():
            assert counted <= usage[name] <= counted + (1 if name.startswith("packets") else 100), name
        # One to learn the neighbour, 300, and an echo request of each try.
        assert usage["wan_packets_out"] == 301 + echoes
        assert 301_000 <= usage["wan_bytes_out"] <= 301_000 + 200 * echoes
        assert usage["policy_drops_out"] == 50
        # The echo's answer, and that nobody listens at the discard port (rate-limited by the kernel).
        assert usage["wan_packets_in"] >= 1
        assert usage["wan_bytes_out"] <= usage["bytes_out"] - 250_000

        # The friend's side of it, while it lives.
        theirs = value(said[1], "LarkJobId")
        eventually(lambda: (pool.client.job(theirs)["usage"] or {}).get("packets_in", 0) >= 201, 20)
        assert pool.client.job(theirs)["usage"]["wan_packets_in"] == 0
        # And bob got nothing, without anybody sending for him what the policy dropped.
        other = pool.client.job(value(said[2], "LarkJobId"))["usage"]
        assert other["wan_packets_out"] == 0


def _namespace(pool: Pool, job_id: str) -> str:
    return f"{pool.prefix}-{job_id}"
