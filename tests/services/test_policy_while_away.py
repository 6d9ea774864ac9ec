"""Another policy while switches are away: what they should hold by it is known, and plans leave them out aloud."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import RuleLimitError
from lark_controller.api.switches import FlowFilter, SwitchStatus
from lark_controller.controller import Controller
from lark_controller.jobs.job import JobState
from tests.fixtures.controllers import a_core, an_edge, connect, jobs_flows, post, running, until
from tests.services.test_changed_places import by_its_host, standing
from tests.services.test_explain import PATIENCE

CORE = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches:
  core1: {datapath: "00000000000000c0", role: core, max_rules: 60, ports: {lan: 1, wan: 2, wan-fast: 3}}
policies:
  - slice: {by: Owner}
"""
# Others' traffic is dropped: on every edge there are more flows. Switches have the same places.
DROPS = CORE + "  - wan: {when: 'Owner == \"bob\"', action: drop}\n"
# One more switch is declared, so all places are looked at anew.
ONE_MORE = DROPS.replace("policies:", '  core2: {datapath: "00000000000000c2", role: core, ports: {lan: 1}}\npolicies:')
# The uplinks are others.
UPLINKS = DROPS.replace("policies:", 'edge: {uplinks: ["uplink*", "p3"]}\npolicies:')
# The flows are those that should be there.
UNASKED = "; not every switch could be asked"


def status(controller: Controller, datapath: int) -> SwitchStatus:
    return controller.switches.find(f"{datapath:016x}")


def goes(network: FakeNetwork, controller: Controller, switch: FakeSwitch) -> None:
    network.run(switch.disconnect)
    until(lambda: not status(controller, switch.datapath).connected)


@pytest.mark.parametrize("text", [DROPS, ONE_MORE, UPLINKS])
def test_what_switches_that_are_away_should_hold_is_known_by_another_policy(
    tmp_path: Path, network: FakeNetwork, text: str
) -> None:
    with running(tmp_path, CORE) as controller:
        edge, away, core = an_edge(), an_edge(2), a_core()
        for switch in (edge, away, core):
            connect(network, controller, switch)
        near, far = post(controller, 1, "bob").job, post(controller, 2, "alice", datapath=2).job
        for job in (near, far):
            controller.jobs.confirm(job.id, 20)

        def explained(source: str, target: str) -> tuple[str, str]:
            found = controller.switches.explain(source, target, PATIENCE)
            assert len(found.steps) > 2
            return found.verdict, found.reason

        def flows() -> int:
            page = controller.switches.flows(f"{2:016x}", FlowFilter(), None, 1000, 5)
            assert {each.state for each in page.flows} == {"desired"}
            return len(page.flows)

        goes(network, controller, away)
        goes(network, controller, core)
        before = status(controller, 2)
        assert before.desired == before.installed == flows()
        to_the_wan = explained(far.id, "192.0.2.1")
        assert (to_the_wan[0], to_the_wan[1].endswith(UNASKED)) == ("unknown", True)

        controller.policy.put(text, "ops")
        while_away, of_core = status(controller, 2).desired, status(controller, 0xC0).desired
        assert while_away == flows()
        assert explained(far.id, "192.0.2.1") == to_the_wan
        verdict, reason = explained(near.id, far.id)
        assert verdict == "dropped" or (verdict == "unknown" and reason.endswith(UNASKED)), reason
        # What is posted, changes and ends meanwhile counts.
        post(controller, 3, "alice", datapath=2, port="p1")
        until(lambda: status(controller, 2).desired > while_away)
        assert status(controller, 2).desired == flows()
        assert controller.jobs.detail(far.id).job.reason.startswith(f"switch fake {2:016x}: is not connected (")

        more = status(controller, 2).desired
        connect(network, controller, away)
        connect(network, controller, core)
        assert status(controller, 2).desired == len(away.program.flows) == more
        assert status(controller, 0xC0).desired == len(core.program.flows)
        assert status(controller, 0xC0).desired >= of_core


def test_a_job_keeps_its_port_at_the_switch_of_its_host_that_is_away(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, CORE) as controller:
        # No ad and no policy says whose it is; the switch itself does.
        away = an_edge(2, description="worker9")
        connect(network, controller, away)
        # A port that came after the handshake.
        fourth = replace(away.ports[11], number=14, name="p4")
        network.run(lambda: away.change_port(fourth, ofp.OFPPR_ADD))
        job = by_its_host(controller, "p4")
        controller.jobs.confirm(job.id, 20)
        goes(network, controller, away)
        why = f"switch worker9: {status(controller, 2).reason}"
        until(lambda: standing(controller, job) == (JobState.PENDING, why))
        for text in (ONE_MORE, DROPS):
            controller.policy.put(text, "ops")
            assert standing(controller, job) == (JobState.PENDING, why)
            assert status(controller, 2).jobs == 1
            # The cores alone are not known.
            reason = controller.switches.explain(job.id, "10.1.1.1", PATIENCE).reason
            assert reason.startswith("by the switches that are known: forwarded, it leaves")
        connect(network, controller, away)
        until(lambda: standing(controller, job) == (JobState.ENFORCED, ""))
        assert jobs_flows(away, job.number)


def test_a_switch_that_is_away_keeps_no_policy_from_being_put(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, CORE) as controller:
        core = a_core()
        connect(network, controller, core)
        few = ONE_MORE.replace("max_rules: 60", "max_rules: 1")
        with pytest.raises(RuleLimitError, match="switch core1 takes 1 rules"):
            controller.policy.put(few, "ops")
        goes(network, controller, core)
        controller.policy.put(few, "ops")
        needed = status(controller, 0xC0).desired
        assert needed > 1
        network.call(core.connect(*controller.openflow_addresses[0]))
        until(lambda: status(controller, 0xC0).reason.startswith(f"needs {needed} rules and takes 1; nothing was sent"))


def test_a_plan_says_which_switches_it_leaves_out(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, CORE) as controller:
        first, second, core = an_edge(), an_edge(2, description="worker2"), a_core()

        def left_out() -> list[str]:
            plan = controller.policy.plan(DROPS)
            assert len(plan.switches) == sum(each.connected for each in controller.switches.all())
            return [each for each in plan.warnings if "away" in each]

        # One that is declared and has not come yet.
        assert left_out() == ["1 switch is away, core1: what changes there is not counted"]
        for switch in (first, second, core):
            connect(network, controller, switch)
        assert left_out() == []
        goes(network, controller, second)
        assert left_out() == ["1 switch is away, worker2: what changes there is not counted"]
        goes(network, controller, core)
        # One that has not come yet, and has jobs.
        post(controller, 1, datapath=9)
        assert left_out() == [f"3 switches are away, such as {9:016x}: what changes there is not counted"]
