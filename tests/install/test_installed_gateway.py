"""A plain Linux gateway, and an access point's own switch, by the commands of their pages.

They are on the site of test_installed.py. Each test goes on where the one before it has ended.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lab.inside.topology import DOMAIN
from lab.namespaces import INNER, Host, Net
from lab.run import run
from lab.settings import from_environment
from tests.fixtures.wires import open_socket
from tests.install import images
from tests.install.jobs import Job, start
from tests.install.machine import LAN, Machine, wait_until
from tests.install.pages import Page
from tests.install.site import NAMES, ROUTER, Site, in_pool, prepare

GATEWAY, SUBMIT = "gateway1", "submit1"
ADDRESSES: Final = {GATEWAY: "10.0.0.61", SUBMIT: "10.0.0.62"}
OUTSIDE, BESIDE = "192.0.2.7", "192.0.2.254"
POOL: Final = "198.51.100.64/27"
PAGES: Final = {
    # The cards of the gateway that lead to the jobs and outside.
    "external-addresses": {**NAMES, "lan0": INNER},
    "transfers": NAMES,
    "worker": NAMES,
}


def page(name: str) -> Page:
    """One of the pages, with the site's names."""
    return Page(f"{name}.md", PAGES[name])


@pytest.fixture(scope="module")
def outside() -> Iterator[Host]:
    """A host beyond the gateway, which takes the pool for addresses of its own link."""
    with Net() as net:
        host = net.host("outside", addresses=[f"{OUTSIDE}/24"])
        run(["ip", "-n", host.namespace, "route", "add", POOL, "dev", INNER])
        yield host


