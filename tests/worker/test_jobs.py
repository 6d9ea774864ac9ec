"""A job's network on real parts: made, entered, confirmed, removed; crashes and restarts on both sides."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.errors import NetworkError
from lark_worker.network.commands import NETNS
from lark_worker.network.job_network import INNER, JobNetworks
from lark_worker.network.ovs_bridge import Bridge
from lark_worker.records.records import Record
from tests.fixtures.ovs import a_net
from tests.worker.pool import POLICY, Pool, Starter, a_pool, eventually

pytestmark = pytest.mark.ovs


def value(lines: str, name: str) -> str:
    found = re.search(rf'^{name} = "?([^"\n]*)"?$', lines, re.MULTILINE)
    assert found, lines
    return found.group(1)


def test_a_job_has_its_own_network_and_reaches_its_owners_jobs_alone(pool: Pool) -> None:
    alice, again, bob = pool.starter(1, "alice"), pool.starter(2, "alice"), pool.starter(3, "bob")
    said = [
        pool.hook(starter, "start", owner, number)
        for number, (starter, owner) in enumerate(((alice, "alice"), (again, "alice"), (bob, "bob")), 1)
    ]
    assert [value(lines, "LarkState") for lines in said] == ["enforced"] * 3
    ipv4 = [value(lines, "LarkInnerAddressIPv4") for lines in said]
    ipv6 = [value(lines, "LarkInnerAddressIPv6") for lines in said]
    for address in (ipv4[1], ipv6[1], "127.0.0.1", "::1"):
        assert pool.inside(alice, f"ping -c1 -W2 {address}")[0] == 0, address
    for address in (ipv4[2], ipv6[2]):
        assert pool.inside(alice, f"ping -c1 -W1 {address}")[0] != 0, address
    # It is its own user again, with its environment and the site's name servers, and sees nothing but its network.
    _, shown = pool.inside(
        alice, "id -u; id -G; echo $JOB; cat /etc/resolv.conf; ls /proc/sys/net/ipv4/conf; cd /; pwd"
    )
    words = shown.split()
    assert words[:5] == ["65534", "65534", "yes", "nameserver", "10.64.0.53"]
    assert set(words[5:-1]) == {"all", "default", "eth0", "lo"}
    # And its signals are as they were; those above the first 31 are the C library's own.
    ignored = int(pool.inside(alice, "grep SigIgn /proc/self/status")[1].split()[1], 16)
    assert ignored & 0x7FFFFFFF == 0
    assert pool.inside(alice, "ip link set eth0 down")[0] != 0
    assert pool.inside(alice, "ip address add 10.64.9.9/16 dev eth0")[0] != 0


SENDING = """
import socket, time
while True:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"?", ("ff02::2%eth0", 9))
    except OSError:
        pass
    time.sleep(0.002)
"""


@pytest.mark.parametrize("version", [4, 6])
def test_nothing_leaves_a_job_before_it_is_confirmed_and_its_first_packet_passes(
    pool: Pool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router solicitation, say, whose drop Open vSwitch would keep for the job's first packets."""
    enforced = pool.hook(pool.starter(9, "alice"), "start", "alice", 9)
    other, mac = value(enforced, f"LarkInnerAddressIPv{version}"), value(enforced, "LarkInnerMacAddress")
    left: list[tuple[str, int]] = []
    release = JobNetworks.release

    def noted(networks: JobNetworks, record: Record) -> None:
        counter = Path("/sys/class/net", record.port, "statistics/rx_packets")
        left.append((record.state, int(counter.read_text())))
        release(networks, record)

    monkeypatch.setattr(JobNetworks, "release", noted)
    for number in range(1, 4):
        starter, before = pool.starter(number, "alice"), set(NETNS.iterdir())
        ready, stop = threading.Event(), threading.Event()

        def send(known: set[Path] = before, ready: threading.Event = ready, stop: threading.Event = stop) -> None:
            while not (new := set(NETNS.iterdir()) - known) and not stop.wait(0.001):
                pass
            if new:
                command = ["ip", "netns", "exec", new.pop().name, "python3", "-c", SENDING]
                with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
                    ready.set()
                    stop.wait()
                    process.kill()

        thread = threading.Thread(target=send)
        thread.start()
        try:
            assert value(pool.hook(starter, "start", "alice", number), "LarkState") == "enforced"
            assert ready.wait(60)
            # One packet, which no neighbour's lookup comes before, and that nobody sends again.
            namespace = (set(NETNS.iterdir()) - before).pop().name
            subprocess.run(
                ["ip", "-n", namespace, "neighbour", "replace", other, "lladdr", mac, "dev", INNER], check=True
            )
            status, said = pool.inside(starter, f"ping -n -q -c 1 -W 5 {other}")
            assert status == 0, said
        finally:
            stop.set()
            thread.join()
    assert left == [("enforced", 0)] * 3


