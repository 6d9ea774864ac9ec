"""A guarantee that is missed is told where operators look.

The userspace datapath sends nothing through queues, so that a job's guarantee is missed as soon as the job sends. The
controller is kept from knowing that, since a queue without effect promises nothing.
"""

from __future__ import annotations

import pytest

from lab.openvswitch import OpenVSwitch
from tests.fixtures import frames
from tests.fixtures.service import (
    WORKER1,
    Site,
    enforcing,
    wait,
)
from tests.fixtures.wires import Wire

pytestmark = pytest.mark.ovs


def policy(site: Site) -> str:
    return site.policy("bandwidth: {mode: guarantee}").replace("edge: {", "edge: {speed: 1Gbit, ")


def test_a_guarantee_that_is_missed_is_in_the_audit_trail_once(
    ovs: OpenVSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.switches.ovsdb.switch_database.USERSPACE", "")
    # Looks that are less than five seconds apart say nothing.
    with enforcing(ovs, {"a": WORKER1}, policy, core=False, uplink=True, queues=True, check_seconds=5.5) as (
        site,
        lark,
    ):
        job = lark.post(site.ads("a", "alice", job="RequestBandwidth=0.1"), 0.2).body
        wait(lambda: any("set_queue" in flow for flow in site.flows(WORKER1)))
        host = site["a"]

        def told() -> list[str]:
            entries = lark.get(f"/v1/audit?subject={job['id']}")["entries"]
            return [entry["detail"] for entry in entries if entry["action"] == "guarantee missed"]

        def misses() -> int:
            problems = lark.switch(WORKER1)["problems"]
            return sum("guarantee missed" in each["problem"] and each["job"] == job["id"] for each in problems)

        with Wire(host) as wire:

            def send() -> int:
                for _ in range(200):
                    wire.send(frames.udp(host.mac, "02:00:00:00:00:77", host.ipv4, "192.0.2.1"))
                return misses()

            wait(lambda: send() == 1, 40)
            # It stays one as long as it lasts, and is none any more once it is over.
            wait(lambda: misses() == 0, 40)
        (text,) = told()
        assert text.startswith(
            f"job {job['cluster']}.0 of {job['owner']} got 0.0 of 0.1 Mb/s at port {site.net.name('ue1')} for "
        )
        lark.end_all()
