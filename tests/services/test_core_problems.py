"""The problems of a core are those of now: one that is over goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork
from tests.fixtures.controllers import a_core, connect, running, until

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    ports: {lan: 1, wan: 2, wan-fast: 3}
policies:
  - wan: {when: 'Owner == "alice"', port: wan-fast}
"""
LACKS = "wan rule in line 11: the switch has no port wan-fast as it is declared"


def test_a_port_that_comes_is_no_longer_missing(tmp_path: Path, network: FakeNetwork) -> None:
    core = a_core()
    late = core.ports.pop(3)
    with running(tmp_path, POLICY) as controller:
        connect(network, controller, core)

        def problems() -> list[str]:
            return [each.problem for each in controller.switches.find("core1").problems if "wan rule" in each.problem]

        assert problems() == [LACKS]
        network.run(lambda: core.change_port(late, ofp.OFPPR_ADD))
        until(lambda: problems() == [])
        network.run(lambda: core.change_port(replace(late), ofp.OFPPR_DELETE))
        until(lambda: problems() == [LACKS])
