"""A plan says how many live jobs would wait for switches that are not connected, and for which."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.external import ExternalWish
from lark_controller.controller import Controller
from lark_controller.jobs.external import listed
from lark_controller.jobs.job import JobState
from tests.fixtures.controllers import a_core, an_edge, connect, network, post, running, until

__all__ = ["network"]

ONE: Final = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}
external: {pools: {public: [203.0.113.64/29]}, rules: [{pool: public, open: [tcp/80]}]}
policies:
  - block: {when: 'Owner == "mallory"'}
  - wan: {when: 'Owner == "carol"', port: wan-fast}
  - wan: {when: 'Owner == "bob"', action: drop}
  - wan: {when: 'Owner == "dan"', action: allow}
"""
# One that no job is steered to by itself.
TWO: Final = ONE.replace(
    "external:", '  core9: {datapath: "00000000000000c9", role: core, ports: {lan: 1, wan: 2}}\nexternal:'
)
MORE: Final = TWO.replace("allow", "drop")
WAITS: Final = "is pending, as switch core9 has not connected yet"
NO_MORE: Final = "no longer waits for switch core9, which has not connected yet"


def _effects(controller: Controller, text: str) -> dict[tuple[str, ...], int]:
    plan = controller.policy.plan(text)
    assert sum(each.jobs for each in plan.effects) == plan.jobs_changed
    return {each.changes: each.jobs for each in plan.effects}


def test_a_plan_counts_the_jobs_that_would_wait_for_a_core_that_has_not_connected(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, ONE) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, an_edge(2))
        connect(network, controller, a_core())
        owners = ("alice", "bob", "carol")
        jobs = [post(controller, number, owner).job for number, owner in enumerate(owners, 1)]
        owners = ("carol", "mallory", "dan")
        jobs += [
            post(controller, number, owner, datapath=2, port=f"p{number - 3}").job
            for number, owner in enumerate(owners, 4)
        ]

        def waiting() -> dict[str, str]:
            now = [controller.jobs.detail(job.id).job for job in jobs]
            return {each.id: each.owner for each in now if each.state is JobState.PENDING and "core9" in each.reason}

        def becomes(*owners: str) -> None:
            """Wait until jobs of these users, and no others, wait for the core."""
            try:
                until(lambda: sorted(waiting().values()) == sorted(owners), 10)
            except AssertionError:
                assert sorted(waiting().values()) == sorted(owners)

        assert _effects(controller, ONE) == {}
        # By an external address, too: its packets may come by any core.
        controller.external.associate(ExternalWish(jobs[0].id, listed("tcp/80")), "ops")
        planned = controller.policy.plan(TWO)
        assert _effects(controller, TWO) == {(WAITS,): 4}
        controller.policy.put(TWO, "ops")
        becomes("alice", "bob", "carol", "carol")
        assert {each.job_id for each in planned.jobs} == set(waiting())
        assert _effects(controller, TWO) == {}
        assert _effects(controller, ONE) == {(NO_MORE,): 4}
        # Another rule for the same jobs makes them wait, or lets them go.
        assert _effects(controller, MORE) == {("WAN rule in line 12 applies: drop", WAITS): 1}
        controller.policy.put(MORE, "ops")
        becomes("alice", "bob", "carol", "carol", "dan")
        assert _effects(controller, TWO) == {("WAN rule in line 12 applies: allow", NO_MORE): 1}
        controller.policy.put(TWO, "ops")
        becomes("alice", "bob", "carol", "carol")
        controller.policy.put(ONE, "ops")
        becomes()

        # One that is here lets nobody wait.
        connect(network, controller, FakeSwitch(0xC9, {1: "l", 2: "w"}))
        assert _effects(controller, TWO) == {}
