"""Mistakes in what a bridge is to be made of are said before anything is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lark_worker import cli
from lark_worker.errors import NetworkError
from lark_worker.network import bridge_checks
from lark_worker.network.bridge_checks import (
    check_card,
    check_names,
    check_open_vswitch,
    check_rights,
    without_carrier,
)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a loopback interface, a free card, one in a bridge, a port of Open vSwitch, and a tunnel."""
    types = {"lo": 772, "eth0": 1, "eth1": 1, "br0": 1, "tun0": 65534, "eth2": 1, "ovs-system": 1}
    for name, kind in types.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(f"{kind}\n")
    (tmp_path / "br0" / "bridge").mkdir()
    (tmp_path / "eth1" / "master").symlink_to(tmp_path / "br0")
    (tmp_path / "eth2" / "master").symlink_to(tmp_path / "ovs-system")
    monkeypatch.setattr(bridge_checks, "DEVICES", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("bridge", "interface", "said"),
    [
        ("br1", "eth9", "there is no interface eth9 here; there are: eth0, eth1, eth2, ovs-system"),
        ("eth0", "eth0", "eth0 is the interface itself; the bridge needs a name of its own"),
        ("br1", "lo", "lo is the loopback interface; accepted: a network card (eth0, eth1, eth2, ovs-system)"),
        ("br1", "br0", "br0 is a bridge itself, and no bridge takes another one; name a card of its ports"),
        ("br1", "tun0", "tun0 is not of Ethernet; accepted: a network card (eth0, eth1, eth2, ovs-system)"),
        (
            "br1",
            "eth1",
            "eth1 is a part of br0 already; take it out first (ip link set eth1 nomaster), or name another interface",
        ),
        (
            "br1",
            "eth2",
            "eth2 is a port of Open vSwitch already; take it out first (ovs-vsctl del-port eth2), or name another "
            "interface",
        ),
        ("tun0", "eth0", "tun0 is there already, and was not made by this command; accepted: a name that is free"),
    ],
)
def test_what_is_no_card_or_is_taken(devices: Path, bridge: str, interface: str, said: str) -> None:
    with pytest.raises(NetworkError) as caught:
        check_card(bridge, interface)
    assert str(caught.value) == said


def test_a_card_of_its_own_and_a_free_name_are_accepted(devices: Path) -> None:
    check_card("br1", "eth0")
    check_names("br1", "eth0.42", "en-p1_0", "123456789012345")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "a:1", "1234567890123456", "br\n", "bré", "a%d", "all", "default"]
)
def test_a_name_that_no_device_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="is no name of a device; accepted: 1 to 15 characters other than"):
        check_names("br1", name)


@pytest.mark.parametrize(("user", "how"), [(1000, "run it as root"), (0, "in a container it needs the capability")])
def test_who_may_not_change_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, how: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(bridge_checks, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t0000000000000fff\n")
    with pytest.raises(NetworkError, match=f"^this command changes the machine's network, and may not: {how}"):
        check_rights(tmp_path)
    (tmp_path / "status").write_text("Name:\tx\nCapEff:\t0000000000001000\n")
    check_rights(tmp_path / "bridges")
    (tmp_path / "file").touch()
    with pytest.raises(NetworkError, match=r"file cannot be used \(.*\); it is in LARK_WORKER_STATE_DIR"):
        check_rights(tmp_path / "file")


def test_without_open_vswitch_the_other_kind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError) as caught:
        check_open_vswitch("br1", "eth0", ["lark-absent-vsctl"], "unix:/x")
    assert str(caught.value) == (
        "lark-absent-vsctl is not installed; install Open vSwitch (openvswitch-switch), or make a bridge of the "
        "kernel, which needs none: --kind linux"
    )

    def away(_command: list[str]) -> str:
        raise NetworkError("ovs-vsctl --db=unix:/x list-br: ovs-vsctl: unix:/x: no connection (No such file)")

    monkeypatch.setattr(bridge_checks, "run", away)
    with pytest.raises(NetworkError) as caught:
        check_open_vswitch("br1", "eth0", ["sh"], "unix:/x")
    assert str(caught.value).startswith(
        "Open vSwitch's database unix:/x does not answer (no connection (No such file)); start Open vSwitch, or set "
        "LARK_WORKER_OVS_DATABASE, or make a bridge of the kernel"
    )


@pytest.mark.parametrize(("carrier", "said"), [("0", True), ("1", False), (None, False)])
def test_a_card_without_carrier_says_so(devices: Path, carrier: str | None, said: bool) -> None:
    if carrier is not None:
        (devices / "eth0" / "carrier").write_text(f"{carrier}\n")
    assert without_carrier("eth0") == (": eth0 has no carrier (its cable, or the other end)" if said else "")


def test_the_command_says_it_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LARK_WORKER_STATE_DIR", str(tmp_path))
    for step in (["make", "../x", "eth0"], ["undo", "../x"]):
        assert cli.main(["bridge", *step]) == 1
        said = (
            "lark-worker: '../x' is no name of a device; accepted: 1 to 15 characters other than / : and %, and not "
            "all or default\n"
        )
        assert capsys.readouterr().err == said
