"""A declared core that has not connected since the start: nobody knows what it does with packets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.external import ExternalWish
from lark_controller.jobs.external import listed
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


SIX: Final = PORTS.replace("[10.64.0.0/16]", '[10.64.0.0/16, "2001:db8:64::/64"]')
STEERED: Final = SIX.replace(', wan-fast: {port: 3, next_hop: "02:00:00:00:ff:02"}', "")
BACKED: Final = SIX.replace("wan-fast: {port: 3, ", "wan-fast: {port: 3, backup: wan, ")
BY_WAN, BY_FAST = (f"core1 sends it to the WAN by {port}" for port in ("wan", "wan-fast"))


def _second(text: str, *ports: str) -> str:
    """The policy with a second core that has these WAN ports."""
    numbered = ", ".join(f"{port}: {number}" for number, port in enumerate(("lan", *ports), 1))
    declared = f'  core2: {{datapath: "00000000000000c2", role: core, ports: {{{numbered}}}}}\n'
    return text.replace("policies:", f"{declared}policies:")


def _unless(verdict: str, reason: str) -> tuple[str, str]:
    return "unknown", f"by the switches that are known: {verdict}, {reason}; core2 has not connected yet"


@pytest.mark.parametrize(
    ("text", "down", "alice", "carol"),
    [
        # None but the second has the port to which carol's jobs are steered.
        (_second(STEERED, "wan-fast"), (), ("forwarded", BY_WAN), _unless("forwarded", BY_WAN)),
        (_second(STEERED, "wan", "wan-fast"), (), ("forwarded", BY_WAN), _unless("forwarded", BY_WAN)),
        # Both have it.
        (_second(SIX, "wan-fast"), (), ("forwarded", BY_WAN), ("forwarded", BY_FAST)),
        (
            _second(SIX, "wan-fast"), (2, 3),
            _unless("dropped", f"{BY_WAN}, which is down"), _unless("dropped", f"{BY_FAST}, which is down"),
        ),
        (_second(BACKED, "wan-fast"), (3,), ("forwarded", BY_WAN), ("forwarded", BY_WAN)),
        (
            _second(BACKED, "wan-fast"), (2, 3),
            _unless("dropped", f"{BY_WAN}, which is down"), _unless("dropped", f"{BY_FAST}, which is down"),
        ),
        # The second has no way out.
        (_second(SIX), (), ("forwarded", BY_WAN), ("forwarded", BY_FAST)),
        (
            _second(SIX), (2, 3),
            ("dropped", f"{BY_WAN}, which is down"), ("dropped", f"{BY_FAST}, which is down"),
        ),
    ],
)  # fmt: skip
def test_explain_and_the_map_agree_on_a_core_that_has_not_connected(
    tmp_path: Path,
    network: FakeNetwork,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    down: tuple[int, ...],
    alice: tuple[str, str],
    carol: tuple[str, str],
) -> None:
    monkeypatch.setattr(policy, "REACH_SECONDS", 0.0)
    with running(tmp_path, text) as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        for number, owner in enumerate(("alice", "carol"), 1):
            post(controller, number, owner, more=f'LarkInnerAddressIPv6 = "2001:db8:64::{number}"')

        async def take_down() -> None:
            for port in down:
                core.change_port(replace(core.ports[port], up=False))

        network.call(take_down())

        def explained(source: str, target: str) -> tuple[str, str]:
            found = controller.switches.explain(source, target, PATIENCE)
            return found.verdict, found.reason

        for number, wanted in enumerate((alice, carol), 1):
            until(lambda: explained(f"10.64.0.{number}", "192.0.2.1") == wanted, 10)  # noqa: B023  # called at once
            assert explained(f"2001:db8:64::{number}", "2001:db8:1::1") == wanted
            inwards = "dropped" if down and "core2" in text and not _enters(text) else "unknown"
            for inward in (("192.0.2.1", f"10.64.0.{number}"), ("2001:db8:1::1", f"2001:db8:64::{number}")):
                verdict, reason = explained(*inward)
                assert (verdict, reason.endswith("; core2 has not connected yet")) == (inwards, inwards == "unknown")
        shown = {each.owner: (each.wan, each.wan_reason) for each in controller.policy.reach().parties}
        extents = {"forwarded": "all", "dropped": "none", "unknown": "unknown"}
        for owner, (verdict, _) in (("alice", alice), ("carol", carol)):
            assert shown[owner][0] == extents[verdict]
            assert (shown[owner][1] == "core2 has not connected yet") == (verdict == "unknown")

        connect(network, controller, FakeSwitch(0xC2, {1: "l", 2: "w", 3: "f"}))
        assert "unknown" not in {explained(f"10.64.0.{number}", "192.0.2.1")[0] for number in (1, 2)}
        assert explained("192.0.2.1", "10.64.0.2")[0] != "unknown"


def _enters(text: str) -> bool:
    """True where something comes from the WAN by the second core."""
    return "wan" in text[text.index("core2") : text.index("policies:")]


@pytest.mark.parametrize("core", [None, "core1"])
def test_a_call_of_an_external_address_may_come_by_a_core_that_has_not_connected(
    tmp_path: Path, network: FakeNetwork, core: str | None
) -> None:
    networks = "[198.51.100.64/30]" if core is None else f"{{networks: [198.51.100.64/30], switch: {core}}}"
    pools = f"external: {{pools: {{public: {networks}}}, rules: [{{pool: public, open: [tcp/80]}}]}}\npolicies:"
    with running(tmp_path, _second(SIX, "wan").replace("policies:", pools)) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        job = post(controller, 1).job
        controller.external.associate(ExternalWish(job.id, listed("tcp/80")), "ops")
        inward = controller.switches.explain("192.0.2.1", "198.51.100.64", PATIENCE)
        assert inward.verdict == ("unknown" if core is None else "forwarded")
        assert inward.reason.endswith("; core2 has not connected yet") == (core is None)
        outward = controller.switches.explain(job.id, "192.0.2.1", PATIENCE)
        assert (outward.verdict, outward.reason) == ("forwarded", f"{BY_WAN} as 198.51.100.64")
