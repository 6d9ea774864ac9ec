"""``lark-worker bridge``: an interface's addresses and routes move into a bridge and back, over a link that is used."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_worker import cli
from lark_worker.errors import NetworkError
from lark_worker.network import commands, own_bridge
from lark_worker.network.own_bridge import OwnBridge

pytestmark = pytest.mark.ovs

SCRIPTS = Path(__file__).parents[2] / "scripts"
# The worker's own addresses, its router, and what is beyond.
OWN = ("10.77.0.2/24", "2001:db8:77::2/64")
ROUTER, ROUTER6, BEYOND = "10.77.0.1", "2001:db8:77::1", "198.51.100.77"


class Machine:
    """This namespace as a worker with one network card, and a router behind that."""

    def __init__(self, net: Net, folder: Path) -> None:
        self.net, self.state = net, folder
        self.bridge = net.name("q")
        self.table = f"lark_bridge_{self.bridge}"
        addresses = (f"{ROUTER}/24", f"{ROUTER6}/64", f"{BEYOND}/32")
        self.router = net.host("router", addresses=addresses)
        self.card = self.router.port
        Path("/proc/sys/net/ipv6/conf", self.card, "disable_ipv6").write_text("0")
        self.configure()

    def configure(self) -> None:
        """Give the card the worker's addresses and routes."""
        run(["ip", "link", "set", self.card, "up"])
        for address in OWN:
            run(["ip", "address", "add", address, "dev", self.card, *(["nodad"] if ":" in address else [])])
        run(["ip", "route", "add", "default", "via", ROUTER, "dev", self.card, "metric", "70"])
        run(["ip", "-6", "route", "add", "2001:db8:99::/48", "via", ROUTER6, "dev", self.card])

    def reaches(self) -> bool:
        return run(["ping", "-n", "-q", "-c1", "-W2", BEYOND], check=False).returncode == 0

    def device(self, name: str) -> tuple[set[str], set[str]]:
        """Its global addresses and its routes but the kernel's own."""
        shown = json.loads(run(["ip", "-json", "address", "show", "dev", name]).stdout)
        addresses = {
            f"{each['local']}/{each['prefixlen']}" for each in shown[0]["addr_info"] if each["scope"] != "link"
        }
        routes = set()
        for family in ("-4", "-6"):
            found = json.loads(run(["ip", family, "-json", "route", "show", "dev", name]).stdout or "[]")
            routes |= {f"{each['dst']} {each['gateway']}" for each in found if "gateway" in each}
        return addresses, routes

    def is_filtered(self) -> bool:
        return run(["nft", "list", "table", "inet", self.table], check=False).returncode == 0

    def received(self, address: str) -> list[bytes]:
        """Those of three datagrams from the router to the worker's address that a socket of this namespace receives."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as listening:
            listening.bind((address, 0))
            listening.settimeout(1.0)
            send = (
                f"import socket; s = socket.socket(socket.{family.name}, socket.SOCK_DGRAM); "
                f"[s.sendto(bytes([n]), ({address!r}, {listening.getsockname()[1]})) for n in range(3)]"
            )
            self.net.exec(self.router, [sys.executable, "-c", send])
            found: list[bytes] = []
            with contextlib.suppress(TimeoutError):
                while True:
                    found.append(listening.recv(100))
        return sorted(found)

    def bridges(self, ovs: OpenVSwitch) -> OwnBridge:
        return OwnBridge(self.state, f"unix:{ovs.database_socket}")


WHOLE = (set(OWN), {f"default {ROUTER}", f"2001:db8:99::/48 {ROUTER6}"})
NOTHING: tuple[set[str], set[str]] = (set(), set())


@pytest.fixture
def machine(net: Net, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("PATH", f"{SCRIPTS}:/usr/sbin:/usr/bin:/sbin:/bin")
    with temporary_directory() as folder:
        made = Machine(net, Path(folder))
        yield made
        run(["ip", "link", "del", made.bridge], check=False)
        run(["nft", "delete", "table", "inet", made.table], check=False)


@pytest.mark.parametrize("kind", ["linux", "ovs-userspace"])
def test_a_card_moves_into_the_bridge_and_back(ovs: OpenVSwitch, machine: Machine, kind: str) -> None:
    bridges = machine.bridges(ovs)
    assert machine.reaches()
    bridges.make(machine.bridge, machine.card, kind, "00000000000000e7")
    assert machine.device(machine.bridge) == WHOLE
    assert machine.device(machine.card) == NOTHING
    assert machine.reaches()
    # Once more is no mistake.
    bridges.make(machine.bridge, machine.card, kind)
    assert machine.device(machine.bridge) == WHOLE
    bridges.undo(machine.bridge)
    assert not Path("/sys/class/net", machine.bridge).exists()
    assert machine.device(machine.card) == WHOLE
    assert machine.reaches()


@pytest.mark.parametrize("kind", ["linux", "ovs-userspace"])
def test_where_no_router_answers_all_is_as_it_was(ovs: OpenVSwitch, machine: Machine, kind: str) -> None:
    machine.net.exec(machine.router, ["ip", "link", "set", "eth0", "down"])
    with pytest.raises(
        NetworkError, match=f"no router \\({ROUTER}\\) answers over {machine.bridge}: .*; all is as it was"
    ):
        machine.bridges(ovs).make(machine.bridge, machine.card, kind, patience=1.0)
    assert not Path("/sys/class/net", machine.bridge).exists()
    machine.net.exec(machine.router, ["ip", "link", "set", "eth0", "up"])
    assert machine.device(machine.card) == WHOLE
    assert machine.reaches()
    with pytest.raises(NetworkError, match="was not made by this command"):
        machine.bridges(ovs).undo(machine.bridge)


def test_a_repeated_make_sets_another_datapath_id(
    ovs: OpenVSwitch, machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LARK_WORKER_STATE_DIR", str(machine.state))
    monkeypatch.setenv("LARK_WORKER_OVS_DATABASE", f"unix:{ovs.database_socket}")
    make = ["bridge", "make", machine.bridge, machine.card, "--kind", "ovs-userspace"]
    for given, has in (
        (["--datapath-id", "00000000000000e1"], "00000000000000e1"),
        (["--datapath-id", "00:00:00:00:00:00:00:E2"], "00000000000000e2"),
        ([], "00000000000000e2"),
    ):
        assert cli.main([*make, *given]) == 0
        assert f"datapath id of {machine.bridge}: {has}\n" in capsys.readouterr().out
        assert ovs.vsctl("get", "bridge", machine.bridge, "datapath_id").strip().strip('"') == has
        assert machine.device(machine.bridge) == WHOLE
    # One that outlived a restart of the machine.
    run(["ip", "address", "flush", "dev", machine.bridge])
    run(["ip", "link", "set", machine.bridge, "down"])
    machine.configure()
    assert cli.main([*make, "--datapath-id", "00000000000000e3"]) == 0
    assert ovs.vsctl("get", "bridge", machine.bridge, "datapath_id").strip().strip('"') == "00000000000000e3"
    machine.bridges(ovs).undo(machine.bridge)


@pytest.mark.parametrize("given", ["e1", "0" * 16, "00000000000000g1", "0x00000000000000e1", "00:000000000000e1", ""])
@pytest.mark.parametrize("command", [["bridge", "make", "br0", "eth0"], ["setup", "--controller", "https://a:1"]])
def test_a_datapath_id_that_open_vswitch_would_not_take_is_refused(
    capsys: pytest.CaptureFixture[str], command: list[str], given: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*command, f"--datapath-id={given}"])
    assert "is not 16 hexadecimal digits, with or without colons and not all 0" in capsys.readouterr().err


def test_a_bridge_of_the_kernel_has_no_datapath_id(capsys: pytest.CaptureFixture[str]) -> None:
    make = ["bridge", "make", "br0", "eth0", "--kind", "linux", "--datapath-id", "00000000000000e1"]
    assert cli.main(make) == 1
    assert "a bridge of the kernel has no datapath id" in capsys.readouterr().err


def test_after_a_restart_of_the_machine_it_is_made_anew(ovs: OpenVSwitch, machine: Machine) -> None:
    bridges = machine.bridges(ovs)
    bridges.make(machine.bridge, machine.card, "linux")
    # The kernel's bridge is gone, and the system has configured the card as ever.
    run(["ip", "link", "del", machine.bridge])
    machine.configure()
    bridges.make(machine.bridge, machine.card, "linux")
    assert machine.device(machine.bridge) == WHOLE
    bridges.undo(machine.bridge)
    assert machine.device(machine.card) == WHOLE


def test_open_vswitchs_bridge_outlives_a_restart_and_gets_the_addresses_again(
    ovs: OpenVSwitch, machine: Machine
) -> None:
    bridges = machine.bridges(ovs)
    bridges.make(machine.bridge, machine.card, "ovs-userspace")
    # The bridge is there, without addresses, and the system has configured the card as ever.
    run(["ip", "address", "flush", "dev", machine.bridge])
    run(["ip", "link", "set", machine.bridge, "down"])
    machine.configure()
    bridges.make(machine.bridge, machine.card, "ovs-userspace")
    assert machine.device(machine.bridge) == WHOLE
    assert machine.device(machine.card) == NOTHING
    assert machine.reaches()
    bridges.undo(machine.bridge)
    assert machine.device(machine.card) == WHOLE
    assert machine.reaches()


@pytest.fixture
def no_rp_filter(machine: Machine) -> Iterator[None]:
    """Has the kernel take packets at an interface without addresses; with IPv6 it does so always."""
    for_all = Path("/proc/sys/net/ipv4/conf/all/rp_filter")
    before = for_all.read_text()
    for_all.write_text("0")
    Path("/proc/sys/net/ipv4/conf", machine.card, "rp_filter").write_text("0")
    yield
    for_all.write_text(before)


@pytest.mark.usefixtures("no_rp_filter")
def test_in_user_space_the_worker_receives_each_packet_once(ovs: OpenVSwitch, machine: Machine) -> None:
    bridges = machine.bridges(ovs)

    def once() -> bool:
        for address in (each.partition("/")[0] for each in OWN):
            said = machine.net.exec(machine.router, ["ping", "-n", "-c3", "-i0.2", "-W2", address]).stdout
            assert "3 received" in said
            found = machine.received(address)
            assert set(found) == {b"\0", b"\1", b"\2"}
            if "duplicates" in said or len(found) > 3:
                return False
        return True

    for _ in range(2):
        moved = bridges.make(machine.bridge, machine.card, "ovs-userspace")
        assert (moved.table, machine.is_filtered(), once()) == (machine.table, True, True)
    # A restart takes it along; an earlier version knew of none.
    run(["nft", "delete", "table", "inet", machine.table])
    assert not once()
    noted = machine.state / "bridges" / f"{machine.bridge}.json"
    noted.write_text(
        json.dumps({name: each for name, each in json.loads(noted.read_text()).items() if name != "table"})
    )
    bridges.make(machine.bridge, machine.card, "ovs-userspace")
    assert (machine.is_filtered(), once()) == (True, True)
    bridges.undo(machine.bridge)
    assert (machine.is_filtered(), once()) == (False, True)


def test_without_nft_no_bridge_is_made_in_user_space(
    ovs: OpenVSwitch, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The programs that the command starts are looked for in the same places as its own."""
    bridges = machine.bridges(ovs)
    for name in ("ip", "ovs-vsctl", "ping"):
        tmp_path.joinpath(name).symlink_to(str(shutil.which(name)))
    monkeypatch.setitem(commands._PATH, "PATH", str(tmp_path))
    with pytest.raises(
        NetworkError, match=r"needs nftables, or this worker receives pings and UDP twice: nft is not installed"
    ):
        bridges.make(machine.bridge, machine.card, "ovs-userspace")
    assert machine.device(machine.card) == WHOLE
    assert machine.bridge not in ovs.bridges()
    assert not (machine.state / "bridges").exists()
    # The kernel's bridge needs none.
    bridges.make(machine.bridge, machine.card, "linux")
    bridges.undo(machine.bridge)


