"""ICMP errors at a core: translated by the controller, so many of each job, and a flood takes nothing from others."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.external import ExternalWish
from lark_controller.reconcile import icmp_errors
from tests.fixtures import frames
from tests.fixtures.controllers import POLICY, an_edge, connect, network, post, running, until

__all__ = ["network"]

SECTION = """
external:
  pools: {public: [198.51.100.64/28]}
  rules: [{pool: public, open: [udp], per_user: 2}]
"""
ROUTER, PEER = "203.0.113.1", "192.0.2.7"


def error(address: str, port: int, router: str = ROUTER) -> bytes:
    """An error about the datagram that an external address has sent to a port."""
    about = frames.ip(address, PEER, 17, frames.udp_payload(address, PEER, 80, port))[1]
    return frames.icmp("02:00:00:00:ff:02", "02:00:00:00:00:01", router, address, 11, rest=bytes(4) + about)


def test_a_flood_of_one_jobs_errors_is_cut_and_anothers_pass(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(icmp_errors, "JOB_RATE", 0.0)
    monkeypatch.setattr(icmp_errors, "JOB_BURST", 5.0)
    sent: list[bytes] = []
    with running(tmp_path, POLICY.replace("max_rules: 60, ", "") + SECTION) as controller:
        core = FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"})
        core.sent = lambda port, frame: sent.append(frame)
        for switch in (core, an_edge()):
            connect(network, controller, switch)
        given = []
        for number in (1, 2):
            job = post(controller, number).job
            given.append(controller.external.associate(ExternalWish(job.id), "ops").association.address)
            assert controller.jobs.confirm(job.id, 20).job.state == "enforced"
        for port in range(1, 200):
            network.run(lambda port=port: core.inject(2, error(str(given[0]), port)))  # type: ignore[misc]
        network.run(lambda: core.inject(2, error(str(given[1]), 9)))

        def quoted(job: int) -> set[bytes]:
            return {frame for frame in sent if frame[54:58] == bytes([10, 64, 0, job])}

        until(lambda: any(frame[64:66] == b"\0\t" for frame in quoted(2)))
        assert len(quoted(1)) == 5


def test_errors_of_a_router_with_an_address_among_the_jobs_find_the_job_by_its_address(
    tmp_path: Path, network: FakeNetwork
) -> None:
    router, sent = "10.64.255.1", list[bytes]()
    text = POLICY.replace("  local:", f"  hosts: [{router}]\n  local:").replace("max_rules: 60, ", "")
    with running(tmp_path, text + SECTION) as controller:
        core = FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"})
        core.sent = lambda port, frame: sent.append(frame)
        for switch in (core, an_edge()):
            connect(network, controller, switch)
        jobs = [post(controller, number).job for number in (1, 2)]
        given = [controller.external.associate(ExternalWish(job.id), "ops").association.address for job in jobs]
        assert [controller.jobs.confirm(job.id, 20).job.state for job in jobs] == ["enforced"] * 2
        # One that the loop has found to be closed, and an address that is no job's.
        controller._reconciler.directory.close(jobs[1].number, {given[1]: "no room"})
        for address in (str(given[1]), "198.51.100.79", str(given[0])):
            network.run(lambda address=address: core.inject(2, error(address, 9, router)))  # type: ignore[misc]
        until(lambda: sent)
        # A switch without NORMAL sends it out by more than one port.
        (made,) = set(sent)
        assert (made[26:30], made[30:34], made[54:58]) == (bytes([10, 64, 255, 1]), *[bytes([10, 64, 0, 1])] * 2)
