"""Jobs on a Linux bridge and behind NAT: what they reach, what they cannot, and that nothing of them is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.namespaces import Host, Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_worker.errors import NetworkError
from lark_worker.rules.firewall import Counters, Firewall
from tests.worker.pool import Pool, Starter, a_pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
  hosts: [10.64.0.1]
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.9]}
  - connectivity: {inbound: requested, outbound: requested}
groups:
  cms: {dscp: 10}
  default: {dscp: 20}
"""
NAT = 'LarkNetworkType = "nat"\n'
BRIDGE = 'LarkNetworkType = "bridge"\n'
# The worker's own address on the bridge and on the external interface, two hosts there, and one beyond.
WORKER, LAN, WAN, EXCEPT = "10.0.0.1", "10.0.0.5", "192.0.2.5", "192.0.2.9"
# The first of these hosts in the network of bridge jobs, which need no router to it.
BESIDE, BESIDE_IPV6 = "10.64.0.250", "2001:db8:64::250"


class Site:
    """A worker with a Linux bridge ``br``, which is its external interface too, and hosts on it."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.bridge = net.bridge("l")
        for address in (f"{WORKER}/8", "192.0.2.1/24", "10.64.0.1/16", "2001:db8:64::1/48"):
            run(["ip", "address", "add", address, "dev", self.bridge, *(["nodad"] if ":" in address else [])])
        # The bridge jobs' router; a site's is elsewhere.
        Path("/proc/sys/net/ipv4/conf", self.bridge, "forwarding").write_text("1")
        # It sends a redirect at times, by its own rate: jobs would go around it in some runs and not in others.
        for place in ("all", self.bridge):
            Path("/proc/sys/net/ipv4/conf", place, "send_redirects").write_text("0")
        self.lan = self._host("lan", f"{LAN}/8", f"{BESIDE}/16", f"{BESIDE_IPV6}/48")
        self.wan = self._host("wan", f"{WAN}/24", f"{EXCEPT}/24")

    def _host(self, name: str, *addresses: str) -> Host:
        host = self.net.host(name, addresses=addresses)
        run(["ip", "link", "set", host.port, "master", self.bridge])
        return host


@contextmanager
def a_site(ovs: OpenVSwitch, net: Net, policy: str = POLICY, **extra: str) -> Iterator[tuple[Pool, Site]]:
    site = Site(net)
    settings = {
        "linux_bridge": site.bridge,
        "external_interface": site.bridge,
        "nat_networks": "10.255.64.0/24",
        "gateways": "10.64.0.1",
        "nameservers": "10.64.0.53",
        **extra,
    }
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, policy=policy, **settings) as pool:
        yield pool, site


def tables() -> list[tuple[str, str]]:
    listed = json.loads(run(["nft", "-j", "list", "tables"]).stdout)["nftables"]
    return [(entry["table"]["family"], entry["table"]["name"]) for entry in listed if "table" in entry]


def pings(pool: Pool, starter: Starter, address: str) -> bool:
    return pool.inside(starter, f"ping -n -q -c1 -W1 {address}")[0] == 0


def enforced(pool: Pool, starter: Starter, owner: str, number: int, more: str = "") -> str:
    said = pool.hook(starter, "start", owner, number, more)
    assert value(said, "LarkState") == "enforced", said
    return said


def counters(pool: Pool, said: str) -> Counters:
    assert pool.worker is not None
    (record,) = [each for each in pool.worker.records() if each.id == value(said, "LarkJobId")]
    return pool.worker.counters(record)


def within(pool: Pool, said: str, command: str) -> subprocess.CompletedProcess[str]:
    """As root in a job's namespace, which can set addresses and send what it likes."""
    namespace = f"{pool.prefix}-{value(said, 'LarkJobId')}"
    return subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", command], capture_output=True, text=True)


