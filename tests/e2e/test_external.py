"""External addresses on real switches: who reaches a job from outside, as whom it leaves, and for how long."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_controller.flows.cookies import Category
from tests.fixtures import frames
from tests.fixtures.service import CORE, WAN, WORKER1, WORKER2, Lark, Site, is_busy, wait
from tests.fixtures.wires import Wire, open_socket

pytestmark = pytest.mark.ovs

# linux/in.h; the socket module lacks them.
IP_MTU_DISCOVER, IP_RECVERR, IP_MTU, IP_PMTUDISC_DO = 10, 11, 14, 2
POOL = "198.51.100.64/30"
FIRST = "198.51.100.64"
OUTSIDE = WAN[0]
SECTION = f"""external:
  pools: {{public: [{POOL}]}}
  quarantine: 1
  rules:
    - {{when: 'Owner == "alice"', pool: public, open: [tcp, udp, icmp], per_user: 2}}
    - {{when: 'Owner == "bob"', pool: public, open: [any]}}
"""


def policy(site: Site, *rules: str, section: str = SECTION) -> str:
    return site.policy(*rules) + section


@pytest.fixture(scope="module")
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        made = Site(ovs, net, {"a": WORKER1, "b": WORKER1, "d": WORKER2})
        gateway = made["gw"]
        run(["ip", "-n", gateway.namespace, "route", "add", POOL, "dev", gateway.device, "src", OUTSIDE])
        yield made
        for bridge in made.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


@pytest.fixture
def directory() -> Iterator[Path]:
    with temporary_directory() as made:
        yield Path(made)


@pytest.fixture
def lark(site: Site, directory: Path) -> Iterator[Lark]:
    lark = Lark(directory, policy(site))
    lark.start()
    site.connect(lark)
    yield lark
    lark.end_all()
    lark.stop()


def ask(lark: Lark, job: dict[str, Any], *opened: str, status: int = 201, **more: Any) -> Any:
    answer = lark.request(
        "POST",
        "/v1/external-addresses?wait=5",
        json.dumps({"job": job["id"], "open": list(opened), **more}),
        "application/json",
    )
    assert answer.status == status, answer
    return answer.body


@contextmanager
def serving(site: Site, name: str, port: int, kind: int = socket.SOCK_STREAM) -> Iterator[list[str]]:
    """A server at a job's own address, which answers everybody; the callers' addresses."""
    server, callers = open_socket(site[name], socket.AF_INET, kind), list[str]()

    def answer() -> None:
        # Ends with the socket, or where nobody has called for long.
        with suppress(OSError):
            while True:
                if kind == socket.SOCK_STREAM:
                    called, peer = server.accept()
                    called.close()
                else:
                    _, peer = server.recvfrom(64)
                    server.sendto(b"hello", peer)
                callers.append(str(peer[0]))

    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((site[name].ipv4, port))
    server.settimeout(20.0)
    if kind == socket.SOCK_STREAM:
        server.listen()
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield callers
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


# How long an answer is waited for where others keep the machine busy, and else; the longer one is for calls that are to
# be answered alone.
BUSY, BRIEF = 3.0, 1.0


def calls(
    site: Site, source: str, address: str, port: int, kind: int = socket.SOCK_STREAM, seconds: float | None = None
) -> bool:
    """True if a host's packet, or connection, is answered from that very address."""
    if seconds is None:
        seconds = BUSY if is_busy() else BRIEF
    with open_socket(site[source], socket.AF_INET, kind) as client:
        client.settimeout(seconds)
        for _ in range(4):
            try:
                if kind == socket.SOCK_STREAM:
                    client.connect((address, port))
                    return bool(client.getpeername()[0] == address)
                client.sendto(b"hi", (address, port))
                return bool(client.recvfrom(64)[1] == (address, port))
            except (TimeoutError, OSError):
                if kind == socket.SOCK_STREAM:
                    return False
        return False


