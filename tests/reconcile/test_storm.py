"""Everything at once: jobs come and end, switches and ports go away and refuse, policies change; nothing is left."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import LarkError, UnsupportedError
from lark_controller.api.jobs import JobFilter
from lark_controller.controller import Controller
from tests.fixtures.controllers import (
    POLICY,
    a_core,
    an_edge,
    connect,
    post,
    running,
    until,
)

RULES = POLICY.replace("max_rules: 60, ", "") + "  - connectivity: {inbound: requested, outbound: requested}\n"
ASKED = ("", "InboundConnectivity=false", "OutboundConnectivity=false")


def come_and_go(controller: Controller, slot: int, jobs: int) -> None:
    """A slot's jobs, one after the other; some are not ended, and their slot's next supersedes them."""
    chance = random.Random(slot)
    for number in range(jobs):
        try:
            job = post(
                controller, chance.randrange(1, 250), chance.choice(("alice", "bob", "mallory")), slot=f"slot{slot}",
                port=f"p{chance.randrange(1, 4)}", datapath=chance.randrange(1, 4), started=number + 1,
                address=f"10.64.{slot}.{chance.randrange(1, 250)}", attributes=chance.choice(ASKED),
            ).job  # fmt: skip
            if chance.random() < 0.3:
                controller.jobs.confirm(job.id, 0.1)
            if chance.random() < 0.2:
                controller.switches.explain(job.id, "192.0.2.1", 5)
            if chance.random() < 0.1:
                controller._registration.quarantine(job.id, "the pool says otherwise", "pool")
            if chance.random() < 0.9:
                controller.jobs.end(job.id, "hook")
        except LarkError:
            # Two may have wanted one port, or a switch was away: that is said, and no fault.
            continue


def change_policies(controller: Controller, times: int) -> None:
    for number in range(times):
        # A switch whose probe of connection tracking was refused has none, and then the policy is refused.
        with suppress(UnsupportedError):
            controller.policy.put(RULES.replace('"mallory"', f'"mallory{number}"'), "ops")


def fail(network: FakeNetwork, controller: Controller, switches: list[FakeSwitch], times: int) -> None:
    chance, fate = random.Random(9), random.Random(10)

    def now_and_then(_: object) -> bool:
        return fate.random() < 0.02

    for number in range(times):
        switch = chance.choice(switches)
        if number % 3 == 0:
            network.run(switch.disconnect)
            network.call(switch.connect(*controller.openflow_addresses[0]))
        elif number % 3 == 1:
            port = switch.ports[12]
            network.run(partial(switch.change_port, port, ofp.OFPPR_DELETE))
            network.run(partial(switch.change_port, port, ofp.OFPPR_ADD))
        else:
            network.run(partial(switch.fail_on, now_and_then, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL))
            controller.switches.all()
            network.run(switch.fail_nothing)


def test_after_a_storm_nothing_is_left_anywhere(
    tmp_path: Path, network: FakeNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, RULES, check_seconds=0.5, counter_seconds=0.3) as controller:
        edges, core = [an_edge(number, tracks=True) for number in (1, 2, 3)], a_core()
        for switch in (*edges, core):
            connect(network, controller, switch)
        idle = [dict(switch.program.flows) for switch in (*edges, core)]
        with ThreadPoolExecutor(5) as storm:
            parts = [storm.submit(come_and_go, controller, slot, 120) for slot in (1, 2, 3)]
            parts.append(storm.submit(change_policies, controller, 40))
            parts.append(storm.submit(fail, network, controller, edges, 60))
            for part in parts:
                part.result(120)
        for edge in edges:
            # What a switch can do is found out anew: a probe may have been refused.
            network.run(edge.disconnect)
            network.call(edge.closed.wait())
            network.call(edge.connect(*controller.openflow_addresses[0]))
        for job in controller.jobs.page(JobFilter(), None, 1000).jobs:
            controller.jobs.end(job.id, "hook")
        controller.policy.put(RULES, "ops")
        until(lambda: [dict(switch.program.flows) for switch in (*edges, core)] == idle)
        until(lambda: all(switch.in_sync for switch in controller.switches.all()))
        loop, registration = controller._reconciler, controller._registration
        until(lambda: not controller._upkeep.unwritten)
        seen = loop.confirmations
        left = {
            "directory": loop.directory.by_id,
            "placed": loop.desired.placed,
            "moved": loop.pair.moved,
            "awaited": seen._jobs,
            "waiters": seen._waiters,
            "open at switches": seen._open,
            "standings": loop.directory.standings,
            "addresses": loop.directory.by_address,
            "ports": registration._held._ports,
            "decisions": [memory.decisions for memory in loop._reactions._memory.values() if memory.decisions],
            "workers": [state.needs for state in loop.workers.states._states.values() if state.needs],
        }
        assert {name: held for name, held in left.items() if held} == {}
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
