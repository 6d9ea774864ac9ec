"""RequestBandwidth of bridge and nat jobs: the worker's own queues, on a real kernel, in both directions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_worker.network import commands
from lark_worker.queues import shaping, tc
from lark_worker.queues.uplinks import index
from tests.worker.pool import Pool, Starter, eventually
from tests.worker.test_bridge_nat import BESIDE, BESIDE_IPV6, BRIDGE, LAN, NAT, Site, a_site, enforced
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

KINDS = pytest.mark.parametrize("kind", [NAT, BRIDGE], ids=["nat", "bridge"])
# Mb/s of the link and of one job.
LINK, RATE = 100, 20
FIRST_PORT = 5201
SERVER = """
import socket, sys, threading
def serve(c, sends):
    try:
        while True:
            if sends: c.sendall(bytes(65536))
            elif not c.recv(65536): return
    except OSError: pass
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c, sys.argv[3] == "down"), daemon=True).start()
"""
CLIENT = """
import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
end = time.monotonic() + float(sys.argv[4])
while time.monotonic() < end:
    if sys.argv[3] == "up": c.sendall(bytes(65536))
    elif not c.recv(65536): break
"""


def policy(mode: str = "cap", more: str = "", inbound: str = "open") -> str:
    return f"""
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
  hosts: [10.64.0.1]
edge: {{speed: {LINK}Mbit, inbound: {inbound}}}
policies:
  - bandwidth: {{mode: {mode}{more}}}
topology:
  links: {{internet: {{between: [core1, wan], capacity: {LINK}}}}}
  hosts:
    lan: {{switch: core1, capacity: 1000, addresses: [{LAN}]}}
    default: {{switch: core1, capacity: {LINK}}}
"""


@contextmanager
def shaped(ovs: OpenVSwitch, net: Net, text: str = "", **changes: str) -> Iterator[tuple[Pool, Site]]:
    with a_site(ovs, net, text or policy(), **{"counter_seconds": "0.2", **changes}) as (pool, site):
        yield pool, site


def asks(rate: int = RATE) -> str:
    return f"RequestBandwidth = {rate}\n"


def device(pool: Pool, said: str) -> str:
    assert pool.worker is not None
    return next(each.port for each in pool.worker.records() if each.id == value(said, "LarkJobId"))


def classes(name: str) -> dict[str, tuple[float, float]]:
    """Rate and ceiling in Mb/s of each class of Lark's at a device, but for the one that holds the others."""
    found = tc.classes(index(name) or 0)
    return {
        f"{one.id & 0xFFFF:x}": (round(one.rate * 8 / 1e6, 2), round(one.ceiling * 8 / 1e6, 2))
        for one in found
        if one.id >> 16 == shaping.HANDLE and one.parent != tc.TC_H_ROOT
    }


def shares(name: str) -> list[tuple[float, float]]:
    """The shares of jobs at a device, without that of everybody else."""
    return sorted(each for minor, each in classes(name).items() if minor != f"{shaping.DEFAULT:x}")


def rates(
    pool: Pool,
    site: Site,
    jobs: list[tuple[Starter, str]],
    *,
    down: bool,
    seconds: float = 1.5,
    address: str = LAN,
) -> list[float]:
    """Mb/s of L2 frames of one TCP stream for each job, all at the same time, by the counters of the job's device."""
    way, statistic = ("down", "tx_bytes") if down else ("up", "rx_bytes")
    shown = f"[{address}]" if ":" in address else address
    with ExitStack() as stack:
        for place in range(len(jobs)):
            command = ["python3", "-c", SERVER, address, str(FIRST_PORT + place), way]
            process = site.net.start(site.lan, command)
            stack.callback(process.wait)
            stack.callback(process.kill)
        eventually(lambda: all(f"{shown}:{FIRST_PORT + n}" in _listening(site) for n in range(len(jobs))))
        threads = []
        for place, (starter, _) in enumerate(jobs):
            script = starter.scratch / "client.py"
            script.write_text(CLIENT)
            script.chmod(0o644)
            line = f"python3 {script} {address} {FIRST_PORT + place} {way} {seconds + 1}"
            threads.append(threading.Thread(target=pool.inside, args=(starter, line)))
            threads[-1].start()
        counters = [Path("/sys/class/net", name, "statistics", statistic) for _, name in jobs]
        # A class's burst and the beginning of TCP are no rate.
        time.sleep(0.7)
        began, first = time.monotonic(), [int(counter.read_text()) for counter in counters]
        time.sleep(seconds)
        past, last = time.monotonic() - began, [int(counter.read_text()) for counter in counters]
        for thread in threads:
            thread.join(20)
    return [(after - before) * 8 / 1e6 / past for before, after in zip(first, last, strict=True)]


