"""A bridge with several controllers, made by the commands of the how-to page."""

from __future__ import annotations

import json
import shlex

import pytest

from lab.openvswitch import OpenVSwitch
from tests.install.pages import HOW_TO, blocks

PAGE = HOW_TO / "open-vswitch.md"
HOSTS = ("192.0.2.10", "192.0.2.11")


@pytest.mark.ovs
def test_a_bridge_has_several_controllers_and_stays_secure(own_ovs: OpenVSwitch) -> None:
    bridge = "larkseveral"
    own_ovs.add_bridge(bridge, dpid=1, controller="tcp:127.0.0.1:1")
    block = next(each for each in blocks(PAGE.read_text("utf-8")) if "--id=@a" in each).replace("\\\n", " ")
    command, *arguments = shlex.split(block.replace("br0", bridge))
    assert command == "ovs-vsctl"
    own_ovs.vsctl(*arguments)
    columns = ("target", "connection_mode", "max_backoff", "inactivity_probe")
    listed = json.loads(own_ovs.vsctl("--format=json", f"--columns={','.join(columns)}", "list", "controller"))
    rows = sorted((dict(zip(listed["headings"], row, strict=True)) for row in listed["data"]), key=str)
    wanted = {"connection_mode": "out-of-band", "max_backoff": 1000, "inactivity_probe": 5000}
    assert rows == [wanted | {"target": f"ssl:{host}:6653"} for host in HOSTS]
    assert own_ovs.vsctl("get-fail-mode", bridge).strip() == "secure"
