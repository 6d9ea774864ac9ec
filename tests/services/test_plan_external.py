"""The plan of a policy with external addresses: its flows are those that the change then brings and takes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import ExternalAddressError, RuleLimitError, StateError
from lark_controller.api.external import ExternalWish
from lark_controller.controller import Controller
from lark_controller.flows.diff import diff
from lark_controller.flows.model import Program
from lark_controller.flows.text import flow_text
from lark_controller.jobs.external import listed
from lark_controller.services import policy_plan
from tests.fixtures.controllers import POLICY, a_core, an_edge, connect, network, post, running, until

__all__ = ["network"]

UNLIMITED: Final = POLICY.replace("max_rules: 60, ", "").replace("10.64.0.0/16]", '10.64.0.0/16, "2001:db8:64::/64"]')
POOLS: Final = """external:
  pools: {public: [203.0.113.64/29], fast: {networks: [203.0.113.128/29], port: wan-fast}}
  rules:
"""
BOTH: Final = "    - {pool: public, open: [tcp/80, udp/5000-5003], per_user: 9}\n"
SECTIONS: Final = (
    "",
    POOLS + BOTH,
    POOLS + BOTH.replace("tcp/80, udp/5000-5003", "tcp/443"),
    POOLS + BOTH.replace("tcp/80, udp/5000-5003", "any"),
    POOLS + BOTH.replace("pool: public", "pool: fast"),
    POOLS + BOTH.replace("pool: public", "pool: [public, fast]"),
    POOLS + BOTH.replace("{pool", "{when: 'Owner == \"alice\"', pool"),
    POOLS.replace("[203.0.113.64/29]", "{networks: [203.0.113.64/29], port: wan}") + BOTH,
    POOLS.replace("203.0.113.64/29", "203.0.113.66") + BOTH,
    POOLS + BOTH + "    - {family: ipv6, open: [tcp/80], per_user: 9}\n",
)
RULES: Final = (
    "",
    "  - wan: {when: 'Owner == \"alice\"', port: wan-fast}\n",
    "  - block: {when: 'Owner == \"carol\"'}\n",
    "  - connectivity: {when: 'Owner == \"alice\"', inbound: deny}\n",
    "  - slice: {by: Owner}\n",
)


def settled(controller: Controller, text: str) -> None:
    """Wait until nothing follows from the policy in force any more."""
    until(lambda: controller.policy.plan(text).switches == ())
    until(lambda: all(each.in_sync for each in controller.switches.all()))


def changed(switch: FakeSwitch, before: Program) -> set[str]:
    """The lines of a plan by which a switch differs from what it held."""
    changes = diff(switch.program, before)
    lines = {f"+ {flow_text(flow.key, flow.data)}" for flow in changes.flows_set}
    return lines | {f"- {flow_text(key, before.flows[key])}" for key in changes.flows_gone}


def held(switch: FakeSwitch) -> Program:
    return Program(dict(switch.program.flows), dict(switch.program.meters))


@pytest.mark.parametrize("section", [SECTIONS[0], SECTIONS[2], SECTIONS[4]])
def test_the_flows_of_an_external_address_that_a_policy_takes_are_in_its_plan(
    tmp_path: Path, network: FakeNetwork, section: str
) -> None:
    given = UNLIMITED + SECTIONS[1]
    with running(tmp_path, given) as controller:
        core = a_core()
        connect(network, controller, core)
        connect(network, controller, an_edge())
        job = post(controller, 1).job
        controller.external.associate(ExternalWish(job.id), "test")
        settled(controller, given)
        before = held(core)
        plan = controller.policy.plan(UNLIMITED + section)
        assert plan.jobs_changed == 1
        (flows,) = plan.switches
        controller.policy.put(UNLIMITED + section, "ops")
        settled(controller, UNLIMITED + section)
        changes = diff(core.program, before)
        gone = {key for key in before.flows if key not in core.program.flows}
        assert len(gone) == flows.removed > 10
        assert len(changes.flows_set) == flows.added + flows.changed
        assert flows.total == len(core.program.flows)


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_equals_its_effect(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(policy_plan, "SAMPLE", 100_000)
    chosen = random.Random(seed)
    with running(tmp_path, UNLIMITED + SECTIONS[1]) as controller:
        switches = {0xC0: a_core(), 1: an_edge(hardware="Open vSwitch"), 2: an_edge(2, hardware="Open vSwitch")}
        for switch in switches.values():
            connect(network, controller, switch)
        jobs = []
        for number, owner in enumerate(("alice", "bob", "carol", "alice", "carol"), 1):
            v6 = f'LarkInnerAddressIPv6 = "2001:db8:64::{number}"'
            jobs.append(
                post(controller, number, owner, datapath=1 + number % 2, port=f"p{(number + 1) // 2}", more=v6).job
            )
        lost = 0
        for _ in range(20):
            for job in chosen.sample(jobs, 4):
                wish = ExternalWish(
                    job.id, listed(chosen.choice(["", "tcp/80", "udp/5001"])), family=chosen.choice([4, 6])
                )
                try:
                    controller.external.associate(wish, "test")
                except (ExternalAddressError, StateError):
                    continue
            text = controller.policy.version.text
            settled(controller, text)
            before = {datapath: held(switch) for datapath, switch in switches.items()}
            rules = "".join(chosen.sample(RULES, 2))
            new = UNLIMITED.replace("policies:\n", f"policies:\n{rules}") + chosen.choice(SECTIONS)
            if chosen.random() < 0.5:
                limit = len(switches[0xC0].program.flows) + chosen.randrange(-20, 20)
                new = new.replace("role: core, ", f"role: core, max_rules: {limit}, ")
            plan = controller.policy.plan(new)
            if plan.refusals:
                with pytest.raises(RuleLimitError):
                    controller.policy.put(new, "ops")
                continue
            had = len(controller.external.page().associations)
            controller.policy.put(new, "ops")
            settled(controller, new)
            lost += had - len(controller.external.page().associations)
            planned = {int(each.datapath, 16): set(each.sample) for each in plan.switches}
            for datapath, switch in switches.items():
                assert changed(switch, before[datapath]) == planned.get(datapath, set()), (seed, datapath, new)
        assert lost > 10