def rates_once_in_time(
    pool: Pool, site: Site, jobs: list[tuple[Starter, str]], least: float, *, down: bool, address: str = LAN
) -> list[float]:
    """The same, again where the first job has less than ``least``, a few times: a machine that is late gives less, and
    never more. Less that is promised is less each time."""
    got: list[float] = []
    for _ in range(6):
        got = rates(pool, site, jobs, down=down, address=address)
        if got[0] >= least:
            break
    return got


def told(site: Site, *found: object) -> str:
    """The shares that were found, and the kernel's queues and rules behind them."""
    queues = run(["tc", "-s", "class", "show", "dev", site.lan.port]).stdout
    return f"{found}\n{queues}\n{run(['nft', 'list', 'ruleset']).stdout}"


def _listening(site: Site) -> str:
    return site.net.exec(site.lan, ["ss", "-Hltn"]).stdout


@KINDS
def test_a_capped_job_gets_what_it_requests_and_no_more_either_way(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net) as (pool, site):
        starter = pool.starter(1, "alice", kind)
        said = enforced(pool, starter, "alice", 1, asks())
        own = device(pool, said)
        assert shares(site.lan.port) == [(RATE, RATE)]
        assert classes(own) == {f"{shaping.DEFAULT:x}": (RATE, RATE)}
        other = pool.starter(2, "bob", kind)
        free = device(pool, enforced(pool, other, "bob", 2))
        for down in (False, True):
            got, most = rates_once_in_time(pool, site, [(starter, own), (other, free)], 0.8 * RATE, down=down)
            assert 0.8 * RATE <= got <= 1.1 * RATE, (down, got)
            assert most > 1.5 * RATE, (down, most)
        used = pool.client.job(value(said, "LarkJobId"))
        assert used["state"] == "enforced"
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["usage"]["throttled_seconds"] > 0.5)
        pool.hook(starter, "exit", "alice", 1)
        # With the last job that is limited the queues go, and the link is as it was.
        eventually(lambda: not classes(site.lan.port))
        assert "htb" not in run(["tc", "qdisc", "show", "dev", site.lan.port]).stdout


@pytest.mark.parametrize(
    "address", [LAN, BESIDE, BESIDE_IPV6], ids=["routed by the worker", "past it", "past it, IPv6"]
)
def test_a_bridge_job_has_its_share_whether_this_worker_is_its_router_or_not(
    ovs: OpenVSwitch, net: Net, address: str
) -> None:
    with shaped(ovs, net) as (pool, site):
        starter = pool.starter(1, "alice", BRIDGE)
        own = device(pool, enforced(pool, starter, "alice", 1, asks()))
        (got,) = rates_once_in_time(pool, site, [(starter, own)], 0.8 * RATE, down=False, address=address)
        assert 0.8 * RATE <= got <= 1.1 * RATE, told(site, got)


@KINDS
def test_a_guarantee_holds_beside_others_and_changes_while_the_job_runs(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net, policy("guarantee")) as (pool, site):
        first, second = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said = enforced(pool, first, "alice", 1, asks(60))
        jobs = [(first, device(pool, said)), (second, device(pool, enforced(pool, second, "bob", 2, asks(10))))]
        assert shares(site.lan.port) == [(10, LINK), (60, LINK)]
        high, low = rates_once_in_time(pool, site, jobs, 0.9 * 60, down=False)
        assert high >= 0.9 * 60, (high, low)
        assert high + low <= 1.1 * LINK, (high, low)
        (held,) = [each for each in pool.client.reservations() if each["job"] == value(said, "LarkJobId")]
        pool.client.change_reservation(held["id"], rate=30)
        eventually(lambda: shares(site.lan.port) == [(10, LINK), (30, LINK)])
        pool.client.put_policy(policy("cap"))
        eventually(lambda: shares(site.lan.port) == [(10, 10), (30, 30)])
        got = rates(pool, site, jobs, down=False)
        assert got[0] <= 1.1 * 30, got
        assert got[1] <= 1.1 * 10, got


