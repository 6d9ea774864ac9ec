"""Jobs that are not read since a start: of how many rates and drops are not known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork
from lark_controller.accounting.readings import PortReading, WorkerCounts
from lark_controller.reconcile import core_drops
from lark_controller.reconcile.core_drops import CoreDrops
from tests.fixtures.controllers import a_core, an_edge, connect, post, running, until
from tests.services.test_drops import sends

POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
policies:
  - block: {when: 'Owner == "mallory"'}
"""

CORE_POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: preprovisioned
    ports: {lan: 1, wan: 2}
groups:
  cms: {dscp: 10, queue: 3}
"""


def test_after_a_start_jobs_are_unread_until_they_are_read_twice(tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_edge()
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        connect(network, controller, edge)
        post(controller, 1, "mallory")
        nat = post(controller, 2, "bob", address="10.255.64.2", port=None, more='LarkNetworkType = "nat"').job
        post(controller, 3, "carol", address=None, port=None, more='LarkNetworkType = "none"')
        # They have just come: their first reading is their first rate.
        assert controller.drops.unread() == 0
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        assert (controller.drops.unread(), controller.drops.now(9).unread) == (2, 2)
        assert [controller.drops.now(9, owner).unread for owner in ("mallory", "bob", "carol")] == [1, 1, 0]
        used = controller.jobs.detail(nat.id).usage
        assert used is not None
        assert used.unread
        connect(network, controller, edge)
        until(lambda: controller.drops.unread("mallory") == 0)
        assert controller.drops.unread() == 1
        for packets in (1, 2):
            report = WorkerCounts(PortReading(packets, 1000 * packets, 0, 0))
            assert controller.usage.counted(nat.id, report, False)
        assert controller.drops.unread() == 0
        used = controller.jobs.detail(nat.id).usage
        assert used is not None
        assert not used.unread
        # A switch that is away cannot be read, and what comes there now neither.
        network.run(edge.disconnect)
        until(lambda: controller.drops.unread("mallory") == 1)
        post(controller, 4, "dora", address="10.64.0.4", port="p2")
        until(lambda: controller.drops.unread() == 2)
        connect(network, controller, edge)
        until(lambda: controller.drops.unread() == 0)


def test_what_a_core_drops_is_known_soon_after_a_start(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOON", "_TURN", "_LEAST"):
        monkeypatch.setattr(core_drops, name, 0.2)
    core = a_core()
    with running(tmp_path, CORE_POLICY, check_seconds=3600, counter_seconds=0) as controller:
        assert controller.drops.cores_unread() == 0  # It is away.
        connect(network, controller, core)
        assert (controller.drops.cores_unread(), controller.drops.now(9).cores_unread) == (1, 1)
        assert controller.drops.now(9, "bob").cores_unread is None
        until(lambda: controller.drops.cores_unread() == 0)
        controller.policy.put(CORE_POLICY + "# a comment\n", "test")
        assert controller.drops.cores_unread() == 0
        controller.policy.put(CORE_POLICY.replace("queue: 3", "queue: 4"), "test")
        assert controller.drops.cores_unread() == 1
        until(lambda: controller.drops.cores_unread() == 0)


def test_what_a_core_drops_is_read_as_often_as_counters_of_jobs(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOON", "_TURN", "_LEAST"):
        monkeypatch.setattr(core_drops, name, 0.1)
    looks = []
    count = CoreDrops._count

    async def counting(*given: Any) -> Any:
        looks.append(given)
        return await count(*given)

    monkeypatch.setattr(CoreDrops, "_count", counting)
    for seconds, is_read in ((0.1, True), (0, False)):
        core = a_core()
        with running(tmp_path, CORE_POLICY, check_seconds=3600, counter_seconds=seconds) as controller:
            connect(network, controller, core)
            until(lambda: controller.drops.cores_unread() == 0)
            looks.clear()
            if is_read:
                until(lambda: len(looks) >= 5)
            else:
                time.sleep(1.0)
                assert not looks
        network.run(core.disconnect)


def test_a_job_whose_port_is_gone_has_no_rate_of_now(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job = post(controller, 1, "mallory").job
        controller.jobs.confirm(job.id, 20)

        def drops() -> bool:
            sends(network, edge, job, "192.0.2.1")
            return controller.drops.now(9).jobs == 1

        until(drops)
        network.run(lambda: edge.change_port(edge.ports[11], ofp.OFPPR_DELETE))
        until(lambda: controller.drops.now(9).jobs == 0)
        assert controller.drops.unread() == 1
        assert controller.usage.flowing("job", 9) == ()


def test_jobs_that_the_policy_does_not_count_are_not_waited_for(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY, counter_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        post(controller, 1, "bob")
        controller.policy.put(POLICY + "accounting: requested\n", "test")
        until(lambda: controller.drops.uncounted() == 1)
        network.run(edge.disconnect)
        until(lambda: controller.drops.away() == 1)
        assert controller.drops.unread() == 0
        connect(network, controller, edge)
        assert controller.drops.unread() == 0
