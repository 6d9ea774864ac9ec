"""External addresses under attack and through kills, with everything real: switches, PostgreSQL, the controller's own
process."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_controller.flows.cookies import Category
from tests.cluster.test_processes import Instance
from tests.e2e.test_external import FIRST, OUTSIDE, POOL, SECTION, ask, closed, directory, lark, policy, sees
from tests.e2e.test_external_ipv6 import OPENS, reaches6
from tests.fixtures import frames
from tests.fixtures.service import CORE, WAN, WORKER1, WORKER2, Answer, Lark, Site, wait
from tests.fixtures.wires import Wire

__all__ = ["directory", "lark"]

pytestmark = pytest.mark.ovs


@pytest.fixture(scope="module")
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        made = Site(ovs, net, {"a": WORKER1, "b": WORKER1, "d": WORKER2, "e": WORKER2})
        gateway = made["gw"]
        run(["ip", "-n", gateway.namespace, "route", "add", POOL, "dev", gateway.device, "src", OUTSIDE])
        yield made
        for bridge in made.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


def test_no_port_or_protocol_is_open_that_was_not_asked_for(site: Site, lark: Lark) -> None:
    ask(lark, site.run(lark, "a", "alice"), "tcp/80", "udp/5000-5003")
    job, gateway = site["a"], site["gw"]
    way = gateway.mac, job.mac
    with Wire(gateway) as outside, Wire(job) as inside:
        for port in (1, 79, 81, 443, 4999, 5000, 5003, 65535):
            outside.send(frames.tcp(*way, OUTSIDE, FIRST, 40000, port))
        for port in (0, 53, 80, 4999, 5004, 65535):
            outside.send(frames.udp(*way, OUTSIDE, FIRST, 40000, port))
        outside.send(frames.icmp(*way, OUTSIDE, FIRST, 8))
        outside.send(frames.icmp(*way, OUTSIDE, FIRST, 5))
        for protocol in (2, 4, 41, 47, 50, 51, 89, 132, 136):
            kind, packet = frames.ip(OUTSIDE, FIRST, protocol, bytes(40))
            outside.send(frames.ethernet(*way, kind, packet))
        # Later fragments, which have no ports, and first ones of what is closed.
        for fragment in (1, 0x2000 | 2, 0x2000):
            kind, packet = frames.ip(
                OUTSIDE, FIRST, 17, frames.udp_payload(OUTSIDE, FIRST, 40000, 6000), fragment=fragment
            )
            outside.send(frames.ethernet(*way, kind, packet))
        # The job's own address, past the translation, is as open as connectivity has it, and no source from inside is.
        outside.send(frames.udp(*way, site["b"].ipv4, FIRST, 40000, 5000))
        outside.send(frames.udp(*way, FIRST, FIRST, 40000, 5000))
        # The last one is let in, and shows that the others would have come.
        outside.send(frames.udp(*way, OUTSIDE, FIRST, 40000, 5001))
        found = heard(inside, 5001)
    assert found == [(17, 40000, 5001)]


def associate(lark: Lark, wish: str) -> Answer:
    return lark.request("POST", "/v1/external-addresses", wish, "application/json")


def heard(wire: Wire, last: int) -> list[tuple[int, int, int]]:
    """Protocol and ports of the IPv4 packets that come, up to the one to a port."""
    found: list[tuple[int, int, int]] = []
    end = time.monotonic() + 20
    while not found or found[-1][2] != last:
        assert time.monotonic() < end, found
        for frame in wire.heard():
            if frame[12:14] == b"\x08\x00":
                head = 14 + (frame[14] & 15) * 4
                found.append(
                    (frame[23], int.from_bytes(frame[head : head + 2]), int.from_bytes(frame[head + 2 : head + 4]))
                )
    return found


def test_nobody_sends_as_the_job_by_its_own_address_or_its_external_one(site: Site, lark: Lark) -> None:
    ask(lark, site.run(lark, "a", "alice"), "udp")
    site.run(lark, "b", "bob")
    site.run(lark, "d", "bob")
    outside = site.net.capture(site["gw"], "--immediate-mode -Q in udp and dst portrange 7100-7199")
    beside = site.net.capture(site["d"], "--immediate-mode -Q in udp and dst portrange 7100-7199")
    gateway, own = site["gw"], site["a"].ipv4
    # Another job on the same switch, one on another, and a port of no job; from open ports, to outside and inside.
    for number, name in enumerate("bde"):
        with Wire(site[name]) as wire:
            for source in (own, FIRST):
                for mac in (wire.host.mac, site["a"].mac):
                    wire.send(frames.udp(mac, gateway.mac, source, OUTSIDE, 5000, 7100 + number))
                    wire.send(frames.udp(mac, site["d"].mac, source, site["d"].ipv4, 5000, 7110 + number))
    # And the outside as a job of here.
    with Wire(gateway) as wire:
        for source in (own, FIRST, "198.51.100.66"):
            wire.send(frames.udp(gateway.mac, site["d"].mac, source, site["d"].ipv4, 5000, 7120))
    assert sees(site, "a", 7130, 5000) == FIRST
    came = outside()
    assert ".7130" in "".join(came)
    assert site.net.ping(site["d"], OUTSIDE, tries=4)
    said = "\n".join([*came, *beside()])
    assert re.findall(r"[^\n]*\.71[012]\d[^\n]*", said) == []


def test_quarantine_closes_an_own_ipv6_address_and_a_policy_takes_it(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, "connectivity: {inbound: deny}", section=OPENS))
    job = site.run(lark, "a", "alice")
    given = ask(lark, job, "tcp/80", family="ipv6")
    assert reaches6(site, "a", WAN[2], 80)
    registration = lark.service.controller._registration
    registration.quarantine(job["id"], "the pool contradicts it", "pool")
    wait(lambda: lark.get(f"/v1/external-addresses/{given['id']}")["state"] == "closed")
    assert not reaches6(site, "a", WAN[2], 80)
    lark.request("DELETE", f"/v1/jobs/{job['id']}/quarantine")
    wait(lambda: lark.get(f"/v1/external-addresses/{given['id']}")["state"] == "open")
    assert reaches6(site, "a", WAN[2], 80)
    lark.put_policy(policy(site, "connectivity: {inbound: deny}", section=OPENS.replace("[tcp, udp]", "[udp]")))
    assert "tcp/80 no more" in lark.get(f"/v1/external-addresses/{given['id']}")["why"]
    wait(lambda: not reaches6(site, "a", WAN[2], 80))


def test_jobs_that_end_while_they_ask_leave_nothing(site: Site, lark: Lark) -> None:
    lark.put_policy(policy(site, section=SECTION.replace("per_user: 2", "per_user: 9")))
    statuses = set()
    for turn in range(6):
        jobs = [
            lark.post(site.ads(name, "alice", number=7000 + turn * 10 + n), 0).body for n, name in enumerate("abde")
        ]
        with ThreadPoolExecutor(16) as threads:
            wishes = [json.dumps({"job": job["id"]}) for job in jobs for _ in range(3)]
            asks = [threads.submit(associate, lark, wish) for wish in wishes]
            ends = [threads.submit(lark.end, job) for job in jobs]
            statuses |= {each.result().status for each in asks}
            assert all(each.result() for each in ends)
        shown = lark.get("/v1/external-addresses")
        assert (shown["addresses"], shown["pools"][0]["used"]) == ([], 0)
    assert statuses <= {200, 201, 404, 409}
    wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
    wait(lambda: lark.get("/v1/external-pools")["pools"][0]["free"] == 4)


@pytest.mark.postgres
def test_a_controller_killed_between_giving_and_confirming_gives_nothing_twice(site: Site, postgres_url: str) -> None:
    chance = random.Random(16)
    with temporary_directory() as name:
        one = Instance("killed", Path(name), postgres_url)
        (Path(name) / "killed.yaml").write_text(policy(site, section=SECTION.replace("per_user: 2", "per_user: 9")))
        one.start()
        try:
            wait(one.is_active)
            for bridge in site.bridges.values():
                site.ovs.set_controller(bridge, f"tcp:127.0.0.1:{one.openflow}")
            jobs = {host: one.ask("/v1/jobs", "POST", site.ads(host, "alice"))[1]["id"] for host in "abde"}
            for _ in range(4):
                stands = churn(one, list(jobs.values()), chance)
                one.start()
                wait(one.is_active)
                wait(lambda: all(switch["in_sync"] for switch in one.ask("/v1/switches")[1]["switches"]))
                listed = one.ask("/v1/external-addresses")[1]["addresses"]
                has = {each["address"]: each["job"] for each in listed}
                assert len(has) == len(listed) == len(set(has.values()))
                # The answer to a request stands, but for jobs of which one was under way when it was killed.
                assert {(job, address) for job, address in stands.items() if address} <= {
                    (job, address) for address, job in has.items()
                }
                assert not {job for job, address in stands.items() if not address} & set(has.values())
                wait(partial(translates, site, set(has)))
            for job_id in jobs.values():
                one.ask(f"/v1/jobs/{job_id}", "DELETE")
            wait(lambda: site.flows(CORE, Category.EXTERNAL) == closed(site))
            wait(lambda: one.ask("/v1/external-pools")[1]["pools"][0]["free"] == 4)
        finally:
            if one.process is not None and one.process.poll() is None:
                one.stop()


def churn(one: Instance, jobs: list[str], chance: random.Random) -> dict[str, str]:
    """Let jobs ask and release until the controller is killed under them; returns the last answer that each has had,
    an address or ``""``, of those that wait for none."""
    stands: dict[str, str] = {}

    def go_on(job_id: str, turns: int) -> None:
        for _ in range(turns):
            stands.pop(job_id, None)
            body = json.dumps({"job": job_id, "open": ["tcp/80"]})
            status, given = one.ask("/v1/external-addresses", "POST", body, "application/json")
            if status not in (200, 201):
                return
            stands[job_id] = given["address"]
            if chance.random() < 0.5:
                del stands[job_id]
                if one.ask(f"/v1/external-addresses/{given['id']}", "DELETE")[0] != 200:
                    return
                stands[job_id] = ""

    threads = [threading.Thread(target=go_on, args=(job_id, 1_000)) for job_id in jobs]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0.3, 1.5))
    one.stop()
    for thread in threads:
        thread.join()
    return stands


def translates(site: Site, addresses: set[str]) -> bool:
    """True where the core translates these external addresses and no others."""
    flows = [flow for flow in site.flows(CORE, Category.EXTERNAL) if "->ip_dst" in flow or "mod_nw_dst" in flow]
    return {found[1] for flow in flows if (found := re.search(r"nw_dst=([\d.]+)[, ]", flow))} == addresses