def test_a_job_that_ends_leaves_nothing_and_its_neighbour_notices_nothing(pool: Pool) -> None:
    first, second = pool.starter(1, "alice"), pool.starter(2, "bob")
    pool.hook(first, "start", "alice", 1)
    kept = pool.hook(second, "start", "bob", 2)
    before = pool.leftovers()
    index = pool.inside(second, "cat /proc/net/dev_snmp6/eth0")[1].split()[1]
    pool.hook(first, "exit", "alice", 1)
    neighbour = value(kept, "LarkJobId")
    eventually(
        lambda: all(value(kept, "LarkExternalInterface") == name or neighbour in name for name in pool.leftovers())
    )
    assert set(pool.leftovers()) < set(before)
    assert pool.inside(second, "cat /proc/net/dev_snmp6/eth0")[1].split()[1] == index
    assert pool.inside(second, "ping -c1 -W1 127.0.0.1")[0] == 0
    eventually(lambda: [job["owner"] for job in pool.client.jobs()] == ["bob"])
    assert endings(pool) == [("alice", "ended by its hook")]


def endings(pool: Pool) -> list[tuple[str, str]]:
    """The jobs that have ended, by owner, and why."""
    return [(job["owner"], job["reason"]) for job in pool.client.jobs(state="ended")]