def reaches(
    site: Site, name: str, address: str, port: int, kind: int = socket.SOCK_STREAM, seconds: float | None = None
) -> bool:
    """True if the outside's call reaches the job's server, and the job sees the caller's own address."""
    site.settle()
    with serving(site, name, port, kind) as callers:
        reached = calls(site, "gw", address, port, kind, seconds)
        if reached:
            wait(lambda: callers)
        assert set(callers) <= {OUTSIDE}
        return reached


def shut(site: Site, name: str, address: str, port: int, kind: int = socket.SOCK_STREAM) -> bool:
    """True if the outside's call does not reach the job's server."""
    return not reaches(site, name, address, port, kind, BRIEF)


def sees(site: Site, name: str, port: int, source_port: int) -> str:
    """The address of which the outside sees a job's packet from a port."""
    with open_socket(site["gw"], socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((OUTSIDE, port))
        server.settimeout(2.0)
        with open_socket(site[name], socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.bind((site[name].ipv4, source_port))
            for _ in range(4):
                client.sendto(b"hi", (OUTSIDE, port))
                try:
                    return str(server.recvfrom(64)[1][0])
                except TimeoutError:
                    continue
    return ""


def test_what_is_open_passes_in_both_directions_and_nothing_else(site: Site, lark: Lark) -> None:
    job = site.run(lark, "a", "alice")
    given = ask(lark, job, "tcp/80", "udp/5000-5003")
    assert (given["address"], given["open"], given["pool"]) == (FIRST, ["tcp/80", "udp/5000-5003"], "public")
    assert lark.get(f"/v1/jobs/{job['id']}")["external_addresses"] == [FIRST]
    assert reaches(site, "a", FIRST, 80)
    assert reaches(site, "a", FIRST, 5000, socket.SOCK_DGRAM)
    assert reaches(site, "a", FIRST, 5003, socket.SOCK_DGRAM)
    for port, kind in ((81, socket.SOCK_STREAM), (5004, socket.SOCK_DGRAM), (80, socket.SOCK_DGRAM)):
        assert shut(site, "a", FIRST, port, kind)
    assert not site.net.ping(site["gw"], FIRST)
    # Only what an open port sends leaves with the external address: nothing else could be answered.
    assert sees(site, "a", 7001, 5001) == FIRST
    assert sees(site, "a", 7002, 6001) == site["a"].ipv4


def test_with_everything_open_ping_works_and_all_leaves_with_the_external_address(site: Site, lark: Lark) -> None:
    ask(lark, site.run(lark, "d", "bob"), "any")
    assert reaches(site, "d", FIRST, 81)
    assert site.net.ping(site["gw"], FIRST, tries=4)
    assert sees(site, "d", 7003, 6002) == FIRST
    assert site.net.ping(site["d"], OUTSIDE, tries=4)
    # Inside of the site a job has its own address.
    site.run(lark, "a", "alice")
    assert site.reached([("d", "a")]) == {("d", "a"): (True, True)}
    heard = site.net.capture(site["a"], "icmp")
    assert site.net.ping(site["d"], site["a"].ipv4, tries=4)
    assert FIRST not in "".join(heard())


def test_asking_twice_is_the_same_and_releasing_twice_is_released(site: Site, lark: Lark) -> None:
    job = site.run(lark, "a", "alice")
    given = ask(lark, job, "tcp/80")
    assert ask(lark, job, "tcp/80", status=200) == given
    assert ask(lark, job, status=200) == given
    assert "release that first" in ask(lark, job, "tcp/81", status=409)["detail"]
    assert reaches(site, "a", FIRST, 80)
    path = f"/v1/external-addresses/{given['id']}"
    over = lark.request("DELETE", path).body
    assert (over["why"], over["released"] is not None) == ("released", True)
    assert lark.request("DELETE", path).body == over
    assert lark.get(path) == over
    wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
    assert shut(site, "a", FIRST, 80)
    # It rests; the next one is another.
    assert ask(lark, job, "tcp/80")["address"] == "198.51.100.65"
    assert shut(site, "a", FIRST, 80)


def closed(site: Site) -> list[str]:
    """The flows of pools of which no job has an address."""
    return [flow for flow in site.flows(CORE, Category.EXTERNAL) if "cookie=0x1a4b0d0000000000" in flow]


def test_the_end_of_a_job_ends_it_and_the_address_rests_before_it_is_given_again(site: Site, lark: Lark) -> None:
    names = ["198.51.100.64", "198.51.100.65", "198.51.100.66", "198.51.100.67"]
    for name in names:
        job = site.run(lark, "a", "alice")
        assert ask(lark, job, "tcp/80")["address"] == name
        site.end(lark, "a", job)
        wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
    pool = lark.get("/v1/external-addresses")["pools"][0]
    assert (pool["total"], pool["used"]) == (4, 0)
    # The first one is the one that has rested longest.
    wait(lambda: lark.get("/v1/external-addresses")["pools"][0]["free"] == 4)
    assert ask(lark, site.run(lark, "b", "alice"), "tcp/80")["address"] == names[0]
    assert reaches(site, "b", names[0], 80)
    assert shut(site, "a", names[0], 80)


def test_its_time_is_over(site: Site, lark: Lark) -> None:
    job = site.run(lark, "a", "alice")
    given = ask(lark, job, "tcp/80", seconds=1)
    wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site), 30.0)
    wait(lambda: lark.get(f"/v1/external-addresses/{given['id']}")["why"] == "its time is over")
    assert lark.get(f"/v1/jobs/{job['id']}")["external_addresses"] == []
    assert shut(site, "a", FIRST, 80)