# Settings that sites have beside one address and one router: a peer, labels, lifetimes, several routers, tables.
UNUSUAL = (
    "address add 10.77.7.7 peer 10.77.7.8/32 dev {card}",
    "address add 10.77.9.9/24 broadcast 10.77.9.255 noprefixroute dev {card}",
    "address add 10.77.11.1/24 label {card}:x dev {card}",
    "address add 2001:db8:79::2/64 preferred_lft 0 nodad dev {card}",
    "route replace default metric 70 nexthop via 10.77.0.1 dev {card} nexthop via 10.77.0.9 dev {card} weight 2",
    "route add 198.18.0.0/15 via inet6 2001:db8:77::1 dev {card}",
    "route add 203.0.113.0/24 via 10.77.0.1 dev {card} proto static metric 7 mtu 1400",
    "route add 203.0.113.0/24 via 10.77.0.1 dev {card} table 100",
    "route add 3fff:aa::/32 nexthop via 2001:db8:77::1 dev {card} nexthop via 2001:db8:77::9 dev {card}",
    "route add 3fff:ab::/32 via 2001:db8:77::1 dev {card} table 100 pref high",
)


def everything(name: str) -> list[str]:
    """All addresses and routes of a device but its link-local ones, as ip(8) shows them, with ``DEV`` in its place."""
    found = run(["ip", "-oneline", "address", "show", "dev", name]).stdout.splitlines()
    shown = [f"{line.partition(' ')[2].partition('valid_lft')[0]}" for line in found if "fe80:" not in line]
    for family in ("-4", "-6"):
        listed = run(["ip", family, "-oneline", "route", "show", "table", "all"]).stdout.splitlines()
        shown += [line for line in listed if f"dev {name} " in line and not line.startswith(("fe80:", "multicast"))]
    return sorted(line.replace(name, "DEV").strip() for line in shown)


