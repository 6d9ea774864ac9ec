"""A backup that no flow uses, for want of next hops: nothing that is shown says that it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.api.switches import WanPortStatus
from lark_controller.services import policy
from tests.fixtures.controllers import a_core, an_edge, connect, post, running, until
from tests.services.test_wan_down import PORTS, _set

CORE = f"{0xC0:016x}"
PATIENCE = 30.0
BARE = PORTS.replace('{port: 2, next_hop: "02:00:00:00:ff:01"}', "{port: 2, backup: wan-fast}").replace(
    '{port: 3, next_hop: "02:00:00:00:ff:02"}', "3"
)
UNKNOWN = "WAN port wan of core1 is down, and it is not known whether its router is found by wan-fast"


@pytest.mark.parametrize("declared", [BARE, BARE.replace("{port: 2, backup: wan-fast}", "2")], ids=["backup", "none"])
def test_a_backup_that_no_flow_uses_is_shown_as_none(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, declared: str
) -> None:
    monkeypatch.setattr(policy, "REACH_SECONDS", 0.0)
    with running(tmp_path, declared) as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        for number, owner in enumerate(("alice", "bob", "carol"), 1):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)

        def explained(source: str) -> tuple[str, str]:
            found = controller.switches.explain(source, "192.0.2.1", PATIENCE)
            return found.verdict, found.reason

        def wan() -> dict[str, tuple[str, str]]:
            return {each.owner: (each.wan, each.wan_reason) for each in controller.policy.reach().parties}

        assert explained("10.64.0.1") == ("forwarded", "core1 sends it to the WAN by wan, wan-fast")
        network.call(_set(core, 2, up=False))
        until(lambda: bool(controller.switches.find(CORE).problems))
        assert [each.problem for each in controller.switches.find(CORE).problems] == [
            "WAN port wan is down; nothing takes its place"
        ]
        assert explained("10.64.0.1") == ("unknown", f"core1 sends it as a plain switch would: {UNKNOWN}")
        assert controller.switches.wan_ports() == (
            WanPortStatus(CORE, "wan", up=False, replaced=False),
            WanPortStatus(CORE, "wan-fast", up=True, replaced=False),
        )
        # A rule's port needs nobody to find the router.
        assert explained("10.64.0.3") == ("forwarded", "core1 sends it to the WAN by wan-fast")
        assert wan() == {"alice": ("unknown", UNKNOWN), "bob": ("none", ""), "carol": ("all", "")}
        assert controller.drops.now(5).down == ()
        network.call(_set(core, 3, up=False))
        until(lambda: len(controller.drops.now(5).down) == 2)
        assert explained("10.64.0.1")[0] == "dropped"
        network.call(_set(core, 2, up=True))
        until(lambda: wan()["alice"] == ("all", ""))


def test_a_backup_of_a_port_that_a_rule_names_is_used_for_what_the_rule_steers(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, BARE.replace("port: wan-fast}", "port: wan}")) as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        for number, owner in enumerate(("alice", "carol"), 1):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        network.call(_set(core, 2, up=False))
        until(lambda: bool(controller.switches.find(CORE).problems))
        assert [each.problem for each in controller.switches.find(CORE).problems] == [
            "WAN port wan is down; wan-fast is used"
        ]
        assert controller.switches.wan_ports()[0] == WanPortStatus(CORE, "wan", up=False, replaced=True)
        steered = replace(controller.switches.explain("10.64.0.2", "192.0.2.1", PATIENCE), steps=())
        assert (steered.verdict, steered.reason) == ("forwarded", "core1 sends it to the WAN by wan-fast")
        assert controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE).verdict == "unknown"
