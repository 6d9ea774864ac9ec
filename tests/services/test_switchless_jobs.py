"""A job at no switch: nobody knows what becomes of its packets."""

from __future__ import annotations

from pathlib import Path

from fake_switch.switch import FakeNetwork
from lark_common.classads.ads import parse_post
from tests.fixtures.controllers import OPEN, an_edge, connect, post, running, until
from tests.services.test_explain import PATIENCE

AD = """Owner = "alice"
GlobalJobId = "s#2.0#1"
JobCurrentStartDate = 1
------
Machine = "worker8"
Name = "slot1@worker8"
LarkInnerMacAddress = "02:00:00:00:00:02"
LarkInnerAddressIPv4 = "10.64.0.2"
LarkExternalInterface = "p2"
"""


def test_explain_knows_nothing_of_a_job_for_whose_host_no_switch_is_known(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN) as controller:
        connect(network, controller, an_edge())
        there = post(controller, 1, "alice").job
        controller.jobs.confirm(there.id, 20)
        nowhere = controller.jobs.register(*parse_post(AD.encode(), "text/plain"), "hook").job
        why = "no switch is known for host worker8"
        until(lambda: controller.jobs.detail(nowhere.id).job.reason == why)
        for ends in (
            (there.id, nowhere.id),
            (nowhere.id, there.id),
            (nowhere.id, "192.0.2.1"),
            ("192.0.2.1", nowhere.id),
        ):
            found = controller.switches.explain(*ends, PATIENCE)
            assert (found.verdict, found.reason) == ("unknown", f"job 2.0 is at no switch: {why}")
