"""A WAN port that is down with nothing in its place, in all that shows what is dropped or reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.drops import DropsByDown
from lark_controller.api.external import ExternalWish
from lark_controller.controller import Controller
from lark_controller.jobs.external import Association
from lark_controller.services import policy
from tests.fixtures.controllers import a_core, an_edge, connect, post, running, until

PORTS = """
version: 1
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    ports: {lan: 1, wan: {port: 2, next_hop: "02:00:00:00:ff:01"}, wan-fast: {port: 3, next_hop: "02:00:00:00:ff:02"}}
policies:
  - block: {when: 'Owner == "mallory"'}
  - wan: {when: 'Owner == "bob"', action: drop}
  - wan: {when: 'Owner == "carol"', port: wan-fast}
"""
PATIENCE = 30.0


async def _set(switch: FakeSwitch, port: int, up: bool) -> None:
    switch.change_port(replace(switch.ports[port], up=up))


def _wan(controller: Controller) -> dict[str, tuple[str, str]]:
    return {each.owner: (each.wan, each.wan_reason) for each in controller.policy.reach().parties}


def test_jobs_whose_wan_port_is_down_are_named_where_drops_and_reach_are_shown(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "REACH_SECONDS", 0.0)
    with running(tmp_path, PORTS) as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        owners = ("alice", "bob", "carol", "mallory", "carol")
        jobs = [post(controller, number, owner).job for number, owner in enumerate(owners, 1)]
        for job in jobs[:3]:
            controller.jobs.confirm(job.id, 20)
        assert controller.drops.now(5).down == ()
        assert _wan(controller)["carol"] == ("all", "")

        network.call(_set(core, 3, up=False))
        fast = DropsByDown("wan-fast", ("core1",), 2)
        until(lambda: controller.drops.now(0).down == (fast,))
        alice, bob, carol = (controller.drops.of_job(5, job.id).down for job in jobs[:3])
        assert (alice, bob, carol) == ((), (), (replace(fast, jobs=1),))
        assert controller.drops.now(5, "carol").down == (fast,)
        assert controller.drops.now(5, "alice").down == ()
        reason = "WAN port wan-fast of core1 is down, and nothing takes its place"
        assert _wan(controller) == {
            "alice": ("all", ""), "bob": ("none", ""), "carol": ("none", reason), "mallory": ("none", ""),
        }  # fmt: skip
        explained = controller.switches.explain("10.64.0.3", "192.0.2.1", PATIENCE).reason
        assert explained == "core1 sends it to the WAN by wan-fast, which is down"

        # Another policy steers others.
        controller.policy.put(PORTS.replace('"carol"', '"alice"'), "test")
        until(lambda: controller.drops.now(0).down == (replace(fast, jobs=1),))
        assert controller.drops.now(5, "carol").down == ()
        controller.policy.put(PORTS, "test")
        until(lambda: controller.drops.now(0).down == (fast,))

        # The port by which what no rule steers leaves.
        network.call(_set(core, 2, up=False))
        until(lambda: set(controller.drops.now(0).down) == {fast, DropsByDown("wan", ("core1",), 1)})
        assert _wan(controller)["alice"][0] == "none"
        explained = controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE).reason
        assert explained == "core1 sends it to the WAN by wan, which is down"

        network.call(_set(core, 2, up=True))
        network.call(_set(core, 3, up=True))
        until(lambda: controller.drops.now(0).down == ())
        assert _wan(controller)["carol"] == ("all", "")
        for job in jobs:
            controller.jobs.end(job.id, "test")
        until(lambda: not +controller.drops._reconciler.desired.leaving)


def test_a_port_whose_backup_is_up_drops_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    backed = PORTS.replace("wan-fast: {port: 3, next_hop", "wan-fast: {port: 3, backup: wan, next_hop")
    assert backed != PORTS
    with running(tmp_path, backed) as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        carol = post(controller, 1, "carol").job
        controller.jobs.confirm(carol.id, 20)
        network.call(_set(core, 3, up=False))
        until(lambda: controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE).reason.endswith("by wan"))
        assert controller.drops.now(0).down == ()
        assert _wan(controller)["carol"] == ("all", "")
        network.call(_set(core, 2, up=False))
        until(lambda: controller.drops.now(0).down == (DropsByDown("wan-fast", ("core1",), 1),))


def test_an_external_address_at_a_port_that_is_down_is_pending_with_the_port(
    tmp_path: Path, network: FakeNetwork
) -> None:
    pools = "{public: {networks: [198.51.100.64/30], port: wan-fast, switch: core1}, wide: [203.0.113.0/30]}"
    rules = "[{when: 'Owner == \"carol\"', pool: public, open: [tcp/80]}, {pool: wide, open: [tcp/80]}]"
    with running(tmp_path, f"{PORTS}external: {{pools: {pools}, rules: {rules}}}\n") as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        carol, alice = (post(controller, number, owner).job for number, owner in enumerate(("carol", "alice"), 1))
        at_port, anywhere = (
            controller.external.associate(ExternalWish(job.id), "test").association for job in (carol, alice)
        )

        def told(association: Association) -> tuple[str, str]:
            return tuple(map(str, controller.external.standing(association)))  # type: ignore[return-value]  # of two

        until(lambda: told(at_port) == told(anywhere) == ("open", ""))
        network.call(_set(core, 3, up=False))
        down = "pending", "WAN port wan-fast of core1 is down, and nothing takes its place"
        until(lambda: told(at_port) == down)
        explained = controller.switches.explain("192.0.2.1", str(at_port.address), PATIENCE).reason
        assert explained == "it would come from the WAN by wan-fast, which is down"
        assert told(anywhere) == ("open", "")
        # Calls come by the other port still, and no answer leaves.
        network.call(_set(core, 2, up=False))
        network.call(_set(core, 3, up=True))
        until(lambda: told(anywhere) == ("pending", "WAN port wan of core1 is down, and nothing takes its place"))
        until(lambda: told(at_port) == ("open", ""))
        network.call(_set(core, 3, up=False))
        both = "WAN ports wan, wan-fast of core1 are down, and nothing takes their place"
        until(lambda: told(anywhere) == ("pending", both))
        network.call(_set(core, 2, up=True))
        until(lambda: told(anywhere) == ("open", ""))