def test_unusual_addresses_and_routes_move_and_come_back_too(ovs: OpenVSwitch, machine: Machine) -> None:
    run(["ip", "-batch", "-"], stdin="".join(f"{line.format(card=machine.card)}\n" for line in UNUSUAL))
    before = everything(machine.card)
    assert len([line for line in before if "nexthop" in line or "table 100" in line]) >= 4, before
    bridges = machine.bridges(ovs)
    moved = bridges.make(machine.bridge, machine.card, "linux")
    assert moved.routers == (ROUTER, "10.77.0.9")
    assert everything(machine.bridge) == before
    assert everything(machine.card) == []
    bridges.undo(machine.bridge)
    assert everything(machine.card) == before


@pytest.mark.parametrize("promotes", ["0", "1"])
def test_several_addresses_of_one_network_move_and_come_back(ovs: OpenVSwitch, machine: Machine, promotes: str) -> None:
    """With the first one of a network the kernel takes away the others, unless it is to promote one of them."""
    settings = [Path("/proc/sys/net/ipv4/conf", name, "promote_secondaries") for name in ("all", machine.card)]
    before = [each.read_text() for each in settings]
    for each in settings:
        each.write_text(promotes)
    try:
        for address in ("10.77.0.3/24", "10.78.0.2/24", "10.77.0.4/24", "10.78.0.3/24"):
            run(["ip", "address", "add", address, "dev", machine.card])
        found = everything(machine.card)
        bridges = machine.bridges(ovs)
        bridges.make(machine.bridge, machine.card, "linux")
        assert everything(machine.bridge) == found
        assert everything(machine.card) == []
        assert machine.reaches()
        bridges.undo(machine.bridge)
        assert everything(machine.card) == found
    finally:
        for each, text in zip(settings, before, strict=True):
            each.write_text(text)


