"""Jobs with AddressType dhcp, on a real DHCP server behind real Open vSwitch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.worker import dhcp_server
from tests.worker.dhcp_server import DhcpServer
from tests.worker.pool import Pool, Starter, a_pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

DHCP = 'LarkAddressType = "dhcp"\n'


class Site:
    """A worker and a DHCP server."""

    def __init__(self, pool: Pool, server: DhcpServer) -> None:
        self.pool = pool
        self.server = server

    def job(self, number: int, owner: str = "alice", run: int = 1, wait: float = 20) -> tuple[Starter, str]:
        """A job that has started, and what its hook printed; another ``run`` is another job on the same slot."""
        starter = self.pool.starter(number, owner, DHCP)
        if run > 1:
            ads = self.pool.startd.ads
            ads[starter.pid] = ads[starter.pid].replace("1700000000", f"170000000{run}")
        more = f"JobCurrentStartDate = 170000000{run}\n" if run > 1 else ""
        return starter, self.pool.hook(starter, "start", owner, number, more, wait)

    def inside(self, starter: Starter) -> str:
        """The IPv4 addresses inside a job."""
        return self.pool.inside(starter, "ip -4 -o address show dev eth0")[1]

    def age(self, name: str, left: float) -> list[Path]:
        """Let cached leases be as old as they are ``left`` seconds before the time ``name``; answers their files."""
        for path in self.cached():
            lease = json.loads(path.read_text())
            by = lease[name] - time.time() - left
            path.write_text(
                json.dumps(lease | {each: lease[each] - by for each in ("began", "renews", "rebinds", "expires")})
            )
        return self.cached()

    def cached(self) -> list[Path]:
        """The leases on the worker's disk."""
        return list((self.pool.folder / "worker" / "leases").iterdir())


@pytest.fixture
def site(ovs: OpenVSwitch, net: Net) -> Iterator[Site]:
    with a_site(ovs, net) as made:
        yield made


class a_site:  # noqa: N801  # is used as a function
    """A site for one test."""

    def __init__(self, ovs: OpenVSwitch, net: Net, **extra: str) -> None:
        self._ovs, self._net, self._extra = ovs, net, extra

    def __enter__(self) -> Site:
        self._folder = temporary_directory()
        folder = Path(self._folder.__enter__())
        policy = dhcp_server.POLICY.format(uplink=f"{self._net.prefix}p*")
        self._pool = a_pool(folder, self._ovs, self._net, policy=policy, **self._extra)
        pool = self._pool.__enter__()
        server = DhcpServer(folder, self._net, self._ovs, pool.bridge)
        server.start()
        return Site(pool, server)

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__(None, None, None)
        self._folder.__exit__(None, None, None)


def test_a_job_gets_a_lease_with_routes_and_names(site: Site) -> None:
    starter, said = site.job(1)
    assert value(said, "LarkState") == "enforced"
    address = value(said, "LarkInnerAddressIPv4")
    assert address.startswith("10.64.1.")
    assert f"{address}/16" in site.inside(starter)
    assert "default via 10.64.0.1" in site.pool.inside(starter, "ip route")[1]
    assert site.pool.inside(starter, "cat /etc/resolv.conf")[1].split() == [
        "search", "jobs.example", "nameserver", "10.64.0.53",
    ]  # fmt: skip
    assert site.pool.inside(starter, f"ping -c1 -W2 {dhcp_server.ADDRESS}")[0] == 0
    known = site.pool.client.job(value(said, "LarkJobId"))
    assert known["addresses"][0]["address"] == address
    assert site.server.heard() == ["DHCPDISCOVER", "DHCPOFFER", "DHCPREQUEST", "DHCPACK"]


def test_the_slots_next_job_has_the_cached_lease_by_one_exchange(site: Site) -> None:
    first, said = site.job(1)
    other, others = site.job(2, "bob")
    assert value(said, "LarkInnerAddressIPv4") != value(others, "LarkInnerAddressIPv4")
    first.kill()
    eventually(lambda: len(site.pool.ports()) == 1)
    assert "DHCPRELEASE" not in site.server.heard()
    before = len(site.server.heard())
    _, again = site.job(1, "alice", 2)
    assert value(again, "LarkState") == "enforced"
    for name in ("LarkInnerAddressIPv4", "LarkInnerMacAddress"):
        assert value(again, name) == value(said, name)
    assert value(again, "LarkJobId") != value(said, "LarkJobId")
    assert site.server.heard()[before:] == ["DHCPREQUEST", "DHCPACK"]
    assert site.pool.inside(other, f"ping -c1 -W2 {dhcp_server.ADDRESS}")[0] == 0


