"""scripts/lark-base-flows on a real bridge: the host's traffic open, job ports closed, before any controller."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.namespaces import Host, Net
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_controller.flows.cookies import Category, cookie, is_ours

SCRIPT = Path(__file__).parents[2] / "scripts" / "lark-base-flows"
COOKIE = f"0x{cookie(Category.LOCAL_BASE):016x}"

pytestmark = pytest.mark.ovs


@dataclass(frozen=True)
class Worker:
    """A worker's bridge with an uplink to a gateway and two job ports; the host speaks by the bridge's own device."""

    ovs: OpenVSwitch
    net: Net
    bridge: str
    gateway: Host
    jobs: tuple[Host, Host]

    def base_flows(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(["sh", str(SCRIPT), *args], env=self.ovs.environment, check=check)

    def host_reaches_gateway(self, *, within: int = 1) -> bool:
        """True as soon as an echo is answered, asked for ``within`` seconds.

        After a failure the kernel asks for the gateway's address once a second: a shorter look can fall between.
        """
        command = ["ping", "-n", "-q", "-c", "1", "-i", "0.2", "-w", str(within), "-I", self.bridge]
        return run([*command, self.gateway.ipv4], check=False).returncode == 0

    def configure_host(self) -> None:
        run(["ip", "address", "replace", "192.0.2.1/24", "dev", self.bridge])
        run(["ip", "link", "set", self.bridge, "up"])
        run(["ethtool", "-K", self.bridge, "tx", "off"], check=False)


@pytest.fixture
def worker(own_ovs: OpenVSwitch) -> Iterator[Worker]:
    with Net() as net:
        bridge = net.name("br")
        own_ovs.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
        gateway = net.host("gw", addresses=["192.0.2.254/24"])
        jobs = (
            net.host("j1", addresses=["192.0.2.11/24", "2001:db8::11/64"]),
            net.host("j2", addresses=["192.0.2.12/24", "2001:db8::12/64"]),
        )
        for number, host in enumerate((gateway, *jobs), 1):
            own_ovs.add_port(bridge, host.port, number)
        made = Worker(own_ovs, net, bridge, gateway, jobs)
        made.configure_host()
        yield made


def test_the_host_is_open_and_jobs_are_closed(worker: Worker) -> None:
    net, (one, two) = worker.net, worker.jobs
    assert net.ping(one, two.ipv4)  # as Open vSwitch comes: a plain switch

    worker.base_flows(worker.bridge, worker.gateway.port)

    assert worker.host_reaches_gateway(within=10)
    closed = [
        (one, two.ipv4),
        (one, two.ipv6),
        (one, worker.gateway.ipv4),
        (one, "192.0.2.1"),
        (worker.gateway, two.ipv4),
    ]
    assert net.ping_all(closed) == [False] * len(closed)


def test_what_the_uplink_floods_does_not_reach_a_job(worker: Worker) -> None:
    worker.base_flows(worker.bridge, worker.gateway.port)
    captured = worker.net.capture(worker.jobs[0], "arp or icmp")
    assert worker.host_reaches_gateway(within=10)
    worker.net.ping(worker.gateway, "192.0.2.99")  # ARP requests to everybody
    assert captured() == []


def test_it_may_be_repeated_and_leaves_the_controllers_flows(worker: Worker) -> None:
    mine = f"0x{cookie(Category.SWITCH):x}"
    worker.base_flows(worker.bridge, worker.gateway.port)
    first = worker.ovs.flows(worker.bridge)
    assert len(first) == 3
    assert all(COOKIE in flow and "priority=1" in flow for flow in first)
    # Of these Open vSwitch 3.5.0 leaves checksums incomplete in user space; Debian 13 has it (make install-test).
    assert not any("in_port=LOCAL actions" in flow for flow in first)
    worker.ovs.ofctl(worker.bridge, "add-flow", f"cookie={mine},priority=100,in_port=2,actions=drop")

    worker.base_flows(worker.bridge, worker.gateway.port)

    flows = worker.ovs.flows(worker.bridge)
    assert len(flows) == 4
    assert set(first) < set(flows)


def test_check_says_what_differs_and_changes_nothing(worker: Worker) -> None:
    result = worker.base_flows("--check", worker.bridge, worker.gateway.port, check=False)
    assert result.returncode == 1
    assert "fail_mode is not secure" in result.stdout
    assert "in-band" in result.stdout
    assert worker.ovs.vsctl("get-fail-mode", worker.bridge).strip() == ""

    worker.base_flows(worker.bridge, worker.gateway.port)
    assert worker.base_flows("--check", worker.bridge, worker.gateway.port).stdout == ""

    worker.ovs.ofctl(worker.bridge, "del-flows", "in_port=1")
    result = worker.base_flows("--check", worker.bridge, worker.gateway.port, check=False)
    assert result.returncode == 1
    assert "base flows differ" in result.stdout


def test_another_uplink_replaces_the_base(worker: Worker) -> None:
    worker.base_flows(worker.bridge, worker.gateway.port)
    worker.base_flows(worker.bridge, worker.gateway.port, worker.jobs[0].port)
    flows = worker.ovs.flows(worker.bridge)
    assert len(flows) == 4
    assert any("in_port=LOCAL" in flow and "output:1,output:2" in flow for flow in flows)
    worker.base_flows(worker.bridge, worker.gateway.port)
    assert len(worker.ovs.flows(worker.bridge)) == 3


def test_after_a_crash_nothing_passes_until_the_base_is_loaded_again(worker: Worker) -> None:
    worker.base_flows(worker.bridge, worker.gateway.port)
    worker.ovs.restart(kill9=True)
    worker.configure_host()

    assert worker.ovs.flows(worker.bridge) == []
    assert not worker.host_reaches_gateway()
    assert not worker.net.ping(worker.jobs[0], worker.jobs[1].ipv4)

    worker.base_flows(worker.bridge, worker.gateway.port)
    assert worker.host_reaches_gateway(within=10)
    assert not worker.net.ping(worker.jobs[0], worker.jobs[1].ipv4)


def test_watching_loads_the_base_after_a_crash(worker: Worker) -> None:
    command = ["sh", str(SCRIPT), "--watch", "1", worker.bridge, worker.gateway.port]
    watcher = subprocess.Popen(
        command, env=worker.ovs.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert watcher.stdout is not None
        assert "base flows loaded" in watcher.stdout.readline()
        worker.ovs.restart(kill9=True)
        assert "base flows loaded" in watcher.stdout.readline()
        assert len(worker.ovs.flows(worker.bridge)) == 3
    finally:
        os.killpg(watcher.pid, signal.SIGKILL)
        watcher.communicate()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "usage"),
        (("BRIDGE",), "usage"),
        (("--watch", "0", "BRIDGE", "eth0"), "usage"),
        (("nobridge0", "eth0"), "there is no bridge nobridge0"),
    ],
)
def test_mistakes_are_said(worker: Worker, args: tuple[str, ...], said: str) -> None:
    result = worker.base_flows(*(worker.bridge if arg == "BRIDGE" else arg for arg in args), check=False)
    assert result.returncode == 2
    assert said in result.stderr


def test_a_port_that_is_not_there_is_said(worker: Worker) -> None:
    result = worker.base_flows(worker.bridge, "nosuch0", check=False)
    assert result.returncode == 2
    assert "no port nosuch0" in result.stderr


def test_the_controller_never_sweeps_base_flows() -> None:
    assert not is_ours(int(COOKIE, 16))


def test_shellcheck_finds_nothing() -> None:
    scripts = [SCRIPT, *SCRIPT.parent.glob("*.sh")]
    result = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