@pytest.mark.parametrize("kind", [NAT, BRIDGE])
def test_a_job_reaches_what_policy_allows_and_leaves_nothing(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with a_site(ovs, net) as (pool, site):
        alice, bob, mallory = (
            pool.starter(number, owner, kind) for number, owner in enumerate(("alice", "bob", "mallory"), 1)
        )
        said = enforced(pool, alice, "alice", 1)
        enforced(pool, bob, "bob", 2)
        enforced(pool, mallory, "mallory", 3)
        assert pings(pool, alice, LAN)
        assert pings(pool, bob, LAN)
        assert not pings(pool, mallory, LAN)
        assert pings(pool, alice, "127.0.0.1")
        if kind == NAT:
            assert pings(pool, alice, WAN)
            assert not pings(pool, bob, WAN)
            assert pings(pool, bob, EXCEPT)
        # Another user's address on the same worker, and one that only other jobs may have.
        other = value(pool.hook(bob, "start", "bob", 2), "LarkInnerAddressIPv4")
        assert not pings(pool, alice, other)
        assert not pings(pool, alice, BESIDE)
        assert counters(pool, said).out_dropped.packets >= 1
        for number, starter in enumerate((alice, bob, mallory), 1):
            pool.hook(starter, "exit", ("alice", "bob", "mallory")[number - 1], number)
        eventually(lambda: not pool.leftovers())
        eventually(lambda: not tables())
        eventually(lambda: not list(pool.client.jobs()))
        assert Path("/proc/sys/net/ipv4/conf", site.bridge, "forwarding").read_text().strip() == "1"


def test_jobs_of_one_user_reach_each_other_on_one_worker(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, _):
        first, second = pool.starter(1, "alice", NAT), pool.starter(2, "alice", NAT)
        third, fourth = pool.starter(3, "alice", BRIDGE), pool.starter(4, "alice", BRIDGE)
        enforced(pool, first, "alice", 1)
        behind = value(enforced(pool, second, "alice", 2), "LarkInnerAddressIPv4")
        enforced(pool, third, "alice", 3)
        bridged = enforced(pool, fourth, "alice", 4)
        assert pings(pool, first, behind)
        assert pings(pool, third, value(bridged, "LarkInnerAddressIPv4"))
        assert pings(pool, third, value(bridged, "LarkInnerAddressIPv6"))
        # From behind NAT to a job of the same user on the bridge: the slice's prefixes came with that job.
        eventually(lambda: pings(pool, first, value(bridged, "LarkInnerAddressIPv4")))
        assert (behind, pool.inside(first, "ip -4 -o address show dev eth0")[1].split()[3]) == (
            "10.255.64.3",
            "10.255.64.2/32",
        )


def test_what_leaves_by_nat_is_the_workers_and_carries_the_groups_mark(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, site):
        alice = pool.starter(1, "alice", NAT, group="cms")
        said = enforced(pool, alice, "alice", 1)
        finish = site.net.capture(site.lan, "icmp")
        assert pool.inside(alice, f"ping -n -q -c2 -W1 -Q 0xb8 {LAN}")[0] == 0
        seen = [line for line in finish() if "echo request" in line]
        assert seen
        assert all(f"{WORKER} > {LAN}" in line for line in seen), seen
        before = counters(pool, said)
        assert (before.out_local.packets, before.in_local.packets) == (2, 2)
        assert before.out_local.bytes == 2 * (84 + 14)
        assert (before.out_wan.packets, before.spoofed.packets) == (0, 0)
        assert pings(pool, alice, WAN)
        after = counters(pool, said)
        assert (after.out_wan.packets, after.in_wan.packets) == (1, 1)
        # Rules that change for other jobs leave what is counted alone.
        enforced(pool, pool.starter(2, "alice", NAT), "alice", 2)
        assert counters(pool, said) == after


def test_the_controller_hears_what_jobs_use_while_they_run_and_at_their_end(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net, counter_seconds="0.1") as (pool, _):
        for number, kind in enumerate((NAT, BRIDGE), 1):
            starter = pool.starter(number, "alice", kind)
            said = enforced(pool, starter, "alice", number)
            job = value(said, "LarkJobId")
            assert pings(pool, starter, LAN)
            eventually(lambda job=job: (pool.client.job(job)["usage"] or {}).get("packets_in", 0) >= 1)
            assert pings(pool, starter, LAN)
            pool.hook(starter, "exit", "alice", number)
            eventually(lambda job=job: pool.client.job(job)["state"] == "ended")
            used = pool.client.job(job)["usage"]
            assert used["packets_out"] >= 2
            assert used["bytes_out"] >= 2 * (84 + 14)
            assert (used["wan_packets_out"], used["policy_drops_out"]) == (0, 0)


def test_dscp_of_the_group_replaces_the_jobs_own(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, site):
        for number, kind in enumerate((NAT, BRIDGE), 1):
            starter = pool.starter(number, "alice", kind, group="cms")
            enforced(pool, starter, "alice", number)
            rules = f"add table inet t{number}; add chain inet t{number} in {{ type filter hook input priority 0; }};"
            rules += f"add rule inet t{number} in ip dscp 10 icmp type echo-request counter"
            site.net.exec(site.lan, ["nft", rules])
            assert pool.inside(starter, f"ping -n -q -c1 -W1 -Q 0xb8 {LAN}")[0] == 0
            assert "packets 1 " in site.net.exec(site.lan, ["nft", "list", "table", "inet", f"t{number}"]).stdout


@pytest.mark.parametrize("kind", [NAT, BRIDGE])
def test_one_way_by_connections(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with a_site(ovs, net) as (pool, _site):
        calls = pool.starter(1, "alice", kind)
        said = enforced(pool, calls, "alice", 1, "InboundConnectivity = false\n")
        assert pings(pool, calls, LAN)
        called = pool.starter(2, "alice", kind)
        target = enforced(pool, called, "alice", 2, "OutboundConnectivity = false\n")
        assert not pings(pool, called, LAN)
        address, own = value(target, "LarkInnerAddressIPv4"), value(said, "LarkInnerAddressIPv4")
        # A job that may be called answers; one that may not be called does not.
        eventually(lambda: pings(pool, calls, address))
        assert not pings(pool, called, own)
        open_job = pool.starter(3, "alice", kind)
        enforced(pool, open_job, "alice", 3)
        eventually(lambda: pings(pool, open_job, address))
        assert not pings(pool, open_job, own)
        assert counters(pool, target).out_dropped.packets >= 1
        # The policy opens both: what kept it shut is gone from the job's namespace as well.
        pool.client.put_policy(POLICY.replace("inbound: requested, outbound: requested", "inbound: allow"))
        eventually(lambda: pings(pool, called, own))


CONNECT = """
import socket
for number in range(300):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("", FIRST + number % PORTS))
        try:
            sender.sendto(b"x", ("ADDRESS", 9))
        except PermissionError:
            pass
"""


def flood(pool: Pool, said: str, first: int, ports: int = 300) -> None:
    """Send 300 packets, by turns from so many ports, each of which opens a connection."""
    program = CONNECT.replace("FIRST", str(first)).replace("ADDRESS", LAN).replace("PORTS", str(ports))
    done = within(pool, said, f"{sys.executable} -c '{program}'")
    assert done.returncode == 0, done.stderr


def test_one_nat_jobs_connections_leave_room_for_everybody_elses(
    ovs: OpenVSwitch, net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    with a_site(ovs, net, connections="50", counter_seconds="0.5") as (pool, _):
        flooder, other = pool.starter(1, "alice", NAT), pool.starter(2, "bob", NAT)
        said, others = enforced(pool, flooder, "alice", 1), enforced(pool, other, "bob", 2)
        before = tracked()
        flood(pool, said, 20000)
        assert counters(pool, said).out_limited.packets >= 200
        assert tracked() - before <= 80
        # A change of its rules forgets none of them.
        pool.client.put_policy(POLICY.replace("mallory", "malory"))
        eventually(lambda: {job["state"] for job in pool.client.jobs()} == {"enforced"}, 20)
        flood(pool, said, 21000)
        assert tracked() - before <= 80
        assert pings(pool, other, LAN)
        # Packets that nobody answers are one connection.
        flood(pool, others, 22000, ports=1)
        assert counters(pool, others).out_limited.packets == 0
        assert counters(pool, said).report()["policy_drops_out"] >= 400
        told = [record for record in caplog.records if record.getMessage() == "a job has too many connections"]
        assert 1 <= len(told) <= 4
        # The controller has it, too.
        eventually(
            lambda: any(each["action"] == "limit met" for each in pool.client.audit(value(said, "LarkJobId"))), 20
        )
        assert not any(each["action"] == "limit met" for each in pool.client.audit(value(others, "LarkJobId")))


def tracked() -> int:
    """The connections that the worker's kernel tracks."""
    return int(Path("/proc/sys/net/netfilter/nf_conntrack_count").read_text())


@pytest.mark.parametrize("kind", [NAT, BRIDGE])
def test_a_one_way_jobs_namespace_tracks_no_more_connections(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with a_site(ovs, net, connections="50") as (pool, _):
        calls = pool.starter(1, "alice", kind)
        said = enforced(pool, calls, "alice", 1, "InboundConnectivity = false\n")
        flood(pool, said, 20000)
        found = within(pool, said, "cat /proc/sys/net/netfilter/nf_conntrack_count")
        assert int(found.stdout) <= 60
        assert counters(pool, said).out_dropped.packets >= 200


def test_before_its_rules_come_nothing_passes_and_without_the_controller_rules_stay(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net, on_failure="start", timeout="1") as (pool, _):
        first, second = pool.starter(1, "alice", NAT), pool.starter(2, "alice", NAT)
        # On a slow machine the first answer may come later than the job starts.
        kept = pool.hook(first, "start", "alice", 1)
        eventually(lambda: pool.client.job(value(kept, "LarkJobId"))["state"] == "enforced", 20)
        eventually(lambda: pings(pool, first, LAN))
        pool.stop_controller()
        closed = pool.hook(second, "start", "alice", 2)
        assert value(closed, "LarkState") == "pending"
        assert pings(pool, first, LAN)
        assert not pings(pool, second, LAN)
        # The service starts again, and running jobs notice nothing.
        pool.stop_service()
        assert within(pool, kept, f"ping -n -q -c1 -W1 {LAN}").returncode == 0
        assert within(pool, closed, f"ping -n -q -c1 -W1 {LAN}").returncode != 0
        pool.start_service()
        assert pings(pool, first, LAN)
        assert not pings(pool, second, LAN)
        pool.start_controller()
        eventually(lambda: pings(pool, second, LAN), 20)
        eventually(lambda: {job["state"] for job in pool.client.jobs()} == {"enforced"}, 20)
        assert pings(pool, first, LAN)


def test_a_job_is_pending_while_its_worker_has_not_confirmed(
    ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise NetworkError("the kernel takes no rules")

    monkeypatch.setattr(Firewall, "apply", broken)
    with a_site(ovs, net) as (pool, _):
        starter = pool.starter(1, "alice", NAT)
        said = pool.hook(starter, "start", "alice", 1, wait=0.2)
        assert value(said, "LarkState") == "pending"
        assert value(said, "LarkReason") == "worker worker1: has not put the job's rules in place yet"
        assert not pings(pool, starter, LAN)


def test_a_policy_that_changes_reaches_running_jobs(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, _):
        starter = pool.starter(1, "alice", NAT)
        said = enforced(pool, starter, "alice", 1)
        assert pings(pool, starter, WAN)
        pool.client.put_policy(POLICY.replace("mallory", "alice"))
        eventually(lambda: not pings(pool, starter, LAN))
        pool.client.put_policy(POLICY.replace('"bob"', '"alice"'))
        eventually(lambda: pings(pool, starter, LAN))
        assert not pings(pool, starter, WAN)
        assert pool.client.job(value(said, "LarkJobId"))["state"] == "enforced"


def test_who_flushes_the_packet_filter_does_not_open_the_door(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, _):
        starter = pool.starter(1, "alice", NAT)
        said = enforced(pool, starter, "alice", 1)
        assert pings(pool, starter, LAN)
        before = counters(pool, said)
        run(["nft", "add table inet others; add counter inet others kept; flush ruleset"])
        run(["nft", "add table inet others"])
        eventually(lambda: len(tables()) == 2)
        eventually(lambda: pings(pool, starter, LAN))
        assert counters(pool, said).out_local.packets > before.out_local.packets
        pool.hook(starter, "exit", "alice", 1)
        # Tables of others are nobody's business.
        eventually(lambda: tables() == [("inet", "others")])
        run(["nft", "delete table inet others"])


def test_a_vlan_on_the_bridge(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, site):
        inside = pool.starter(1, "alice", f"{BRIDGE}LarkVLAN = 7\n")
        filtering = Path("/sys/class/net", site.bridge, "bridge/vlan_filtering")
        if run(["ip", "link", "set", site.bridge, "type", "bridge", "vlan_filtering", "1"], check=False).returncode:
            # A kernel without VLANs on bridges: the job is refused, and never put where it does not belong.
            said = pool.hook(inside, "start", "alice", 1)
            assert "does not filter VLANs" in value(said, "HookStatusMessage")
            return
        assert filtering.read_text().strip() == "1"
        run(["bridge", "vlan", "add", "dev", site.lan.port, "vid", "7", "pvid", "untagged"])
        run(["bridge", "vlan", "del", "dev", site.lan.port, "vid", "1"])
        outside = pool.starter(2, "alice", BRIDGE)
        enforced(pool, inside, "alice", 1)
        enforced(pool, outside, "alice", 2)
        site.net.exec(site.lan, ["ip", "address", "add", "10.64.0.1/16", "dev", "eth0"])
        assert pings(pool, inside, LAN)
        assert not pings(pool, outside, LAN)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (f"{NAT}LarkVLAN = 7\n", "VLAN 7"),
        (f'{NAT}LarkAddressType = "dhcp"\n', "AddressType dhcp"),
        (f'{BRIDGE}LarkBridgeInterface = "nowhere0"\n', "nowhere0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(ovs: OpenVSwitch, net: Net, machine: str, reason: str) -> None:
    with a_site(ovs, net) as (pool, _):
        said = pool.hook(pool.starter(1, "alice", machine), "start", "alice", 1)
        assert reason in value(said, "HookStatusMessage")
        eventually(lambda: not pool.leftovers())


def test_rules_that_somebody_deletes_while_nobody_knows_them_leave_jobs_closed(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, _):
        job = pool.starter(1, "alice", BRIDGE)
        enforced(pool, job, "alice", 1)
        pool.stop_service()
        pool.stop_controller()
        pool.start_service()
        assert pings(pool, job, LAN)
        run(["nft", "delete", "table", "bridge", pool.prefix])
        eventually(lambda: ("bridge", pool.prefix) in tables())
        assert not pings(pool, job, LAN)
        pool.start_controller()
        eventually(lambda: pings(pool, job, LAN), 20)


@pytest.mark.parametrize("kind", [NAT, BRIDGE])
def test_a_test_that_fails_leaves_nothing_to_the_next(
    ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = a_site(ovs, net)
    pool, _ = made.__enter__()
    stop = pool.stop_controller

    def fails() -> None:
        stop()
        raise AssertionError("it does not end in time")

    monkeypatch.setattr(pool, "stop_controller", fails)
    enforced(pool, pool.starter(1, "alice", kind), "alice", 1)
    # A service that is stopped leaves the rules of jobs that run.
    pool.stop_service()
    assert pool.prefix in {name for _, name in tables()}
    with pytest.raises(AssertionError, match="does not end"):
        made.__exit__(None, None, None)
    assert pool.prefix not in {name for _, name in tables()}
    assert pool.leftovers() == []


@pytest.mark.parametrize("machine", [NAT, BRIDGE])
def test_devices_of_others_that_the_packet_filter_would_close_are_named(
    ovs: OpenVSwitch, net: Net, machine: str
) -> None:
    with a_site(ovs, net) as (pool, _):
        other = f"{pool.prefix}lan"
        run(["ip", "link", "add", other, "type", "bridge"])
        said = pool.hook(pool.starter(1, "alice", machine), "start", "alice", 1)
        run(["ip", "link", "del", other])
        assert f"LARK_WORKER_PREFIX={pool.prefix}: {other}" in value(said, "HookStatusMessage")


def test_a_restart_sweeps_what_a_crash_left(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net) as (pool, _):
        stays, goes = pool.starter(1, "alice", NAT), pool.starter(2, "bob", BRIDGE)
        said = enforced(pool, stays, "alice", 1)
        enforced(pool, goes, "bob", 2)
        assert pings(pool, stays, LAN)
        counted = counters(pool, said)
        assert counted.out_local.packets == 1
        pool.stop_service()
        goes.kill()
        pool.start_service()
        mine = {value(said, "LarkExternalInterface"), f"{pool.prefix}-{value(said, 'LarkJobId')}"}
        assert set(pool.leftovers()) == mine
        eventually(lambda: [family for family, _ in tables()] == ["inet"])
        assert pings(pool, stays, LAN)
        # What was counted before the restart counts.
        assert counters(pool, said).out_local.packets == 2
        stays.kill()
        eventually(lambda: not pool.leftovers())
        eventually(lambda: not tables())


def test_nat66_where_the_worker_forwards(ovs: OpenVSwitch, net: Net) -> None:
    forwarding = Path("/proc/sys/net/ipv6/conf/all/forwarding")
    with a_site(ovs, net, nat_networks="10.255.64.0/24,fd00:255:64::/64") as (pool, site):
        said = pool.hook(pool.starter(1, "alice", NAT), "start", "alice", 1)
        assert "net.ipv6.conf.all.forwarding is 0" in value(said, "HookStatusMessage")
        forwarding.write_text("1")
        try:
            run(["ip", "address", "add", "2001:db8::1/64", "dev", site.bridge, "nodad"])
            site.net.exec(site.lan, ["ip", "address", "add", "2001:db8::5/64", "dev", "eth0", "nodad"])
            alice = pool.starter(2, "alice", NAT)
            enforced(pool, alice, "alice", 2)
            rules = "add table inet t; add chain inet t in { type filter hook input priority 0; };"
            rules += "add rule inet t in ip6 saddr 2001:db8::1 icmpv6 type echo-request counter"
            site.net.exec(site.lan, ["nft", rules])
            assert pings(pool, alice, "2001:db8::5")
            assert "packets 1 " in site.net.exec(site.lan, ["nft", "list", "table", "inet", "t"]).stdout
        finally:
            forwarding.write_text("0")
