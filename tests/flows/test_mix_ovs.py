"""A mix of traffic through a real Open vSwitch, compared with what is accounted.

Sizes, protocols, both address families,
to the WAN and back, among jobs, and what the policy drops on the way.
"""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.openvswitch import OpenVSwitch
from tests.fixtures import frames
from tests.fixtures.service import (
    WORKER1,
    WORKER2,
    Lark,
    Site,
    enforcing,
)
from tests.fixtures.wires import Wire, open_socket

pytestmark = pytest.mark.ovs

HOSTS = {"a": WORKER1, "b": WORKER1, "c": WORKER1, "d": WORKER2}
# bob has no WAN, and nobody sends to another user's job.
OWNERS = {"a": "alice", "b": "bob", "c": "carol", "d": "alice"}
RULES = ("slice: {by: Owner}", "wan: {when: 'Owner == \"bob\"', action: drop}")
# A router has these addresses, and nobody those: what is sent there is not answered.
WAN = {4: "198.51.100.7", 6: "2001:db8:eeee::7"}
PORT = 4000
FRAMES = 1500
BATCH = 75


@pytest.fixture
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    with enforcing(ovs, HOSTS, lambda site: site.policy(*RULES)) as made:
        yield made


def frame(source: Any, target_mac: str, src: str, dst: str, chance: random.Random) -> bytes:
    """A datagram to a port where somebody listens, or a TCP reset: neither is answered."""
    data = bytes(chance.choice([0, 1, 18, 100, 511, 1000, 1400]))
    if chance.random() < 0.5:
        payload = frames.ip(src, dst, 17, frames.udp_payload(src, dst, chance.randrange(1024, 65536), PORT, data))
    else:
        payload = frames.ip(
            src, dst, 6, frames.tcp_payload(src, dst, 1234, chance.randrange(1, 65536), frames.RST, data)
        )
    return frames.ethernet(source.mac, target_mac, *payload)


def address(host: Any, version: int) -> str:
    return str(host.ipv4 if version == 4 else host.ipv6)


def device(site: Site, name: str) -> dict[str, int]:
    """The kernel's count at the outer end of a host's link; what that sends, the host receives."""
    folder = Path("/sys/class/net", site[name].port, "statistics")
    names = {"bytes_in": "tx_bytes", "bytes_out": "rx_bytes", "packets_in": "tx_packets", "packets_out": "rx_packets"}
    return {ours: int((folder / theirs).read_text()) for ours, theirs in names.items()}


def until_empty(question: Callable[[], dict[str, tuple[int, int]]], limit: float = 20.0) -> None:
    """Ask until nothing differs: counters of flows follow their packets a little later."""
    deadline = time.monotonic() + limit
    while found := question():
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_what_is_accounted_is_what_was_sent_whatever_it_was(started: tuple[Site, Lark]) -> None:
    site, lark = started
    chance = random.Random(20140623)
    jobs = site.runs(lark, OWNERS)
    meant: dict[str, Counter[str]] = {name: Counter() for name in HOSTS}
    gateway = site["gw"]
    with ExitStack() as stack:
        for name in HOSTS:
            for family in (socket.AF_INET, socket.AF_INET6):
                listening = stack.enter_context(open_socket(site[name], family, socket.SOCK_DGRAM))
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(("", PORT))
        wires = {name: stack.enter_context(Wire(site[name])) for name in (*HOSTS, "gw")}

        def differences(name: str) -> dict[str, tuple[int, int]]:
            usage = lark.get(f"/v1/jobs/{jobs[name]['id']}?fresh=true")["usage"]
            # The port is as new as the job, which has all of it.
            total = device(site, name)
            split = ("wan_bytes_in", "wan_bytes_out", "wan_packets_in", "wan_packets_out")
            wanted = total | {key: meant[name][key] for key in (*split, "policy_drops_in", "policy_drops_out")}
            return {key: (value, usage[key]) for key, value in wanted.items() if usage[key] != value}

        def compare() -> None:
            site.settle()
            for name in jobs:
                until_empty(partial(differences, name))

        for number in range(1, FRAMES + 1):
            version = chance.choice([4, 6])
            name = chance.choice(list(HOSTS))
            job, count = site[name], meant[name]
            kind = chance.choice(["to the WAN", "from the WAN", "to a job"])
            if kind == "to the WAN":
                sent = frame(job, gateway.mac, address(job, version), WAN[version], chance)
                wires[name].send(sent)
                allowed = OWNERS[name] != "bob"
                count.update({"wan_bytes_out": len(sent), "wan_packets_out": 1} if allowed else {"policy_drops_out": 1})
            elif kind == "from the WAN":
                sent = frame(gateway, job.mac, WAN[version], address(job, version), chance)
                wires["gw"].send(sent)
                # What is for bob the core drops, and nobody's account has it.
                count.update({"wan_bytes_in": len(sent), "wan_packets_in": 1} if OWNERS[name] != "bob" else {})
            else:
                other = chance.choice([each for each in HOSTS if each != name])
                wires[name].send(
                    frame(job, site[other].mac, address(job, version), address(site[other], version), chance)
                )
                if OWNERS[other] != OWNERS[name]:
                    count.update({"policy_drops_out": 1})
            # A switch that gets no processor for a while loses what its sockets cannot hold: less than that at a time.
            if number % BATCH == 0:
                compare()

        compare()
        for name in jobs:
            assert meant[name]["policy_drops_out"] > 0
        lark.end_all()
        for name, run in jobs.items():
            ended = lark.get(f"/v1/jobs/{run['id']}")["usage"]
            assert ended["wan_bytes_out"] == meant[name]["wan_bytes_out"], name
