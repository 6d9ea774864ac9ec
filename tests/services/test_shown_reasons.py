"""The reason that a job shows is one of what it still waits for."""

from __future__ import annotations

from pathlib import Path

from fake_switch.switch import FakeNetwork
from tests.fixtures.controllers import POLICY, a_core, an_edge, connect, network, post, running, until

__all__ = ["network"]


def test_a_job_does_not_name_a_core_that_is_back_while_it_waits_for_others(
    tmp_path: Path, network: FakeNetwork
) -> None:
    core, edge = a_core(), an_edge(0xE1)
    with running(tmp_path, POLICY.replace("  - slice: {by: Owner}\n", "")) as controller:
        for switch in (core, edge):
            connect(network, controller, switch)
        for switch in (core, edge):
            network.run(switch.disconnect)
        until(lambda: not any(each.connected for each in controller.switches.all()))
        # Bob's traffic is the core's business; one is at the switch, the other's rules are its worker's.
        at_edge = post(controller, 1, "bob", datapath=0xE1).job
        at_none = post(controller, 2, "bob", port=None, more='LarkNetworkType = "bridge"').job

        def reasons() -> list[str]:
            shown = [controller.jobs.detail(job.id).job for job in (at_edge, at_none)]
            assert {each.state for each in shown} == {"pending"}
            return [each.reason.partition(":")[0] for each in shown]

        until(lambda: reasons() == ["switch core1"] * 2, 10)
        connect(network, controller, core)
        until(lambda: reasons() == [f"switch fake {0xE1:016x}", "worker worker1"], 10)
