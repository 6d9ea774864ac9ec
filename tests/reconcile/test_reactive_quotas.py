"""Reactive decisions are shared out by job: who asks for very many loses its own, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.controller import Controller
from lark_controller.flows.cookies import Category, parse
from lark_controller.jobs.job import Job
from lark_controller.reconcile import packet_ins
from tests.fixtures import frames
from tests.fixtures.controllers import OPEN, an_edge, connect, network, post, running, until

__all__ = ["network"]


@pytest.fixture
def edge(tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSwitch]:
    monkeypatch.setattr(packet_ins, "MAX_DECISIONS", 20)
    monkeypatch.setattr(packet_ins, "MAX_OF_JOB", 15)
    with running(tmp_path, OPEN) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        for number in (1, 2, 3):
            post(controller, number, f"user{number}")
        until(lambda: all(controller.jobs.confirm(view.id, 20) for view in _jobs(controller)))
        yield edge


def _jobs(controller: Controller) -> list[Job]:
    return list(controller._reconciler.directory.by_id.values())


def ask(network: FakeNetwork, edge: FakeSwitch, job: int, peer: int) -> None:
    mac, address = f"02:00:00:00:00:{job:02x}", f"10.64.0.{job}"
    frame = frames.udp(mac, "02:00:00:00:00:99", address, f"10.9.{peer >> 8}.{peer & 255}", 1000, 2000)
    network.run(lambda: edge.inject(10 + job, frame))


def peers(edge: FakeSwitch) -> set[int]:
    """The peers that are decided about, whichever job asked."""
    found = set()
    for key, data in edge.program.flows.items():
        if parse(data.cookie).category == Category.REACTIVE:
            found |= {term.value & 0xFFFF for term in key.match if term.name == "ipv4_dst"}
    return found


def test_a_jobs_own_oldest_decisions_go_first(network: FakeNetwork, edge: FakeSwitch) -> None:
    for peer in range(1, 31):
        ask(network, edge, 1, peer)
    until(lambda: peers(edge) == {*range(16, 31)})
    # One that went is decided again when it is asked again.
    ask(network, edge, 1, 1)
    until(lambda: peers(edge) == {1, *range(17, 31)})


def test_at_the_switchs_limit_a_quiet_job_is_decided_about(network: FakeNetwork, edge: FakeSwitch) -> None:
    ask(network, edge, 3, 500)
    for peer in range(100, 105):
        ask(network, edge, 2, peer)
    for peer in range(1, 41):
        ask(network, edge, 1, peer)
    until(lambda: len(peers(edge)) == 20)
    ask(network, edge, 3, 501)
    until(lambda: 501 in peers(edge))
    assert {500, 501, *range(100, 105)} <= peers(edge)
    assert len(peers(edge)) == 20


def test_decisions_of_jobs_that_ended_are_counted_no_longer(network: FakeNetwork, edge: FakeSwitch) -> None:
    for peer in range(1, 16):
        ask(network, edge, 1, peer)
    until(lambda: len(peers(edge)) == 15)
    for key, data in list(edge.program.flows.items()):
        if parse(data.cookie).category == Category.REACTIVE:
            network.run(partial(edge.expire, key))
    until(lambda: not peers(edge))
    for peer in range(50, 65):
        ask(network, edge, 1, peer)
    until(lambda: peers(edge) == {*range(50, 65)})