def test_a_starter_that_is_killed_ends_its_job(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    assert pool.leftovers()
    starter.kill()
    eventually(lambda: not pool.leftovers())
    eventually(lambda: not list(pool.client.jobs()))
    assert endings(pool) == [("alice", "ended with its condor_starter")]


def test_no_connectivity_is_a_namespace_with_loopback_alone(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    said = pool.hook(starter, "start", "alice", 1, more="InboundConnectivity = false\nOutboundConnectivity = false\n")
    assert value(said, "LarkNetworkType") == "none"
    assert pool.ports() == []
    assert pool.inside(starter, "ls /proc/sys/net/ipv4/conf")[1].split() == ["all", "default", "lo"]
    assert pool.inside(starter, "ping -c1 -W1 127.0.0.1")[0] == 0


def test_the_machine_ads_expressions_see_the_job_ad(pool: Pool) -> None:
    machine = (
        'LarkNetworkType = ifThenElse(TARGET.OutboundConnectivity =?= false, "null", "ovs_bridge")\n'
        'LarkAddressType = "static"\nLarkInnerAddressIPv4 = strcat("10.64.7.", string(5 + 2))\n'
    )
    quiet, loud = pool.starter(1, "alice", machine), pool.starter(2, "alice", machine)
    assert value(pool.hook(quiet, "start", "alice", 1, "OutboundConnectivity = false\n"), "LarkNetworkType") == "none"
    said = pool.hook(loud, "start", "alice", 2)
    assert value(said, "LarkInnerAddressIPv4") == "10.64.7.7"
    assert value(said, "LarkState") == "enforced"


def test_posting_again_changes_nothing(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    first = pool.hook(starter, "start", "alice", 1)
    index = pool.inside(starter, "cat /proc/net/dev_snmp6/eth0")[1].split()[1]
    assert pool.hook(starter, "start", "alice", 1) == first
    pool.hook(starter, "update", "alice", 1)
    assert pool.inside(starter, "cat /proc/net/dev_snmp6/eth0")[1].split()[1] == index


def test_the_service_restarts_and_running_jobs_notice_nothing(pool: Pool) -> None:
    stays, goes = pool.starter(1, "alice"), pool.starter(2, "bob")
    first = pool.hook(stays, "start", "alice", 1)
    pool.hook(goes, "start", "bob", 2)
    index = pool.inside(stays, "cat /proc/net/dev_snmp6/eth0")[1].split()[1]
    pool.stop_service()
    goes.kill()
    # What a crash may leave: a namespace, a device and a port that belong to no job.
    stray = f"{pool.prefix}0123456789a"
    subprocess.run(["ip", "link", "add", stray, "type", "veth", "peer", "name", f"{pool.prefix}xpeer"], check=True)
    subprocess.run(["ip", "netns", "add", f"{pool.prefix}-0123456789abcdef"], check=True)
    pool.ovs.vsctl("add-port", pool.bridge, stray, "--", "set", "interface", stray, "external_ids:lark-job=0")
    pool.start_service()
    mine = {value(first, "LarkExternalInterface"), f"{pool.prefix}-{value(first, 'LarkJobId')}"}
    assert set(pool.leftovers()) == mine
    assert pool.inside(stays, "cat /proc/net/dev_snmp6/eth0")[1].split()[1] == index
    eventually(lambda: [job["owner"] for job in pool.client.jobs()] == ["alice"])
    pool.hook(stays, "exit", "alice", 1)
    eventually(lambda: not pool.leftovers())


def test_a_job_that_was_confirmed_and_not_let_send_sends_once_the_service_is_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = value(pool.hook(pool.starter(1, "alice"), "start", "alice", 1), "LarkInnerAddressIPv4")
    held = pool.starter(2, "alice")
    with monkeypatch.context() as ending:
        ending.setattr(JobNetworks, "release", lambda networks, record: None)
        assert value(pool.hook(held, "start", "alice", 2), "LarkState") == "enforced"
    assert pool.inside(held, f"ping -c1 -W1 {address}")[0] != 0
    pool.stop_service()
    pool.start_service()
    assert pool.inside(held, f"ping -c1 -W2 {address}")[0] == 0


def failing(times: int) -> Callable[[JobNetworks, Record], None]:
    """As JobNetworks.release, but for the first calls."""
    calls, release = itertools.count(1), JobNetworks.release

    def fails(networks: JobNetworks, record: Record) -> None:
        if next(calls) <= times:
            raise NetworkError("the kernel has no memory")
        release(networks, record)

    return fails


@pytest.mark.parametrize("times", [1, 2])
def test_a_job_that_starts_all_the_same_where_it_could_not_be_let_send_sends(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    address = value(pool.hook(pool.starter(1, "alice"), "start", "alice", 1), "LarkInnerAddressIPv4")
    held = pool.starter(2, "alice")
    monkeypatch.setattr(JobNetworks, "release", failing(times))
    assert value(pool.hook(held, "start", "alice", 2), "LarkState") == "unmanaged"
    if times == 2:
        assert pool.inside(held, f"ping -c1 -W1 {address}")[0] != 0
        # HTCondor's hook tries again.
        assert value(pool.hook(held, "start", "alice", 2), "LarkState") == "enforced"
    assert pool.inside(held, f"ping -c1 -W5 {address}")[0] == 0


def test_a_job_that_could_not_be_let_send_without_the_controller_sends_once_it_is_back(
    ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, on_failure="start", timeout="0.3") as pool:
        pool.stop_controller()
        held = pool.starter(1, "alice")
        monkeypatch.setattr(JobNetworks, "release", failing(2))
        assert value(pool.hook(held, "start", "alice", 1), "LarkState") == "unmanaged"
        pool.start_controller()
        other, shown = pool.starter(2, "alice"), "ip -4 address show dev eth0"
        pool.hook(other, "start", "alice", 2)
        for job in (held, other):
            eventually(lambda job=job: "10.64." in pool.inside(job, shown)[1])
        address = re.search(r"10\.64\.[0-9.]+", pool.inside(other, shown)[1])
        assert address is not None
        eventually(lambda: pool.inside(held, f"ping -c1 -W1 {address[0]}")[0] == 0)


def test_after_the_machine_has_started_again_no_job_of_before_is_left(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    pool.stop_service()
    for path in (pool.folder / "worker" / "jobs").iterdir():
        text = path.read_text()
        path.write_text(re.sub(r'"boot": "[^"]*"', '"boot": "another"', text))
    (pool.folder / "worker" / "jobs" / "torn.json").write_text('{"id": ')
    pool.start_service()
    assert pool.leftovers() == []
    eventually(lambda: not list(pool.client.jobs()))
    eventually(lambda: not list((pool.folder / "worker" / "jobs").iterdir()))
    assert endings(pool) == [("alice", "ended when its worker started again")]


@pytest.mark.parametrize(("choice", "code"), [("hold", 20), ("idle", 300)])
def test_without_the_controller_the_site_decides(ovs: OpenVSwitch, net: Net, choice: str, code: int) -> None:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, on_failure=choice, timeout="0.5") as pool:
        pool.stop_controller()
        starter = pool.starter(1, "alice")
        said = pool.hook(starter, "start", "alice", 1)
        assert value(said, "HookStatusCode") == str(code)
        assert "controller" in value(said, "HookStatusMessage")
        assert pool.leftovers() == []
        # A hook that asks again, since it had given up waiting, hears the same.
        assert pool.hook(starter, "start", "alice", 1) == said


def test_jobs_that_start_and_end_without_the_controller_are_told_of_in_order(ovs: OpenVSwitch, net: Net) -> None:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, on_failure="start", timeout="0.3") as pool:
        pool.stop_controller()
        ended, lives = pool.starter(1, "alice"), pool.starter(2, "bob")
        assert value(pool.hook(ended, "start", "alice", 1), "LarkState") == "pending"
        assert value(pool.hook(lives, "start", "bob", 2), "LarkState") == "pending"
        assert pool.inside(lives, "ping -c1 -W1 127.0.0.1")[0] == 0
        pool.hook(ended, "exit", "alice", 1)
        # What is to be told survives the service.
        pool.stop_service()
        pool.start_service()
        pool.start_controller()
        eventually(lambda: [job["owner"] for job in pool.client.jobs(state="ended")] == ["alice"], 20)
        eventually(lambda: [job["owner"] for job in pool.client.jobs()] == ["bob"], 20)
        # The job that has run all along has got its address meanwhile.
        eventually(lambda: "10.64." in pool.inside(lives, "ip -4 address show dev eth0")[1])


def test_a_job_that_the_policy_gives_no_address_is_held_with_the_reason(pool: Pool) -> None:
    machine = 'LarkAddressType = "static"\nLarkInnerAddressIPv4 = "192.0.2.7"\n'
    starter = pool.starter(1, "alice", machine)
    said = pool.hook(starter, "start", "alice", 1)
    assert value(said, "HookStatusCode") == "10"
    assert "outside the declared job networks" in said
    assert pool.leftovers() == []
    assert pool.hook(starter, "start", "alice", 1) == said


def test_a_site_script_has_the_last_word(ovs: OpenVSwitch, net: Net) -> None:
    with temporary_directory() as folder:
        script = Path(folder) / "policy"
        script.write_text(
            "#!/bin/sh\ncase $(cat) in\n"
            "*VLAN*chemistry*) echo 'LarkVLAN = 42' ;;\n*) echo no such VLAN >&2; exit 1 ;;\nesac\n"
        )
        script.chmod(0o755)
        with a_pool(Path(folder), ovs, net, script=str(script)) as pool:
            good = pool.starter(1, "alice", 'LarkVLAN = "chemistry"\n')
            job = pool.client.job(value(pool.hook(good, "start", "alice", 1), "LarkJobId"))
            assert job["vlan"] == 42
            bad = pool.starter(2, "alice", 'LarkVLAN = "physics"\n')
            assert "no such VLAN" in value(pool.hook(bad, "start", "alice", 2), "HookStatusMessage")


@pytest.mark.parametrize(("choice", "code"), [("hold", "10"), ("idle", "310")])
def test_a_job_without_room_does_not_start_and_its_user_reads_why(ovs: OpenVSwitch, choice: str, code: str) -> None:
    topology = f"topology: {{refused: {choice}, hosts: {{default: {{switch: s, capacity: 100}}}}}}\n"
    with temporary_directory() as folder, a_net(ovs) as net, a_pool(Path(folder), ovs, net, POLICY + topology) as pool:
        first, second = pool.starter(1, "alice"), pool.starter(2, "bob")
        assert value(pool.hook(first, "start", "alice", 1, "RequestBandwidth = 60\n"), "LarkState") == "enforced"
        for _ in range(2):
            said = pool.hook(second, "start", "bob", 2, "RequestBandwidth = 60\n")
            assert value(said, "HookStatusCode") == code
            assert "link access:worker1 (worker1 to s) has 40 of 100 Mb/s left, and 60 are asked" in said
        eventually(lambda: len(pool.ports()) == 1)
        pool.hook(first, "exit", "alice", 1)
        eventually(lambda: all(link["reserved"] == 0 for link in pool.client.links()))
        third = pool.starter(3, "bob")
        assert value(pool.hook(third, "start", "bob", 3, "RequestBandwidth = 60\n"), "LarkState") == "enforced"


def test_a_device_that_open_vswitch_cannot_use_is_told_and_the_datapath_id_comes_with_the_port(pool: Pool) -> None:
    bridge = Bridge(pool.bridge, f"unix:{pool.ovs.database_socket}")
    with pytest.raises(NetworkError, match="cannot use this device"):
        bridge.add_port("nosuchdevice", "0" * 16)
    bridge.del_ports(["nosuchdevice"])
    starter = pool.starter(1, "alice")
    port = value(pool.hook(starter, "start", "alice", 1), "LarkExternalInterface")
    assert bridge.add_port(port, "0" * 16) == bridge.datapath_id()


def test_a_job_starts_again_where_its_bridge_has_another_datapath_id_since(pool: Pool) -> None:
    first, second, third = (pool.starter(number, "alice") for number in (1, 2, 3))
    pool.hook(first, "start", "alice", 1)
    pool.ovs.vsctl("set", "bridge", pool.bridge, "other_config:datapath-id=00000000000000e9")
    assert "datapath id was 00000000000000e1 and is 00000000000000e9" in pool.hook(second, "start", "alice", 2)
    assert value(pool.hook(third, "start", "alice", 3), "LarkState") == "enforced"


def test_a_job_reserves_what_it_sends_itself_and_nothing_else(ovs: OpenVSwitch) -> None:
    topology = (
        "topology: {hosts: {files: {switch: s, capacity: 100, addresses: [10.0.0.5]}, "
        "default: {switch: s, capacity: 100}}}\n"
    )
    with temporary_directory() as folder, a_net(ovs) as net, a_pool(Path(folder), ovs, net, POLICY + topology) as pool:
        alice, bob = pool.starter(1, "alice"), pool.starter(2, "bob")
        mine = value(pool.hook(alice, "start", "alice", 1), "LarkJobId")
        other = value(pool.hook(bob, "start", "bob", 2), "LarkJobId")

        def ask(starter: Starter, method: str, path: str, body: object = None) -> tuple[int, Any]:
            data = "" if body is None else f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
            command = f"curl -s -w '|%{{http_code}}' --unix-socket {pool.socket} -X {method}{data} http://lark{path}"
            said, _, status = starter.as_user(command)[1].strip().rpartition("|")
            return int(status), json.loads(said)

        shown = {"id": mine, "host": "worker1", "network_type": "ovs_bridge"}
        status, own = ask(alice, "GET", "/v1/job")
        assert (status, own | shown) == (200, own)
        assert own["addresses"] == [each["address"] for each in pool.client.job(mine)["addresses"]]
        wish = {"destination": "files", "rate": 60}
        status, made = ask(alice, "POST", "/v1/reservations", {**wish, "source": "self"})
        assert (status, made["job"], made["rate"]) == (201, mine, 60.0)
        assert ask(alice, "POST", "/v1/reservations", {**wish, "source": other})[0] == 404
        status, refused = ask(bob, "POST", "/v1/reservations", wish)
        assert (status, refused["type"]) == (409, "urn:lark:problem:capacity")
        assert refused["links"][0]["available"] == 40.0
        path = f"/v1/reservations/{made['id']}"
        for method, body in (("GET", None), ("PATCH", {"rate": 1}), ("DELETE", None)):
            assert ask(bob, method, path, body)[0] == 404
        assert ask(alice, "PATCH", path, {"rate": 40})[1]["rate"] == 40.0
        assert ask(bob, "POST", "/v1/reservations", wish)[0] == 201
        assert ask(alice, "PATCH", path, {"rate": 41})[0] == 409
        assert ask(alice, "PATCH", path, [])[0] == 422
        assert {
            each["best_effort"] for each in ask(bob, "GET", "/v1/links")[1]["links"] if each["target"] == "files"
        } == {0}
        assert ask(alice, "DELETE", path)[0] == 200
        assert ask(alice, "GET", path)[0] == 404
        pool.hook(bob, "exit", "bob", 2)
        eventually(lambda: all(link["reserved"] == 0 for link in pool.client.links()))
