"""A declared core that has not connected since the start: nobody knows what it does with packets."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.services import policy
from tests.fixtures.controllers import a_core, an_edge, connect, post, running, until
from tests.services.test_explain import PATIENCE
from tests.services.test_wan_down import PORTS

UNSEEN = "core1 has not connected yet"
# A second core, which has the only port to which carol's jobs are steered.
SECOND = PORTS.replace(', wan-fast: {port: 3, next_hop: "02:00:00:00:ff:02"}', "").replace(
    "policies:",
    '  core2: {datapath: "00000000000000c2", role: core, ports: {lan: 1, wan-fast: 2}}\npolicies:',
)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_core_would_pass_that_has_not_connected_is_unknown(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    monkeypatch.setattr(policy, "REACH_SECONDS", 0.0)
    owners = ("alice", "bob", "carol")
    if restarted:
        with running(tmp_path, PORTS) as controller:
            connect(network, controller, an_edge())
            connect(network, controller, a_core())
            for number, owner in enumerate(owners, 1):
                controller.jobs.confirm(post(controller, number, owner).job.id, 20)
    with running(tmp_path, PORTS) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, an_edge(2))
        for number, owner in enumerate(owners, 1):
            post(controller, number, owner)
        other = post(controller, 4, "alice", datapath=2, port="p1").job
        controller.jobs.confirm(other.id, 20)

        def explained(source: str, target: str, owner: str | None = None) -> tuple[str, str]:
            found = controller.switches.explain(source, target, PATIENCE, owner)
            return found.verdict, found.reason

        for source, target in (
            ("10.64.0.3", "192.0.2.1"), ("10.64.0.1", "192.0.2.1"), ("192.0.2.1", "10.64.0.1"),
            ("10.64.0.1", "10.64.0.4"), ("10.64.0.1", "10.1.1.1"),
        ):  # fmt: skip
            verdict, reason = explained(source, target)
            assert (verdict, reason.endswith(UNSEEN)) == ("unknown", True), (source, target, reason)
        assert explained("10.64.0.3", "192.0.2.1", "carol") == ("unknown", "not every switch on its way could be asked")
        # No core is between these, and none could let this pass.
        assert explained("10.64.0.1", "10.64.0.3")[0] == "forwarded"
        assert explained("10.64.0.2", "192.0.2.1")[0] == "dropped"
        assert {each.owner: (each.wan, each.wan_reason) for each in controller.policy.reach().parties} == {
            "alice": ("unknown", UNSEEN), "bob": ("none", ""), "carol": ("unknown", UNSEEN),
        }  # fmt: skip

        connect(network, controller, a_core())
        until(lambda: explained("10.64.0.3", "192.0.2.1") == ("forwarded", "core1 sends it to the WAN by wan-fast"))
        assert explained("10.64.0.1", "10.64.0.4")[0] == "forwarded"
        assert {each.wan for each in controller.policy.reach().parties} == {"all", "none"}


def test_the_map_knows_the_way_of_jobs_that_leave_by_a_core_that_is_there(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "REACH_SECONDS", 0.0)
    with running(tmp_path, SECOND) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in enumerate(("alice", "carol"), 1):
            post(controller, number, owner)

        def wan() -> dict[str, tuple[str, str]]:
            return {each.owner: (each.wan, each.wan_reason) for each in controller.policy.reach().parties}

        assert wan() == {"alice": ("all", ""), "carol": ("unknown", "core2 has not connected yet")}
        connect(network, controller, FakeSwitch(0xC2, {1: "l", 2: "f"}))
        assert wan() == {"alice": ("all", ""), "carol": ("all", "")}
