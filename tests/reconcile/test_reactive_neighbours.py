"""Neighbour discovery between jobs of slices where the policy declares no job networks: asked once, and remembered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.runs import link_local
from lark_controller.api.switches import FlowFilter
from lark_controller.controller import Controller
from tests.fixtures import frames
from tests.fixtures.controllers import an_edge, connect, network, post, running

__all__ = ["network"]

POLICY = """
version: 1
networks: {local: [10.0.0.0/8, "2001:db8::/32"]}
policies: [{slice: {by: Owner}}]
"""
OWNERS = {1: "alice", 2: "bob", 3: "alice"}


@pytest.fixture
def placed(tmp_path: Path, network: FakeNetwork) -> Iterator[tuple[Controller, FakeSwitch]]:
    with running(tmp_path, POLICY) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        for number, owner in OWNERS.items():
            job = post(controller, number, owner, more=f'LarkInnerAddressIPv6 = "2001:db8::{number}"').job
            controller.jobs.confirm(job.id, 20)
        yield controller, edge


def mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def local(number: int) -> str:
    return str(link_local(mac(number)))


def asks(target: str, source: str) -> bytes:
    return frames.nd(mac(1), "33:33:ff:00:00:02", source, "ff02::1:ff00:2", target, sll=mac(1))


def asked(controller: Controller) -> int:
    return controller.switches.find("0000000000000001").packet_ins


def delivered(network: FakeNetwork, placed: tuple[Controller, FakeSwitch], frame: bytes) -> set[int]:
    """The ports at which a frame of the first job leaves, once whatever it asks about is decided."""
    controller, edge = placed
    for _ in range(20):
        before, flows = asked(controller), dict(edge.program.flows)
        found = {port for port, _ in network.run(lambda: edge.inject(11, frame))}
        # Behind everything that is under way between switch and controller.
        assert controller.switches.flows("0000000000000001", FlowFilter(), None, 1, 5).flows
        if (asked(controller), edge.program.flows) == (before, flows):
            return found
    raise AssertionError("asked about again and again")


@pytest.mark.parametrize("source", ["2001:db8::1", local(1)])
def test_only_ones_own_slice_is_asked_for_its_address(
    network: FakeNetwork, placed: tuple[Controller, FakeSwitch], source: str
) -> None:
    assert delivered(network, placed, asks("2001:db8::3", source)) == {13}
    assert delivered(network, placed, asks("2001:db8::2", source)) == set()
    assert delivered(network, placed, asks(local(2), source)) == set()


def test_a_solicitation_that_names_two_addresses_is_not_asked_about_for_ever(
    network: FakeNetwork, placed: tuple[Controller, FakeSwitch]
) -> None:
    frame = frames.nd(mac(1), mac(2), "2001:db8::1", "2001:db8::2", "2001:db8::3", sll=mac(1))
    assert delivered(network, placed, frame) == set()
    assert asked(placed[0]) < 10
