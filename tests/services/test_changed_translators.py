"""Policies that let other cores translate an external address, or none: its state is that of those."""

from __future__ import annotations

from pathlib import Path

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.external import ExternalWish
from lark_controller.jobs.external import listed
from tests.fixtures.controllers import OPEN, an_edge, connect, network, post, running, until

__all__ = ["network"]

POOL = """external:
  pools: {public: [198.51.100.64/28]}
  rules: [{pool: public, open: [tcp], per_user: 9}]
"""
NO_CORE = OPEN.replace("networks: {", "networks: {jobs: [10.64.0.0/16], ") + POOL
NO_GATEWAY = "no gateway that serves 198.51.100.64 is there"
AWAY = "has not connected yet"


def by(*cores: int, pool: int | None = None) -> str:
    """A policy with these cores, each named after its number, and where its pool is."""
    declared = [
        f'core{number}: {{datapath: "{0xC0 + number:016x}", role: core, ports: {{lan: 1, wan: 2}}}}' for number in cores
    ]
    text = NO_CORE.replace("policies:", f"switches: {{{', '.join(declared)}}}\npolicies:")
    if pool is None:
        return text
    return text.replace("[198.51.100.64/28]", f"{{networks: [198.51.100.64/28], switch: core{pool}}}")


def test_an_external_address_follows_those_who_translate_it(tmp_path: Path, network: FakeNetwork) -> None:
    first, second = (FakeSwitch(0xC0 + number, {1: "a", 2: "b"}) for number in (1, 2))
    with running(tmp_path, by(1)) as controller:
        for switch in (an_edge(), first):
            connect(network, controller, switch)
        job = post(controller, 1).job
        controller.jobs.confirm(job.id, 20)
        address = controller.external.associate(ExternalWish(job.id, listed("tcp/80")), "ops").association

        def becomes(state: str, reason: str = "") -> None:
            wanted = (state, reason), ("enforced", "") if state == "open" else (state, reason)

            def found() -> tuple[tuple[str, str], tuple[str, str]]:
                now = controller.jobs.detail(job.id).job
                return tuple(controller.external.standing(address)), (str(now.state), now.reason)  # type: ignore[return-value]

            try:
                until(lambda: found() == wanted, 10)
            except AssertionError:
                assert found() == wanted

        becomes("open")
        for text, state, reason in (
            (NO_CORE, "pending", NO_GATEWAY),
            (by(1), "open", ""),
            (by(3), "pending", f"switch core3: {AWAY}"),
            (NO_CORE, "pending", NO_GATEWAY),
            (by(1, 3), "pending", f"switch core3: {AWAY}"),
            (by(1), "open", ""),
            (by(1, 2, pool=1), "open", ""),
            (by(1, 2, pool=2), "pending", f"switch core2: {AWAY}"),
            (by(1, 2, pool=1), "open", ""),
            (by(1, 2, pool=2), "pending", f"switch core2: {AWAY}"),
        ):
            controller.policy.put(text, "ops")
            becomes(state, reason)
        connect(network, controller, second)
        becomes("open")
        # The first one has no part in it by now, whether it is there or not.
        network.run(first.disconnect)
        until(lambda: not controller.switches.find("core1").connected)
        controller.policy.put(by(1, 2, pool=1), "ops")
        until(lambda: controller.external.standing(address).state == "pending")
        assert "core1: is not connected" in controller.external.standing(address).reason
        controller.policy.put(by(1, 2, pool=2), "ops")
        becomes("open")