def test_what_the_link_does_not_hold_waits_with_the_reason_until_there_is_room(ovs: OpenVSwitch, net: Net) -> None:
    # No topology says what the link holds, so that nobody refuses it before.
    text = policy().partition("topology:")[0]
    with shaped(ovs, net, text) as (pool, site):
        first, second = pool.starter(1, "alice", NAT), pool.starter(2, "bob", BRIDGE)
        enforced(pool, first, "alice", 1, asks(70))
        said = pool.hook(second, "start", "bob", 2, asks(40), wait=0.5)
        assert value(said, "LarkState") == "pending"
        assert "has 30 Mb/s left, and this job needs 40" in value(said, "LarkReason")
        pool.hook(first, "exit", "alice", 1)
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["state"] == "enforced")
        assert shares(site.lan.port) == [(40, 40)]


@KINDS
def test_a_kernel_that_cannot_or_queues_of_others_refuse_the_job_and_book_nothing(
    ovs: OpenVSwitch, net: Net, kind: str
) -> None:
    with shaped(ovs, net) as (pool, site):
        run(["tc", "qdisc", "add", "dev", site.lan.port, "root", "handle", "77:", "pfifo"])
        said = pool.hook(pool.starter(1, "alice", kind), "start", "alice", 1, asks())
        assert "queueing discipline of its own (pfifo)" in value(said, "HookStatusMessage")
        assert "77:" in run(["tc", "qdisc", "show", "dev", site.lan.port]).stdout
        assert {each["reserved"] for each in pool.client.links()} == {0}
        # Who asks for nothing runs.
        enforced(pool, pool.starter(2, "bob", kind), "bob", 2)


@contextmanager
def two_ways(ovs: OpenVSwitch, net: Net) -> Iterator[tuple[Pool, Site, str]]:
    """A worker whose nat jobs leave by another interface than its Linux bridge, the only one that the policy names."""
    beyond = net.host("out", addresses=["198.18.0.2/24"])
    run(["ip", "address", "add", "198.18.0.1/24", "dev", beyond.port])
    # Every port but that one.
    text = policy().replace("edge: {", f'edge: {{uplinks: ["{beyond.port[:-1]}[!{beyond.port[-1]}]"], ')
    with a_site(ovs, net, text, external_interface=beyond.port) as (pool, site):
        yield pool, site, beyond.port


def test_jobs_behind_nat_and_on_a_bridge_have_their_shares_each_on_its_own_way(ovs: OpenVSwitch, net: Net) -> None:
    with two_ways(ovs, net) as (pool, site, beyond):
        enforced(pool, pool.starter(1, "alice", BRIDGE), "alice", 1, asks(30))
        enforced(pool, pool.starter(2, "bob", NAT), "bob", 2, asks(20))
        assert shares(site.lan.port) == shares(beyond) == [(20, 20), (30, 30)]


def test_queues_of_others_on_one_way_are_no_matter_of_jobs_that_leave_by_another(ovs: OpenVSwitch, net: Net) -> None:
    with two_ways(ovs, net) as (pool, site, beyond):
        run(["tc", "qdisc", "add", "dev", site.lan.port, "root", "handle", "77:", "pfifo"])
        said = enforced(pool, pool.starter(1, "alice", NAT), "alice", 1, asks(20))
        # A neighbour that asks for nothing brings the other way into play, and one that asks is refused.
        enforced(pool, pool.starter(2, "bob", BRIDGE), "bob", 2)
        refused = pool.hook(pool.starter(3, "carol", BRIDGE), "start", "carol", 3, asks(10))
        assert "queueing discipline of its own (pfifo)" in value(refused, "HookStatusMessage")
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["state"] == "enforced")
        assert shares(beyond) == [(20, 20)]


