"""Lark taken off a core switch, by the commands of the page: what passes afterwards."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "production.md"
LARKS, OTHERS = "cookie=0x1a4b030000000003,table=0,priority=50,actions=NORMAL", "cookie=0x99,table=3,actions=drop"


def command(program: str) -> list[str]:
    """The words of the page's one command of a program, behind its name."""
    (line,) = re.findall(rf"(?m)^    {program} (.*)$", PAGE.read_text())
    return shlex.split(line)


@pytest.fixture
def core(ovs: OpenVSwitch, net: Net) -> str:
    """A core switch with a flow of Lark's and one of somebody else's, whose controller is gone."""
    name = f"{net.prefix}c"
    ovs.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure",
              "protocols=OpenFlow13", "--", "set-controller", name, "tcp:127.0.0.1:9")  # fmt: skip
    for flow in (LARKS, OTHERS):
        ovs.ofctl(name, "add-flow", flow)
    return name


def cookies(ovs: OpenVSwitch, bridge: str) -> list[str]:
    return re.findall(r"cookie=(0x[0-9a-f]+)", ovs.ofctl(bridge, "dump-flows"))


@pytest.mark.ovs
def test_it_is_a_plain_switch_again(ovs: OpenVSwitch, core: str) -> None:
    ovs.vsctl(*(core if word == "BRIDGE" else word for word in command("ovs-vsctl")))
    assert re.findall(r"priority=0 actions=NORMAL", ovs.ofctl(core, "dump-flows"))
    assert cookies(ovs, core) == ["0x0"]


@pytest.mark.ovs
def test_larks_own_flows_go_and_others_stay(ovs: OpenVSwitch, core: str) -> None:
    *options, action, bridge, match = command("ovs-ofctl")
    # The version that Lark's bridges speak alone, which is not what the program begins with.
    assert (options, bridge) == (["-O", "OpenFlow13"], "BRIDGE")
    ovs.ofctl(core, action, match)
    assert cookies(ovs, core) == ["0x99"]
