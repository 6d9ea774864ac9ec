"""VLANs on a worker's Linux bridge, on the wire to another worker, whose Open vSwitch has the same VLAN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import controller
from lab.boot import Lab
from lab.inside.topology import LINUX_BRIDGE
from lab.jobs import Wish, running
from lab.settings import SOURCE
from tests.lab.trials import configured

# A kernel without Open vSwitch may well have no VLANs on bridges either; that of User Mode Linux has them.
pytestmark = pytest.mark.kernel_datapath

WORKERS = ("worker1", "worker2")
VLAN = 42
BRIDGE = 'NetworkType = "bridge"\nVLAN = TARGET.RequestedVLAN\nSTARTD_ATTRS = $(STARTD_ATTRS) VLAN\n'
OPEN_VSWITCH = f"VLAN = {VLAN}\nSTARTD_ATTRS = $(STARTD_ATTRS) VLAN\n"


@pytest.fixture
def filtering(lab: Lab) -> Iterator[None]:
    """The bridge of worker1 keeps VLANs apart, and its cable carries one of them with its tag."""
    lab.on("worker1", "ip", "link", "set", LINUX_BRIDGE, "type", "bridge", "vlan_filtering", "1")
    lab.on("worker1", "bridge", "vlan", "add", "dev", "eth1", "vid", str(VLAN))
    yield
    lab.on("worker1", "bridge", "vlan", "del", "dev", "eth1", "vid", str(VLAN))
    lab.on("worker1", "ip", "link", "set", LINUX_BRIDGE, "type", "bridge", "vlan_filtering", "0")


SCRIPT = "/usr/local/libexec/lark/vlan-names"


@pytest.fixture
def named(lab: Lab) -> Iterator[None]:
    """Both workers have the script that ships as an example."""
    text = (SOURCE / "etc" / "vlan-names.sh").read_text()
    env = "/etc/lark/worker.env"
    again = f"unit stop lark-worker; {{}} {env}; unit start lark-worker; until lark-worker jobs; do sleep 0.2; done"
    for worker in WORKERS:
        lab.write(worker, SCRIPT, text, mode=0o755)
        lab.on(worker, "sh", "-c", again.format(f"echo LARK_WORKER_SCRIPT={SCRIPT} >>"))
    yield
    for worker in WORKERS:
        lab.on(worker, "sh", "-c", again.format("sed -i /LARK_WORKER_SCRIPT/d"))


def test_the_papers_example_names_a_vlan_in_the_ads_and_numbers_it_on_the_wire(lab: Lab, named: None) -> None:
    offers = 'VLAN = "{}"\nSTARTD_ATTRS = $(STARTD_ATTRS) VLAN\n' + (
        "START = $(START) && (TARGET.RequestedVLAN =?= undefined || TARGET.RequestedVLAN == MY.VLAN)\n"
    )
    asks = {"+RequestedVLAN": '"physics"', "requirements": "TARGET.VLAN == MY.RequestedVLAN"}
    with (
        configured(lab, "worker1", offers.format("chemistry"), "VLAN"),
        configured(lab, "worker2", offers.format("physics"), "VLAN"),
        running(lab, [Wish("alice", asks)]) as (job,),
    ):
        record = controller.api(lab, f"/v1/jobs/{job.id}")
        assert (job.worker, record["vlan"], record["state"]) == ("worker2", 41, "enforced")


def test_jobs_of_a_vlan_on_a_linux_bridge_reach_that_vlan_and_nothing_else(lab: Lab, filtering: None) -> None:
    asks = {"+RequestedVLAN": str(VLAN)}
    wishes = [Wish("alice", asks, "worker1"), Wish("alice", {}, "worker1"), Wish("alice", asks, "worker2")]
    with (
        configured(lab, "worker1", BRIDGE, "NetworkType"),
        configured(lab, "worker2", OPEN_VSWITCH, "VLAN"),
        running(lab, wishes) as (job, without, elsewhere),
    ):
        records = [controller.api(lab, f"/v1/jobs/{each.id}") for each in (job, without, elsewhere)]
        assert [(record["network_type"], record["vlan"], record["state"]) for record in records] == [
            ("bridge", VLAN, "enforced"), ("bridge", None, "enforced"), ("ovs_bridge", VLAN, "enforced"),
        ]  # fmt: skip
        ways = [("tcp", elsewhere.ipv4), ("udp", elsewhere.ipv6), ("tcp", without.ipv4), ("udp", without.ipv6)]
        assert job.reach(ways) == ["echo", "echo", "", ""]
        back = [("tcp", job.ipv4), ("udp", job.ipv6)]
        assert elsewhere.reach(back) == ["echo", "echo"]
        assert without.reach(back) == ["", ""]
        # What the job sends leaves its worker with the tag.
        capture = (
            f'tcpdump -p -nn -e -c 1 -Q out -i eth1 "ether src {job.record["mac"]}" 2>/tmp/dump & '
            "until grep -q listening /tmp/dump; do sleep 0.05; done; "
            f"nsenter --net=/run/netns/lark-{job.id} ping -c 3 -W 1 {elsewhere.ipv4} >/dev/null; wait $!"
        )
        said = lab.on("worker1", "timeout", "20", "sh", "-c", capture, check=False).stdout
        assert f"vlan {VLAN}" in said