def test_a_cached_lease_that_the_server_refuses_is_replaced(site: Site) -> None:
    starter, said = site.job(1)
    starter.kill()
    eventually(lambda: not site.pool.leftovers())
    site.server.stop()
    site.server.forget()
    site.server.start("10.64.2.1", "10.64.2.250")
    _, again = site.job(1, "alice", 2)
    assert value(again, "LarkState") == "enforced"
    assert value(again, "LarkInnerAddressIPv4").startswith("10.64.2.")
    assert value(said, "LarkInnerAddressIPv4").startswith("10.64.1.")
    assert "DHCPNAK" in site.server.heard()


def test_without_a_server_a_cached_lease_serves_for_its_time(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net, dhcp_timeout="0.4") as site:
        starter, said = site.job(1)
        starter.kill()
        eventually(lambda: not site.pool.leftovers())
        site.server.stop()
        _, again = site.job(1, "alice", 2)
        assert value(again, "LarkState") == "enforced"
        assert value(again, "LarkInnerAddressIPv4") == value(said, "LarkInnerAddressIPv4")


@pytest.mark.parametrize(("choice", "code"), [("hold", 20), ("idle", 300)])
def test_without_a_server_the_site_decides(ovs: OpenVSwitch, net: Net, choice: str, code: int) -> None:
    with a_site(ovs, net, dhcp_timeout="0.3", dhcp_on_failure=choice) as site:
        site.server.stop()
        starter, said = site.job(1)
        assert value(said, "HookStatusCode") == str(code)
        assert "DHCP" in value(said, "HookStatusMessage")
        assert site.pool.leftovers() == []
        assert site.pool.hook(starter, "start", "alice", 1) == said
        eventually(lambda: not list(site.pool.client.jobs()))


def test_a_job_that_starts_without_an_address_is_given_one_later(ovs: OpenVSwitch, net: Net) -> None:
    with a_site(ovs, net, dhcp_timeout="0.3", dhcp_on_failure="start") as site:
        site.server.stop()
        starter, said = site.job(1, wait=0.5)
        assert value(said, "LarkState") == "pending"
        assert "10.64" not in site.inside(starter)
        site.server.start()
        eventually(lambda: "10.64.1." in site.inside(starter), 30)
        job = value(said, "LarkJobId")
        eventually(lambda: site.pool.client.job(job)["state"] == "enforced")
        eventually(lambda: site.pool.inside(starter, f"ping -c1 -W2 {dhcp_server.ADDRESS}")[0] == 0)


def test_a_job_that_runs_keeps_its_network_where_its_late_lease_brings_no_external_address(
    ovs: OpenVSwitch, net: Net
) -> None:
    with a_site(ovs, net, dhcp_timeout="0.3", dhcp_on_failure="start") as site:
        site.server.stop()
        starter = site.pool.starter(1, "alice", DHCP)
        said = site.pool.hook(starter, "start", "alice", 1, "RequestExternalAddress = true\n", 0.5)
        assert value(said, "LarkState") == "pending"
        site.server.start()
        job = value(said, "LarkJobId")
        eventually(lambda: site.pool.client.job(job)["state"] == "enforced", 30)
        assert site.pool.inside(starter, f"ping -c1 -W2 {dhcp_server.ADDRESS}")[0] == 0
        trail = {entry["action"]: entry["detail"] for entry in site.pool.client.audit(job)}
        assert trail["no external address"] == "the policy has no external addresses"
        # With the server there, one that asks is held before it starts.
        held = site.pool.starter(2, "alice", DHCP)
        assert "HookStatusCode = 10" in site.pool.hook(held, "start", "alice", 2, "RequestExternalAddress = true\n")


def test_leases_are_renewed_while_a_job_runs(site: Site) -> None:
    starter, said = site.job(1)
    kept = site.inside(starter)
    for time_of in ("renews", "rebinds"):
        before = len(site.server.heard())
        site.pool.stop_service()
        (path,) = site.age(time_of, 1.0)
        expires = json.loads(path.read_text())["expires"]
        # Another service goes on where this one ended; the job notices nothing.
        site.pool.start_service()
        eventually(lambda: json.loads(path.read_text())["expires"] > expires, 20)  # noqa: B023  # is called at once
        assert site.server.heard()[before:] == ["DHCPREQUEST", "DHCPACK"]
        assert site.inside(starter) == kept
    # A server that has changed its mind: the job gets another address, and the controller knows.
    site.server.stop()
    site.server.forget()
    site.server.start("10.64.3.1", "10.64.3.250")
    site.pool.stop_service()
    site.age("renews", 1.0)
    site.pool.start_service()
    eventually(lambda: "10.64.3." in site.inside(starter), 20)
    assert "10.64.1." not in site.inside(starter)
    job = value(said, "LarkJobId")
    eventually(lambda: str(site.pool.client.job(job)["addresses"][0]["address"]).startswith("10.64.3."))
    eventually(lambda: site.pool.client.job(job)["state"] == "enforced")
    assert site.pool.inside(starter, f"ping -c1 -W2 {dhcp_server.ADDRESS}")[0] == 0
    assert "default via 10.64.0.1" in site.pool.inside(starter, "ip route")[1]


