"""The network attributes of submit files (Table I of the paper): matched, obeyed, and shown by the controller."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.inside.condor import BANDWIDTH
from lab.inside.topology import GATEWAYS, NAMESERVER
from lab.jobs import Running, Wish, running
from tests.lab.trials import advertised, configured, policy

SAME_PROTOCOL = {"requirements": "TARGET.IPProtocol =?= MY.IPProtocol"}
SAME_VLAN = {"requirements": "TARGET.VLAN =?= MY.RequestedVLAN"}


def shown(lab: Lab, job: Running) -> Mapping[str, object]:
    record: Mapping[str, object] = controller.api(lab, f"/v1/jobs/{job.id}")
    return record


def test_a_job_that_asks_for_nothing_has_addresses_of_both_families(lab: Lab) -> None:
    with running(lab, [Wish("alice")]) as (job,):
        record = shown(lab, job)
        assert (record["address_type"], record["network_type"], record["vlan"]) == ("controller", "ovs_bridge", None)
        assert (record["bandwidth"], record["inbound"], record["outbound"]) == (None, None, None)
        interfaces = json.loads(job.run("ip -json address show eth0").stdout)
        assert {entry["local"] for entry in interfaces[0]["addr_info"] if entry["scope"] == "global"} == {
            job.ipv4, job.ipv6,
        }  # fmt: skip
        assert interfaces[0]["mtu"] == 1500
        routes = [line.split()[:3] for line in job.run("ip route; ip -6 route").stdout.splitlines()]
        assert [route for route in routes if route[0] == "default"] == [["default", "via", each] for each in GATEWAYS]
        assert job.run("cat /etc/resolv.conf").stdout.split() == ["nameserver", NAMESERVER]


def test_ip_protocol_is_matched(lab: Lab) -> None:
    wishes = [Wish("alice", {"+IPProtocol": f'"{protocol}"', **SAME_PROTOCOL}) for protocol in ("IPv6", "IPv4")]
    with configured(lab, "worker2", 'IPProtocol = "IPv6"\n', "IPProtocol"), running(lab, wishes) as started:
        assert [job.worker for job in started] == ["worker2", "worker1"]


@pytest.mark.parametrize("spelling", ["request_bandwidth", "+RequestBandwidth"])
def test_requested_bandwidth_is_subtracted_and_known_to_the_controller(lab: Lab, spelling: str) -> None:
    left = f"{BANDWIDTH - 300}"
    with running(lab, [Wish("alice", {spelling: "300"}, worker="worker1")]) as (job,):
        assert shown(lab, job)["bandwidth"] == 300
        assert re.search(r"^Bandwidth = 300$", job.run('cat "$_CONDOR_MACHINE_AD"').stdout, re.MULTILINE)
        deadline = time.monotonic() + 30
        while advertised(lab, "worker1", "Bandwidth") != left:
            assert time.monotonic() < deadline
            time.sleep(0.3)


def test_use_is_counted_for_jobs_that_ask_for_it_where_policy_says_so(lab: Lab) -> None:
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    wishes = [Wish("alice", {"+NetworkAccounting": asked}) for asked in ("true", "false")]
    with policy(lab, f"{before}\naccounting: requested\n"), running(lab, wishes) as (counted, other):
        for job in (counted, other):
            assert job.reach([("http", "192.0.2.1")])[0]
        deadline = time.monotonic() + 60
        while not (usage := controller.api(lab, f"/v1/jobs/{counted.id}")["usage"]) or not usage["wan_bytes_in"]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert shown(lab, other)["usage"] is None


def test_network_accounting_is_matched(lab: Lab) -> None:
    wish = {"+NetworkAccounting": "true", "requirements": "TARGET.NetworkAccounting =?= MY.NetworkAccounting"}
    with (
        configured(lab, "worker1", "NetworkAccounting = false\n", "NetworkAccounting"),
        running(lab, [Wish("alice", wish), Wish("alice", wish)]) as started,
    ):
        assert [job.worker for job in started] == ["worker2", "worker2"]


def test_connectivity_is_known_to_the_controller(lab: Lab) -> None:
    wishes = [
        Wish("alice", {"+InboundConnectivity": "false"}),
        Wish("alice", {"+OutboundConnectivity": "false"}),
        Wish("alice", {"+InboundConnectivity": "false", "+OutboundConnectivity": "false"}),
    ]
    with running(lab, wishes) as started:
        asked = [(record["inbound"], record["outbound"]) for record in (shown(lab, job) for job in started)]
        assert asked == [(False, None), (None, False), (False, False)]
        assert started[2].run("ls /proc/sys/net/ipv4/conf").stdout.split() == ["all", "default", "lo"]
        assert shown(lab, started[2])["network_type"] == "none"


def test_a_requested_vlan_is_matched_and_tagged_on_the_wire(lab: Lab) -> None:
    vlan = "VLAN = 42\nSTARTD_ATTRS = $(STARTD_ATTRS) VLAN\n"
    with (
        configured(lab, "worker2", vlan, "VLAN"),
        running(lab, [Wish("alice", {"+RequestedVLAN": "42", **SAME_VLAN})]) as (job,),
    ):
        assert job.worker == "worker2"
        assert shown(lab, job)["vlan"] == 42
        # Its uplink carries the tag, and nothing of the job without one.
        capture = (
            f'tcpdump -p -nn -e -c 1 -Q out -i eth0 "ether src {job.record["mac"]}" 2>/tmp/dump & '
            "until grep -q listening /tmp/dump; do sleep 0.05; done; "
            f"nsenter --net=/run/netns/lark-{job.id} ping -c 3 -W 1 10.64.0.1 >/dev/null; wait $!"
        )
        assert "vlan 42" in lab.on("worker2", "timeout", "20", "sh", "-c", capture, check=False).stdout


UNMET = {
    "RequestedVLAN": ({"+RequestedVLAN": "77", **SAME_VLAN}, "TARGET.VLAN is MY.RequestedVLAN"),
    "IPProtocol": ({"+IPProtocol": '"IPv6"', **SAME_PROTOCOL}, "TARGET.IPProtocol is MY.IPProtocol"),
    "RequestBandwidth": ({"+RequestBandwidth": str(BANDWIDTH + 1)}, "TARGET.Bandwidth >= RequestBandwidth"),
    "NetworkAccounting": (
        {"+NetworkAccounting": "false", "requirements": "TARGET.NetworkAccounting =?= MY.NetworkAccounting"},
        "TARGET.NetworkAccounting is MY.NetworkAccounting",
    ),
}


@pytest.mark.parametrize("name", UNMET)
def test_a_job_that_asks_for_what_no_worker_has_stays_idle_and_the_analysis_says_why(lab: Lab, name: str) -> None:
    lines, condition = UNMET[name]
    jobs = submit.submit(lab, "alice", "true", lines)
    try:
        # The next job of the same user runs meanwhile, so a negotiation has passed this one by.
        after = submit.submit(lab, "alice", "true")
        submit.wait(lab, after)
        assert submit.attribute(lab, jobs, "JobStatus") == "1"
        analysis = lab.on("central", "condor_q", str(jobs.cluster), "-better-analyze", user="alice").stdout
        assert "No machines matched the job's constraints" in " ".join(analysis.split())
        steps = re.findall(r"^\[\d+\] +(\d+) +(.*?) *$", analysis, re.MULTILINE)
        assert [text for slots, text in steps if slots == "0"] == [condition]
    finally:
        lab.on("central", "condor_rm", str(jobs.cluster), user="alice")


def test_addresses_may_come_from_the_slots_ad(lab: Lab) -> None:
    static = (
        'AddressType = "static"\nLarkInnerAddressIPv4 = "10.64.200.7"\nLarkInnerAddressIPv6 = "2001:db8:64:200::7"\n'
        "STARTD_ATTRS = $(STARTD_ATTRS) LarkInnerAddressIPv4 LarkInnerAddressIPv6\n"
    )
    with (
        configured(lab, "worker1", static, "AddressType"),
        running(lab, [Wish("alice", worker="worker1"), Wish("alice", worker="worker2")]) as (job, other),
    ):
        assert (job.ipv4, job.ipv6) == ("10.64.200.7", "2001:db8:64:200::7")
        assert shown(lab, job)["address_type"] == "static"
        assert job.reach([("tcp", other.ipv4), ("udp", other.ipv6)]) == ["echo", "echo"]
        assert other.reach([("tcp", job.ipv4), ("udp", job.ipv6)]) == ["echo", "echo"]
        assert job.reach([("http", "192.0.2.1")])[0]