@pytest.mark.parametrize("is_there", [False, True])
def test_where_a_step_fails_it_is_said_that_all_is_put_back(
    ovs: OpenVSwitch, machine: Machine, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    bridges = machine.bridges(ovs)
    if is_there:
        bridges.make(machine.bridge, machine.card, "ovs-userspace")
        run(["ip", "address", "flush", "dev", machine.bridge])
        run(["ip", "link", "set", machine.bridge, "down"])
        machine.configure()

    def failing(lines: Sequence[str]) -> None:
        if any(line.startswith("address") for line in lines):
            raise NetworkError("ip -batch -: Error: no.")
        commands.ip_batch(lines)

    monkeypatch.setattr(own_bridge, "ip_batch", failing)
    how = f"{machine.bridge} is no more, and {machine.card} is as it was" if is_there else "all is as it was"
    with pytest.raises(NetworkError, match=f"^ip -batch -: Error: no.; {how}$"):
        bridges.make(machine.bridge, machine.card, "ovs-userspace")
    assert machine.device(machine.card) == WHOLE
    assert machine.bridge not in ovs.bridges()


def test_where_a_step_fails_and_not_all_is_put_back_both_are_said(
    ovs: OpenVSwitch, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridges = machine.bridges(ovs)

    def failing(_lines: Sequence[str]) -> None:
        run(["ip", "link", "add", machine.bridge, "type", "bridge"])
        raise NetworkError("ip -batch -: Error: no.")

    ran = commands.run

    def failing_too(command: Sequence[str], *given: Any, **how: Any) -> str:
        if command[:3] == ["ip", "link", "del"]:
            raise NetworkError("ip link del: Error: neither.")
        return ran(command, *given, **how)

    with monkeypatch.context() as patched:
        patched.setattr(own_bridge, "ip_batch", failing)
        patched.setattr(own_bridge, "run", failing_too)
        with pytest.raises(
            NetworkError,
            match=r"^ip -batch -: Error: no.; .* is not all undone: ip link del: Error: neither.; repeat it: ",
        ):
            bridges.make(machine.bridge, machine.card, "linux")
    bridges.undo(machine.bridge)
    assert machine.device(machine.card) == WHOLE


def test_a_bridge_is_not_taken_for_that_of_another_interface_and_stays_undoable(
    ovs: OpenVSwitch, machine: Machine
) -> None:
    bridges = machine.bridges(ovs)
    other = machine.net.host("other").port
    bridges.make(machine.bridge, machine.card, "linux")
    for interface, kind in ((other, "linux"), (machine.card, "ovs-userspace")):
        with pytest.raises(NetworkError, match=f"was made with {machine.card} \\(--kind linux\\)"):
            bridges.make(machine.bridge, interface, kind)
    bridges.undo(machine.bridge)
    assert machine.device(machine.card) == WHOLE


@pytest.mark.parametrize("kind", ["linux", "ovs-userspace"])
def test_what_broke_off_while_addresses_moved_is_made_by_the_next_call(
    ovs: OpenVSwitch, machine: Machine, kind: str
) -> None:
    bridges = machine.bridges(ovs)
    bridges.make(machine.bridge, machine.card, kind)
    # As if it had been killed before they came.
    run(["ip", "address", "flush", "dev", machine.bridge])
    assert not machine.reaches()
    bridges.make(machine.bridge, machine.card, kind)
    assert machine.device(machine.bridge) == WHOLE
    assert machine.reaches()
    bridges.undo(machine.bridge)
    assert machine.device(machine.card) == WHOLE


def test_a_port_of_open_vswitch_is_taken_into_no_other_bridge(ovs: OpenVSwitch, machine: Machine) -> None:
    bridges, other = machine.bridges(ovs), machine.net.name("r")
    bridges.make(machine.bridge, machine.card, "ovs-userspace")
    with pytest.raises(NetworkError, match=f"{machine.card} is a port of {machine.bridge} already"):
        bridges.make(other, machine.card, "ovs-userspace")
    with pytest.raises(NetworkError, match=f"{machine.bridge} is a bridge itself"):
        bridges.make(other, machine.bridge, "ovs-userspace")
    bridges.undo(machine.bridge)
    assert machine.device(machine.card) == WHOLE


def test_a_command_of_ip_that_fails_is_named_with_its_reason() -> None:
    with pytest.raises(NetworkError) as caught:
        commands.ip_batch(["link show dev lo", "link set absent0 up"])
    assert str(caught.value) == 'ip link set absent0 up: Cannot find device "absent0"'


def test_a_program_that_is_not_there_is_said_not_to_be_installed() -> None:
    with pytest.raises(NetworkError, match=r"^lark-absent is not installed: it is in none of /usr/local/sbin:"):
        commands.run(["lark-absent", "show"])


def test_what_is_not_its_own_stays_alone(ovs: OpenVSwitch, machine: Machine) -> None:
    bridges = machine.bridges(ovs)
    with pytest.raises(NetworkError, match=f"there is no interface absent0 here; there are: .*{machine.card}"):
        bridges.make(machine.bridge, "absent0", "linux")
    run(["ip", "link", "add", machine.bridge, "type", "bridge"])
    with pytest.raises(NetworkError, match="is there already, and was not made by this command"):
        bridges.make(machine.bridge, machine.card, "linux")
    run(["ip", "link", "set", machine.card, "master", machine.bridge])
    with pytest.raises(NetworkError, match=f"{machine.card} is a part of {machine.bridge} already; take it out first"):
        bridges.make(machine.net.name("r"), machine.card, "linux")


def test_the_command(
    machine: Machine, ovs: OpenVSwitch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LARK_WORKER_STATE_DIR", str(machine.state))
    monkeypatch.setenv("LARK_WORKER_OVS_DATABASE", f"unix:{ovs.database_socket}")
    assert cli.main(["bridge", "make", machine.bridge, machine.card, "--kind", "linux", "--wait", "0"]) == 0
    said = capsys.readouterr().out
    assert f"undo it with: lark-worker bridge undo {machine.bridge}" in said
    assert f"addresses and routes at {machine.bridge}, none at {machine.card}" in said
    assert cli.main(["bridge", "undo", machine.bridge, "--json"]) == 0
    assert f"{machine.card} is no longer a port of {machine.bridge}" in json.loads(capsys.readouterr().out)["steps"]
    assert cli.main(["bridge", "undo", machine.bridge]) == 1
    assert "was not made by this command" in capsys.readouterr().err