def test_a_restart_changes_nothing(site: Site, lark: Lark) -> None:
    job = site.run(lark, "a", "alice")
    given = ask(lark, job, "tcp/80")
    before = site.flows(CORE)
    lark.stop()
    assert site.flows(CORE) == before
    assert reaches(site, "a", FIRST, 80)
    lark.start()
    lark.wait_in_sync(*site.bridges)
    assert site.flows(CORE) == before
    assert ask(lark, job, "tcp/80", status=200) == given
    assert reaches(site, "a", FIRST, 80)
    lark.request("DELETE", f"/v1/external-addresses/{given['id']}")
    wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))


FAST = "198.51.100.128"
PLACES = f"""external:
  pools:
    slow: {{networks: [{POOL}], port: wan}}
    fast: {{networks: [{FAST}/30], port: wan-fast, switch: core1}}
  quarantine: 1
  rules:
    - {{pool: [slow, fast], open: [tcp]}}
"""


def test_an_address_is_of_the_gateway_by_which_its_job_leaves(site: Site, lark: Lark) -> None:
    for name in ("gw", "gwfast"):
        host = site[name]
        for pool in (POOL, f"{FAST}/30"):
            run(["ip", "-n", host.namespace, "route", "replace", pool, "dev", host.device, "src", OUTSIDE])
    steer = "wan: {when: 'Owner == \"alice\"', port: wan-fast}"
    lark.put_policy(policy(site, steer, section=PLACES))
    fast = ask(lark, site.run(lark, "a", "alice"), "tcp/80")
    slow = ask(lark, site.run(lark, "b", "bob"), "tcp/80")
    assert (fast["address"], fast["pool"], slow["address"], slow["pool"]) == (FAST, "fast", FIRST, "slow")
    site.settle()
    with serving(site, "a", 80), serving(site, "b", 80):
        assert calls(site, "gwfast", FAST, 80)
        assert calls(site, "gw", FIRST, 80)
        # An address is answered for at its own port alone.
        assert not calls(site, "gw", FAST, 80, seconds=BRIEF)
        assert not calls(site, "gwfast", FIRST, 80, seconds=BRIEF)
    # Whoever is moved to another gateway has no address there until it asks again.
    lark.put_policy(policy(site, steer.replace("alice", "bob"), section=PLACES))
    wait(lambda: lark.get("/v1/external-addresses")["addresses"] == [])
    assert "is not in pool slow" in lark.get(f"/v1/external-addresses/{fast['id']}")["why"]
    assert "is not in pool fast" in lark.get(f"/v1/external-addresses/{slow['id']}")["why"]
    only = PLACES.replace("[slow, fast]", "[fast]")
    lark.put_policy(policy(site, steer.replace("alice", "bob"), section=only))
    refused = ask(lark, {"id": fast["job"]}, "tcp/80", status=409)["detail"]
    assert "pools fast are elsewhere: the job's traffic is not steered" in refused


