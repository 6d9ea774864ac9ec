"""Network types and address types beside the default ones, as real jobs see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest

from experiments.pool import FRAME, PAYLOAD
from lab import controller, jobs, submit
from lab.boot import Lab
from lab.inside.topology import BY_NAME, LEASES, NAT_NETWORKS, WAN_ADDRESSES
from lab.jobs import Running, Wish, running
from tests.lab import beside, stage
from tests.lab.remains import wait_until
from tests.lab.trials import configured

WORKER = "worker1"
ON_WORKER = {"requirements": f'Machine == "{WORKER}.lab.test"'}
CAPPED = "  - bandwidth: {mode: cap}\n"
RATE = 20.0
PORT = 5601


@pytest.fixture
def dhcp(lab: Lab) -> Iterator[Lab]:
    with configured(lab, WORKER, 'AddressType = "dhcp"\n', "AddressType"):
        yield lab


@pytest.fixture
def bridge(lab: Lab) -> Iterator[Lab]:
    with configured(lab, WORKER, 'NetworkType = "bridge"\n', "NetworkType"):
        yield lab


# The tests with it are the last ones here: a worker has one such file of configuration at a time.
@pytest.fixture(scope="module")
def nat(lab: Lab) -> Iterator[Lab]:
    with configured(lab, WORKER, 'NetworkType = "nat"\n', "NetworkType"):
        yield lab


def through(job: Running) -> list[tuple[str, str] | None]:
    """Of both WAN hosts, IPv4 and IPv6: which way they were asked and by whom, or None."""
    answers = job.reach([("http", address) for host in (1, 2) for address in WAN_ADDRESSES[host]], seconds=4)
    read = [json.loads(answer) if answer else None for answer in answers]
    return [(each["through"], each["client"]) if each else None for each in read]


def test_a_lease_is_taken_obeyed_and_taken_again(dhcp: Lab) -> None:
    wishes = [Wish("alice", worker=WORKER), Wish("alice", worker="worker2"), Wish("bob", worker="worker2")]
    with running(dhcp, wishes) as (job, friend, stranger):
        record = controller.api(dhcp, f"/v1/jobs/{job.id}")
        assert (record["address_type"], record["state"]) == ("dhcp", "enforced")
        first, last = map(ip_address, LEASES)
        assert int(first) <= int(ip_address(job.ipv4)) <= int(last)
        assert f"{job.ipv4} " in dhcp.on("dhcp", "cat", "/var/lib/misc/dnsmasq.leases").stdout
        assert job.run("ip -4 route show default").stdout.split()[:3] == ["default", "via", "10.64.0.1"]
        assert job.reach([("tcp", friend.ipv4), ("tcp", stranger.ipv4)]) == ["echo", ""]
        assert friend.reach([("udp", job.ipv4)]) == ["echo"]
        assert stranger.reach([("udp", job.ipv4)]) == [""]
        assert json.loads(job.reach([("http", "192.0.2.1")])[0])["client"] == job.ipv4
        address = job.ipv4
    with running(dhcp, [Wish("carol", worker=WORKER)]) as (later,):
        # The slot's next job has the cached lease, whosever it is.
        assert later.ipv4 == address


def test_jobs_on_a_linux_bridge_are_under_the_same_policy(bridge: Lab) -> None:
    cast = {
        "alice1": Wish("alice", worker=WORKER),
        "alice2": Wish("alice", worker="worker2"),
        "alice3": Wish("alice", worker=WORKER),
        "bob": Wish("bob", worker=WORKER),
        "mallory": Wish("mallory", worker=WORKER),
    }
    with running(bridge, list(cast.values())) as started:
        found = dict(zip(cast, started, strict=True))
        records = [controller.api(bridge, f"/v1/jobs/{job.id}") for job in started]
        types = ["bridge", "ovs_bridge", "bridge", "bridge", "bridge"]
        assert [record["network_type"] for record in records] == types
        assert {record["state"] for record in records} == {"enforced"}
        alices = ("alice1", "alice2", "alice3")
        assert stage.pairs(stage.matrix(found, found)) == {(one, two) for one in alices for two in alices if one != two}
        assert stage.wan_matrix(found, ("alice1", "bob", "mallory")) == {
            "alice1": ({"wan"}, {"wan"}),
            "bob": ({"wan"}, {"-"}),
            "mallory": ({"-"}, {"-"}),
        }
        assert stage.called_from(bridge, "wan2", found, found) == {"alice1", "alice2", "alice3"}
        assert stage.dscp_at_core(bridge, found["alice1"]) == {10}


BRIDGE_ADDRESSES = {
    "dhcp": ('AddressType = "dhcp"\n', LEASES),
    "static": (
        'AddressType = "static"\nLarkInnerAddressIPv4 = "10.64.200.7"\nSTARTD_ATTRS = $(STARTD_ATTRS)'
        " LarkInnerAddressIPv4\n",
        ("10.64.200.7", "10.64.200.7"),
    ),
}


@pytest.mark.parametrize("address_type", BRIDGE_ADDRESSES)
def test_on_a_linux_bridge_addresses_come_from_dhcp_or_the_slots_ad_too(lab: Lab, address_type: str) -> None:
    lines, (first, last) = BRIDGE_ADDRESSES[address_type]
    users = (Wish("alice", worker=WORKER), Wish("alice", worker="worker2"), Wish("bob", worker="worker2"))
    with (
        configured(lab, WORKER, f'NetworkType = "bridge"\n{lines}', "NetworkType"),
        running(lab, users) as (job, friend, stranger),
    ):
        record = controller.api(lab, f"/v1/jobs/{job.id}")
        assert [record[name] for name in ("network_type", "address_type", "state")] == [
            "bridge", address_type, "enforced",
        ]  # fmt: skip
        assert int(ip_address(first)) <= int(ip_address(job.ipv4)) <= int(ip_address(last))
        assert job.reach([("tcp", friend.ipv4), ("tcp", stranger.ipv4)]) == ["echo", ""]
        assert friend.reach([("udp", job.ipv4)]) == ["echo"]
        assert stranger.reach([("udp", job.ipv4)]) == [""]
        assert json.loads(job.reach([("http", "192.0.2.1")])[0])["client"] == job.ipv4


def test_jobs_behind_nat_leave_as_their_worker_and_are_called_by_nobody(nat: Lab) -> None:
    names = ("alice1", "alice2", "bob", "mallory")
    wishes = [Wish(name.rstrip("12"), worker=WORKER) for name in names]
    with running(nat, wishes) as started:
        cast = dict(zip(names, started, strict=True))
        for job in started:
            assert controller.api(nat, f"/v1/jobs/{job.id}")["network_type"] == "nat"
            addresses = [ip_address(entry["local"]) for entry in _addresses(job)]
            for network, address in zip(map(ip_network, NAT_NETWORKS), addresses, strict=True):
                assert address in network
        worker = BY_NAME[WORKER].bridge
        assert worker is not None
        ways = [("wan", address.split("/")[0]) for address in worker.addresses]
        assert through(cast["alice1"]) == [*ways, *ways]
        assert through(cast["bob"]) == [*ways, None, None]
        assert through(cast["mallory"]) == [None] * 4
        inside = {name: _addresses(job)[0]["local"] for name, job in cast.items()}
        assert cast["alice1"].reach([("tcp", inside["alice2"]), ("tcp", inside["bob"])]) == ["echo", ""]
        assert jobs.reach_from(nat, "wan1", [("tcp", inside["alice1"])], 1) == [""]
        assert jobs.reach_from(nat, "central", [("tcp", inside["alice1"])], 1) == [""]


@pytest.mark.usefixtures("policy_restored")
def test_a_job_behind_nat_has_the_rate_that_it_requests_both_ways_and_no_more(nat: Lab) -> None:
    """Here the kernel is the machine's own: User Mode Linux has no packet filter by which such jobs have queues."""
    before = nat.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    speed = "edge: {speed: 500Mbit}\n" if "\nedge:" not in before else ""
    controller.api(nat, "/v1/policy", "PUT", before.replace("policies:\n", f"{speed}policies:\n{CAPPED}", 1))
    controller.wait_in_sync(nat)
    nat.on("dhcp", "sh", "-c", f"ss -Hltn sport = :{PORT} | grep -q . || iperf3 --server --daemon --port {PORT}")
    with running(nat, [Wish("alice", {"+RequestBandwidth": f"{RATE:g}"}, WORKER)]) as (job,):
        wait_until(lambda: controller.api(nat, f"/v1/jobs/{job.id}")["state"] == "enforced", 30, "it has its queues")
        assert controller.api(nat, f"/v1/jobs/{job.id}")["network_type"] == "nat"
        for back in ("", " --reverse"):

            def measure(back: str = back) -> list[float]:
                client = f"iperf3 --client {BY_NAME['dhcp'].address} --port {PORT} --time 6 --omit 2 --json{back}"
                found = json.loads(job.run(client, 40).stdout)
                return [found["end"]["sum_received"]["bits_per_second"] / 1e6 * FRAME / PAYLOAD]

            got = beside.measured(nat, beside.site(), 6, measure, [RATE])
            assert got.have([RATE]), (back, got)
            assert got.found[0] <= beside.MOST * RATE, (back, got)
    # Nothing is left of it on the worker's way out.
    assert "htb" not in nat.on(WORKER, "tc", "qdisc", "show").stdout


def test_a_job_behind_nat_that_policy_steers_is_refused_with_the_reason(nat: Lab) -> None:
    sent = submit.submit(nat, "carol", "true", {**ON_WORKER, **stage.GROUP})
    try:
        held = f'until [ "$(condor_q {sent.cluster} -af JobStatus)" = 5 ]; do sleep 0.5; done'
        nat.on("central", "sh", "-c", held, user="carol", timeout=60)
        assert "wan" in submit.attribute(nat, sent, "HoldReason")
    finally:
        nat.on("central", "condor_rm", str(sent.cluster), user="carol")


def _addresses(job: Running) -> list[dict[str, str]]:
    shown = json.loads(job.run("ip -json address show eth0").stdout)
    return [entry for entry in shown[0]["addr_info"] if entry["scope"] == "global"]
