"""``lark-bandwidth``: what a worker's link carries, from the devices of a network namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.namespaces import Host, Net

pytestmark = pytest.mark.ovs

SCRIPT = Path(__file__).parents[2] / "scripts" / "lark-bandwidth"
# What the kernel says of every veth.
VETH = 10_000


@pytest.fixture
def worker(net: Net) -> Host:
    return net.host("worker", addresses=("10.1.0.2/24",))


def said(net: Net, worker: Host, *arguments: str) -> tuple[str, str]:
    # The file systems of a namespace entered by ip-netns(8) show its own devices.
    done = net.exec(worker, [str(SCRIPT), *arguments])
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.parametrize(
    ("arguments", "speed"),
    [
        (["eth0"], VETH),
        (["eth0", "1000"], 1000),
        (["eth0", "40000"], VETH),
        (["absent0", "100"], 100),
        (["absent0"], 0),
    ],
)
def test_of_an_interface(net: Net, worker: Host, arguments: list[str], speed: int) -> None:
    assert said(net, worker, *arguments)[0] == f"DetectedBandwidth = {speed}"


@pytest.mark.parametrize("arguments", [["lo"], ["lo", "1000"]])
def test_the_loopback_interface_is_no_link(net: Net, worker: Host, arguments: list[str]) -> None:
    shown, complaint = said(net, worker, *arguments)
    assert shown == "DetectedBandwidth = 0"
    assert "lo: that is no link" in complaint


@pytest.mark.parametrize("default", ["10.1.0.1", "2001:db8:1::1"])
def test_by_itself_it_is_that_of_the_default_route(net: Net, worker: Host, default: str) -> None:
    shown, complaint = said(net, worker)
    assert (shown, "no default route" in complaint) == ("DetectedBandwidth = 0", True)
    net.exec(worker, ["ip", "address", "add", "2001:db8:1::2/64", "dev", "eth0", "nodad"])
    net.exec(worker, ["ip", "route", "add", "default", "via", default])
    assert said(net, worker) == (f"DetectedBandwidth = {VETH}", "")


def test_of_a_bridge_it_is_that_of_its_ports(net: Net, worker: Host) -> None:
    for line in (
        "link add br0 type bridge",
        "link set eth0 master br0",
        "link set br0 up",
        "address add 10.1.0.2/24 dev br0",
        "address del 10.1.0.2/24 dev eth0",
        "route add default via 10.1.0.1 dev br0",
    ):
        net.exec(worker, ["ip", *line.split()])
    assert said(net, worker, "auto", "50000")[0] == f"DetectedBandwidth = {VETH}"


def test_of_open_vswitch_it_is_that_of_its_cards_and_of_what_is_made_of_some(net: Net, worker: Host) -> None:
    """A bond, say; here a macvlan, which every kernel has. A job's port is no card."""
    for line in (
        "link add ovs-system type bridge",
        "link add lark0 type veth peer name inside0",
        "link set lark0 master ovs-system",
        "link set lark0 up",
        "link set inside0 up",
    ):
        net.exec(worker, ["ip", *line.split()])
    # Of its own bridges no driver reports a speed.
    assert said(net, worker, "absent0")[0] == "DetectedBandwidth = 0"
    for line in ("link add bond0 link eth0 type macvlan", "link set bond0 master ovs-system", "link set bond0 up"):
        net.exec(worker, ["ip", *line.split()])
    assert said(net, worker, "absent0") == (f"DetectedBandwidth = {VETH}", "")