def test_a_kernel_without_htb_is_found_out(ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    real = commands.run

    def without(command: list[str], given: str = "") -> str:
        return real(command, given.replace(" htb default", " htbnothere default"))

    monkeypatch.setattr("lark_worker.queues.shaping.run", without)
    with shaped(ovs, net) as (pool, _):
        said = pool.hook(pool.starter(1, "alice", NAT), "start", "alice", 1, asks())
        assert "makes no queues at" in value(said, "HookStatusMessage")
        assert {each["reserved"] for each in pool.client.links()} == {0}


@KINDS
def test_a_reserved_flow_has_its_rate_beside_the_rest_of_the_job(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net) as (pool, site):
        starter = pool.starter(1, "alice", kind)
        said = enforced(pool, starter, "alice", 1, asks(10))
        made = pool.client.reserve(value(said, "LarkJobId"), LAN, 50)
        eventually(lambda: shares(site.lan.port) == [(10, 10), (50, 50)])
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["state"] == "enforced")
        (got,) = rates_once_in_time(pool, site, [(starter, device(pool, said))], 0.8 * 50, down=False)
        assert 0.8 * 50 <= got <= 1.1 * 50, told(site, got)
        pool.client.release(made["id"])
        eventually(lambda: shares(site.lan.port) == [(10, 10)])


def test_what_an_expired_flow_held_is_free_when_its_queue_is_gone(ovs: OpenVSwitch, net: Net) -> None:
    with shaped(ovs, net) as (pool, site):
        starter = pool.starter(1, "alice", BRIDGE)
        said = enforced(pool, starter, "alice", 1)
        pool.client.reserve(value(said, "LarkJobId"), LAN, 70, 3600)
        eventually(lambda: shares(site.lan.port) == [((LINK - 70) / 3, LINK), (70 + (LINK - 70) / 3, LINK)])
        assert pool.controller is not None
        reservations = pool.controller.controller.reservations

        def free() -> bool:
            reservations.expire(time.time() + 4000)
            is_free = {each["reserved"] for each in pool.client.links()} == {0}
            # Whoever is admitted now finds the link as it was promised.
            assert not is_free or not shares(site.lan.port)
            return is_free

        # The worker has not been told yet, so it is too early.
        assert not free()
        eventually(free)


def test_the_service_may_start_again_under_running_jobs(ovs: OpenVSwitch, net: Net) -> None:
    with shaped(ovs, net) as (pool, site):
        starter = pool.starter(1, "alice", BRIDGE)
        said = enforced(pool, starter, "alice", 1, asks())
        before = classes(site.lan.port)
        pool.stop_service()
        assert classes(site.lan.port) == before
        run(["tc", "class", "change", "dev", site.lan.port, "classid", f"{shaping.HANDLE:x}:{_own(before)}",
             "htb", "rate", "1mbit", "ceil", "1mbit"])  # fmt: skip
        pool.start_service()
        eventually(lambda: classes(site.lan.port) == before)
        pool.stop_service()
        pool.hook(starter, "exit", "alice", 1)
        starter.kill()
        pool.start_service()
        eventually(lambda: not classes(site.lan.port))
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["state"] == "ended")


def test_a_guarantee_that_is_missed_is_noticed(ovs: OpenVSwitch, net: Net) -> None:
    with shaped(ovs, net, policy("guarantee"), counter_seconds="6") as (pool, site):
        starter = pool.starter(1, "alice", BRIDGE)
        said = enforced(pool, starter, "alice", 1, asks(60))
        minor = _own(classes(site.lan.port))
        # A link that carries less than the policy says: here the class that holds all others.
        run(["tc", "class", "change", "dev", site.lan.port, "classid", f"{shaping.HANDLE:x}:{shaping._WHOLE:x}",
             "htb", "rate", "10mbit", "ceil", "10mbit"])  # fmt: skip
        run(["tc", "class", "change", "dev", site.lan.port, "parent", f"{shaping.HANDLE:x}:{shaping._WHOLE:x}",
             "classid", f"{shaping.HANDLE:x}:{minor}", "htb", "rate", "1mbit", "ceil", "100mbit"])  # fmt: skip
        got = rates(pool, site, [(starter, device(pool, said))], down=False, seconds=14)
        job = value(said, "LarkJobId")
        # What was changed behind the worker's back is as it was changed.
        assert got[0] < 20, told(site, got)
        eventually(lambda: any(each["action"] == "guarantee missed" for each in pool.client.audit(job)))
        entry = next(each for each in pool.client.audit(job) if each["action"] == "guarantee missed")
        assert "of 60 Mb/s at uplink" in entry["detail"], json.dumps(entry)


def _own(found: dict[str, tuple[float, float]]) -> str:
    return next(minor for minor in found if minor != f"{shaping.DEFAULT:x}")
