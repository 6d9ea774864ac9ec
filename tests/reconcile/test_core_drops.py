"""The drops of a core's meters, by group, against the switch's own count."""

from __future__ import annotations

import re
import time

import pytest

from lab.openvswitch import OpenVSwitch
from tests.fixtures import frames
from tests.fixtures.service import (
    CORE,
    WORKER1,
    Lark,
    Site,
    enforcing,
    wait,
)
from tests.fixtures.wires import Wire

pytestmark = pytest.mark.ovs

CHECK_SECONDS = 0.2


def policy(site: Site) -> str:
    return site.policy(groups=["group_cms: {port: wan, ceiling: 100kbit, dscp: 12}", "default: {dscp: 20}"])


def core_drops(lark: Lark) -> int:
    found = {group["name"]: group["core_drops"] for group in lark.get("/v1/groups")["groups"]}
    assert found["default"] == 0
    drops: int = found["group_cms"]
    return drops


def settled(lark: Lark) -> int:
    """The drops after some looks at the switch in which nothing came."""
    seen, since = core_drops(lark), time.monotonic()
    while time.monotonic() - since < 10 * CHECK_SECONDS:
        if (now := core_drops(lark)) != seen:
            seen, since = now, time.monotonic()
    return seen


def test_a_groups_drops_are_those_of_its_meter(ovs: OpenVSwitch) -> None:
    with enforcing(ovs, {"a": WORKER1}, policy, check_seconds=CHECK_SECONDS) as (site, lark):
        site.run(lark, "a", "alice", job='AcctGroup="group_cms"')
        host = site["a"]

        def counted() -> int:
            shown = ovs.ofctl(site.bridges[CORE], "meter-stats")
            found = re.search(r"meter:12 .*?bands:\s*0: packet_count:(\d+)", shown, re.DOTALL)
            return int(found[1]) if found else 0

        with Wire(host) as wire:

            def send() -> None:
                for _ in range(200):
                    wire.send(frames.udp(host.mac, site["gw"].mac, host.ipv4, "192.0.2.1"))

            def dropped() -> int:
                send()
                return core_drops(lark)

            # What had been dropped before the first look is nobody's.
            wait(dropped)
            told = settled(lark)
            before = counted()
            for _ in range(5):
                send()
        more = counted() - before
        assert more > 0
        wait(lambda: core_drops(lark) == told + more)
        lark.end_all()