@pytest.fixture(scope="module")
def gateway(site: Site, outside: Host, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A router between the jobs' own router and the outside; nothing of Lark is on it."""
    machine = added(site, GATEWAY, tmp_path_factory.mktemp(GATEWAY))
    run(["ip", "link", "set", outside.port, "netns", str(machine.leader), "name", "wan0"])
    # Before there is iproute2 on it.
    for words in (f"address add {BESIDE}/24 dev wan0", "link set wan0 up", f"route add 10.64.0.0/16 via {ROUTER}"):
        run(["nsenter", f"--net=/proc/{machine.leader}/ns/net", "ip", *words.split()])
    machine.run("echo 1 > /proc/sys/net/ipv4/ip_forward")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    run(["ip", "route", "add", "192.0.2.0/24", "via", ADDRESSES[GATEWAY], "dev", LAN])
    return machine


def added(site: Site, name: str, folder: Path) -> Machine:
    """One more machine of the site, on."""
    machine = Machine(name, f"{name}.{DOMAIN}", images.worker(from_environment(), "bookworm"), folder)
    site.machines[name] = machine
    prepare(machine, ADDRESSES[name], f"{ADDRESSES[name]} {machine.host} {name}\n")
    machine.boot()
    return machine


def operate(site: Site, script: str) -> str:
    """The output of an operator's commands on the controller's host."""
    return site["controller"].run(f"{site.operator}\n{script}").stdout


def put_policy(site: Site, part: str) -> None:
    """Add a part to the policy, as its page does."""
    operate(site, "lark policy show > new.yaml")
    site["controller"].write("/root/new.yaml", part, append=True)
    operate(site, "lark check new.yaml; lark plan new.yaml; lark policy put new.yaml")


def sent(site: Site, block: str, to: Machine) -> None:
    """Run a block of the controller's host; the site has no ssh, so what it hands to another machine is handed over."""
    for line in block.splitlines():
        over = re.fullmatch(r"ssh root@\S+ '(.*)' < (\S+)", line)
        if over is None:
            operate(site, line)
        else:
            to.run(over[1], stdin=site["controller"].run(f"cat {over[2]}").stdout)


@pytest.fixture(scope="module")
def served(site: Site) -> Iterator[Job]:
    """A job on the second worker that serves its port 80."""
    site.copy("lark-access-point", "central")
    site["central"].run(page("worker").block("apt install ./lark-access-point").splitlines()[0])
    worker = site["worker2"]
    worker.run("rm -f /etc/condor/config.d/60-site.conf; condor_reconfig")
    attribute = f"condor_status -constraint 'Machine == \"{worker.host}\"' -af NetworkType"
    wait_until(lambda: "nat" not in site["central"].run(attribute).stdout, 60, "worker2's jobs are on its switch")
    wait_until(lambda: "worker2" in in_pool(site), 60, "worker2 is in the pool")
    job = start(site, "alice", "worker2")
    inside = f"ip netns exec {job.namespace} python3 -m http.server 80 --bind {job.address}"
    worker.run(f"setsid {inside} >/dev/null 2>&1 </dev/null & echo $! > /run/served.pid")
    yield job
    worker.run("kill $(cat /run/served.pid)", check=False)
    job.remove()


def answered(host: Host, address: str, port: int = 80) -> str:
    """The first line of what a web server answers; empty where nothing does."""
    with open_socket(host, socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        try:
            client.connect((address, port))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return client.recv(100).decode().partition("\r\n")[0]
        except OSError:
            return ""


def test_a_router_becomes_a_gateway(site: Site, gateway: Machine) -> None:
    told = page("external-addresses")
    put_policy(site, told.block("external:\n  pools:\n    public: [198.51.100.64/27]"))
    site.copy("lark-worker", GATEWAY)
    gateway.run(page("worker").block("apt install ./lark-worker_*.deb  "))
    gateway.run(told.block("ip route replace"))
    sent(site, told.block("lark token gateway1"), gateway)
    gateway.write("/etc/lark/worker.env", told.block("LARK_WORKER_URL=https://"))
    gateway.run(told.block("systemctl enable --now lark-gateway.service"))
    listed, said = told.block("nft list table inet lark-gateway"), list[str]()

    def is_there() -> bool:
        # Shown where the test fails.
        said[:] = gateway.run("journalctl --no-pager -u lark-gateway | tail -n 5", check=False).stdout.splitlines()
        return gateway.run(listed, check=False).returncode == 0

    wait_until(is_there, 20, "the table is there")
    # Of its services that one runs there alone.
    running = gateway.run("systemctl list-units --plain --no-legend --state=active 'lark-*'").stdout
    assert [line.split()[0] for line in running.splitlines()] == ["lark-gateway.service"]


def test_the_outside_calls_a_job_through_it(site: Site, gateway: Machine, served: Job, outside: Host) -> None:
    told = page("external-addresses")
    give, see, release = told.block("lark external add 103.0 tcp/80\nlark external list").splitlines()
    given = operate(site, give.replace("103.0", f"{served.cluster}.0"))
    (address,) = re.findall(r"198\.51\.100\.\d+", given)

    def is_open() -> bool:
        (line,) = (each for each in operate(site, see).splitlines() if address in each)
        return " open " in line

    wait_until(is_open, 30, "the gateway has confirmed the address")
    wait_until(lambda: answered(outside, address) == "HTTP/1.0 200 OK", 20, "the outside is answered")
    assert answered(outside, address, 81) == ""
    assert address in gateway.run("lark-worker gateway --counters").stdout
    (number,) = re.findall(r"(?m)^([0-9a-f]{16}) ", given)
    operate(site, release.replace("8f14e45fceea167a", number))
    wait_until(lambda: answered(outside, address) == "", 20, "it is closed")


def test_a_gateway_is_taken_away(gateway: Machine) -> None:
    gateway.run(page("external-addresses").block("systemctl disable --now lark-gateway.service"))
    assert "lark" not in gateway.run("nft list ruleset").stdout


def test_an_access_point_has_a_switch(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    machine, told = added(site, SUBMIT, tmp_path_factory.mktemp(SUBMIT)), page("transfers")
    declared = told.block("switches:\n  submit1:", ("port: eth0, speed: 10Gbit", "port: eth0"), ("queues", "meters"))
    put_policy(site, declared)
    site.copy("lark-worker", SUBMIT)
    machine.run(page("worker").block("apt install ./lark-worker_*.deb  "))
    token = operate(site, f"lark join add {machine.host}").strip()
    # In these containers Open vSwitch runs in user space.
    kind = ("--interface eth0", "--interface eth0 --kind ovs-userspace")
    begun, *rest = told.block("lark-worker setup", kind, ("TOKEN", token)).splitlines()
    assert "joined https://" in machine.run(begun).stdout
    machine.run("\n".join(rest))
    assert machine.run("ovs-vsctl get-fail-mode br0").stdout.strip() == "standalone"
    wait_until(lambda: in_sync(site, SUBMIT), 30, "the access point's switch is in sync")
    assert pings(machine)
    site["controller"].run("systemctl stop lark-controller")
    try:
        # From the third answer that it misses; its own flow, before all others, is in this list alone.
        flows = "ovs-appctl bridge/dump-flows br0"
        wait_until(lambda: "actions=NORMAL" in machine.run(flows).stdout, 60, "it is a plain switch")
        assert pings(machine)
    finally:
        site["controller"].run("systemctl start lark-controller")
    machine.run(told.block("systemctl disable --now lark-leaves.service"))
    assert pings(machine)
    assert machine.run("ovs-vsctl list-br").stdout == ""


def in_sync(site: Site, name: str) -> bool:
    """True if the switch of the policy's name is connected and has its flows."""
    return any(each["name"] == name and each["in_sync"] for each in site.lark("switches"))


def pings(machine: Machine) -> bool:
    """True if the machine reaches its router."""
    ping = f"ping -c 1 -W 1 {ROUTER}"
    return machine.run(f"{ping} || {ping} || {ping}", check=False).returncode == 0


def test_the_keys_of_the_site_reach_nobody_else(site: Site) -> None:
    """The files that the pages copy are their owner's alone."""
    modes = site[GATEWAY].run("stat -c '%a %U %n' /etc/lark/worker.token /etc/lark/ca.pem").stdout.split("\n")
    assert modes[:2] == ["600 root /etc/lark/worker.token", "644 root /etc/lark/ca.pem"]
    assert not Path(f"/proc/{site['controller'].leader}/root/root/gateway1.token").exists()