BEYOND = "203.0.113.9"


@pytest.mark.parametrize("among_jobs", [False, True])
def test_path_mtu_and_traceroute_work_through_the_translation(site: Site, lark: Lark, among_jobs: bool) -> None:
    # What one has learned of a destination is no help to the other.
    gateway, beyond = site["gw"], "203.0.113.10" if among_jobs else BEYOND
    way = ["ip", "-n", gateway.namespace, "route", "replace", POOL, "dev", gateway.device]
    if among_jobs:
        # The router's errors have its address among the jobs as their source.
        networks = f"  hosts: [{gateway.ipv4}]\n  jobs: [10.64.0.0/16"
        lark.put_policy(policy(site).replace("  jobs: [10.64.0.0/17", networks))
        run(way)
    ask(lark, site.run(lark, "a", "alice"), "udp/5000-5003")
    run(["ip", "netns", "exec", gateway.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
    run(["ip", "-n", gateway.namespace, "link", "add", "narrow", "mtu", "1280", "type", "veth", "peer", "name", "end"])
    try:
        for device in ("narrow", "end"):
            run(["ip", "-n", gateway.namespace, "link", "set", device, "up"])
        run(["ip", "-n", gateway.namespace, "route", "add", f"{beyond}/32", "dev", "narrow"])
        site.settle()
        with open_socket(site["a"], socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.bind((site["a"].ipv4, 5001))
            client.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            client.connect((beyond, 9))
            assert client.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1500

            def narrower() -> bool:
                # Once the message is there, what is sent is refused.
                with suppress(OSError):
                    client.send(bytes(1400))
                return client.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1280

            wait(narrower)
        with open_socket(site["a"], socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.bind((site["a"].ipv4, 5002))
            client.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
            client.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            client.connect((beyond, 33434))
            wait(lambda: told(client) == errno.EHOSTUNREACH)
    finally:
        run(["ip", "-n", gateway.namespace, "link", "del", "narrow"])
        run([*way, "src", OUTSIDE])


def test_the_outside_hears_that_nobody_listens_at_an_open_port(site: Site, lark: Lark) -> None:
    ask(lark, site.run(lark, "a", "alice"), "udp/5000-5003")
    site.settle()
    with open_socket(site["gw"], socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind((OUTSIDE, 0))
        client.connect((FIRST, 5003))
        wait(lambda: told(client) == errno.ECONNREFUSED)


def told(client: socket.socket) -> int:
    """The error that a socket has heard by ICMP after what it has sent; 0 for none."""
    with suppress(OSError):
        client.send(b"hi")
    time.sleep(0.05)
    return client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def test_who_gets_none_hears_why(site: Site, lark: Lark) -> None:
    alice, second, third = (site.run(lark, name, "alice") for name in ("a", "b", "d"))
    ask(lark, alice, "tcp/80")
    assert "the policy opens" in ask(lark, second, "any", status=409)["detail"]
    ask(lark, second)
    assert "at most 2" in ask(lark, third, status=409)["detail"]
    lark.end(third)
    carol = site.run(lark, "d", "carol")
    assert "no rule" in ask(lark, carol, status=409)["detail"]
    lark.end(carol)
    nat = lark.post(site.ads("d", "bob", machine='LarkNetworkType="nat"')).body
    assert "network type nat" in ask(lark, nat, status=409)["detail"]
    assert ask(lark, {"id": "0123456789abcdef"}, status=404)
    assert ask(lark, alice, "gopher/70", status=422)["errors"]


def test_policy_is_asked_before_and_behind_the_translation(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, "connectivity: {inbound: requested}"))
    mute = site.run(lark, "a", "alice", job="InboundConnectivity=false")
    assert "inbound connectivity is closed" in ask(lark, mute, status=409)["detail"]
    lark.end(mute)
    lark.put_policy(policy(site, f"wan: {{when: 'Owner == \"alice\"', action: drop, except: [{WAN[1]}]}}"))
    ask(lark, site.run(lark, "a", "alice"), "tcp/80")
    # The outside is no exception of the rule, which sees the job behind the address.
    assert shut(site, "a", FIRST, 80)
    lark.put_policy(policy(site, f"wan: {{when: 'Owner == \"alice\"', action: drop, except: [{WAN[0]}]}}"))
    assert reaches(site, "a", FIRST, 80)
    # A policy that gives it no more takes it back, and so does one that blocks the job.
    lark.put_policy(policy(site, "block: {when: 'Owner == \"alice\"'}"))
    assert lark.get("/v1/external-addresses")["addresses"] == []
    assert shut(site, "a", FIRST, 80)


def test_nobody_else_sends_with_an_external_address_or_answers_for_it(site: Site, lark: Lark) -> None:
    ask(lark, site.run(lark, "a", "alice"), "udp")
    site.run(lark, "b", "bob")
    outside = site.net.capture(site["gw"], f"--immediate-mode host {FIRST}")
    gateway = site["gw"]
    with Wire(site["b"]) as job, Wire(site["d"]) as host:
        # Another job's port, and that of no job at all.
        for wire in (job, host):
            wire.send(frames.udp(wire.host.mac, gateway.mac, FIRST, OUTSIDE, 5000, 7004))
            wire.send(frames.arp(wire.host.mac, wire.host.mac, FIRST, "00:00:00:00:00:00", gateway.ipv4))
    # A packet of the owner shows that what was sent before it would have come.
    assert sees(site, "a", 7005, 5000) == FIRST
    said = "".join(outside())
    assert ".7005" in said
    assert ".7004" not in said
    assert site["b"].mac not in said


def test_a_sliced_job_is_not_reached_around_the_slice_by_way_of_the_outside(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, "slice: {by: Owner}"))
    ask(lark, site.run(lark, "a", "alice"), "tcp/80")
    ask(lark, site.run(lark, "b", "bob"), "any")
    assert reaches(site, "a", FIRST, 80)
    run(["ip", "netns", "exec", site["gw"].namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1"])
    with serving(site, "a", 80):
        assert not calls(site, "b", FIRST, 80, seconds=BRIEF)


def test_the_ad_asks_for_it(site: Site, lark: Lark) -> None:
    wish = 'RequestExternalAddress=true\nExternalPorts="tcp/80, tcp/443"'
    job = site.run(lark, "a", "alice", job=wish)
    assert job["external_addresses"] == [FIRST]
    assert reaches(site, "a", FIRST, 443)
    refused = lark.post(site.ads("b", "carol", job=wish))
    assert (refused.status, refused.body["refused"]) == (409, "hold")
    assert "no rule" in refused.body["detail"]
    wrong = lark.post(site.ads("b", "alice", job='RequestExternalAddress=true\nExternalPorts="tcp/0"'))
    assert (wrong.status, wrong.body["attribute"]) == (422, "ExternalPorts")
    assert [each["owner"] for each in lark.live()] == ["alice"]
    for choice, status in (("idle", 409), ("run", 201)):
        lark.put_policy(policy(site, section=SECTION + f"  refused: {choice}\n"))
        answer = lark.post(site.ads("b", "carol", job=wish, number=9000 + status))
        assert answer.status == status
        assert answer.body.get("refused") == ("idle" if status == 409 else None)
    (without,) = [each for each in lark.live() if each["owner"] == "carol"]
    assert without["external_addresses"] == []
    trail = lark.get(f"/v1/audit?subject={without['id']}")["entries"]
    assert "no external address" in {each["action"] for each in trail}