def test_a_killed_service_goes_on_with_the_leases(site: Site) -> None:
    starter, _ = site.job(1)
    gone = site.pool.starter(2, "bob", DHCP)
    site.pool.stop_service()
    ads = site.pool.folder / "ads.json"
    ads.write_text(json.dumps(site.pool.startd.ads))
    command = [sys.executable, "-m", "tests.worker.service_process", str(ads)]
    environment = {**os.environ, **site.pool.environment}
    first = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: 'LarkState = "enforced"' in site.pool.hook(gone, "start", "bob", 2), 20)
        kept = site.inside(starter)
        both = [json.loads(path.read_text())["address"] for path in site.cached()]
        assert len(both) == 2
    finally:
        first.kill()
        first.wait()
    gone.kill()
    before = len(site.server.heard())
    site.age("renews", 0.5)
    second = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: len(site.server.heard()) >= before + 2, 20)
        # The job that lives is renewed; the one that ended with the service is swept, and its lease stays in the cache.
        assert site.server.heard()[before:] == ["DHCPREQUEST", "DHCPACK"]
        eventually(lambda: len(site.pool.ports()) == 1)
        assert site.inside(starter) == kept
        assert sorted(json.loads(path.read_text())["address"] for path in site.cached()) == sorted(both)
    finally:
        second.kill()
        second.wait()
    site.pool.start_service()


def test_a_lease_that_expires_takes_the_address_away(site: Site) -> None:
    starter, said = site.job(1)
    job = value(said, "LarkJobId")
    site.server.stop()
    site.pool.stop_service()
    # As if the server had been away for two minutes.
    site.age("expires", 1.0)
    site.pool.start_service()
    eventually(lambda: "10.64" not in site.inside(starter), 20)
    eventually(lambda: site.pool.client.job(job)["addresses"] == [])
    assert site.pool.client.job(job)["state"] == "pending"
    assert site.cached() == []
    # The server is back: the job gets an address again.
    site.server.start()
    eventually(lambda: "10.64.1." in site.inside(starter), 30)
    eventually(lambda: site.pool.client.job(job)["state"] == "enforced")


def test_a_job_is_no_dhcp_server_and_takes_no_lease(site: Site) -> None:
    victim, said = site.job(1)
    thief, stolen = site.job(2, "mallory")
    for port in (67, 68):
        program = f'import socket; socket.socket(2, 2).bind(("0.0.0.0", {port}))'
        status, shown = site.pool.inside(thief, f"python3 -c '{program}'")
        assert status != 0
        assert "Permission" in shown
    assert "not permitted" in site.pool.inside(thief, "python3 -c 'import socket; socket.socket(17, 2)'")[1]
    # Not even root inside of the namespace uses another's lease, or is heard as a server: the switch stands there.
    address = value(said, "LarkInnerAddressIPv4")
    inside = ["ip", "netns", "exec", f"{site.pool.prefix}-{value(stolen, 'LarkJobId')}"]
    subprocess.run([*inside, "ip", "address", "add", f"{address}/16", "dev", "eth0"], check=True)
    taken = subprocess.run(
        [*inside, "ping", "-c1", "-W1", "-I", address, dhcp_server.ADDRESS], capture_output=True, check=False
    )
    assert taken.returncode != 0
    serve = "import socket; s = socket.socket(2, 2); s.setsockopt(1, 6, 1); s.bind(('', 67))"
    with site.server.sniffs("udp and src port 67 and not src host 10.64.0.4") as seen:
        subprocess.run([*inside, "python3", "-c", f"{serve}; s.sendto(b'x' * 300, ('10.64.0.4', 68))"], check=True)
        subprocess.run(
            [*inside, "python3", "-c", f"{serve}; s.sendto(b'x' * 300, ('255.255.255.255', 68))"], check=True
        )
        assert site.pool.inside(victim, f"ping -c1 -W2 {dhcp_server.ADDRESS}")[0] == 0
    assert seen() == []


def test_dhcp_with_an_address_of_the_slot_is_refused(site: Site) -> None:
    starter = site.pool.starter(1, "alice", DHCP + 'LarkInnerAddressIPv4 = "10.64.9.9"\n')
    said = site.pool.hook(starter, "start", "alice", 1)
    assert value(said, "HookStatusCode") == "10"
    assert "DHCP alone" in said
