"""Problems of a switch: those that are over go, and whatever a switch says takes bounded memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_common.log import LOGGER
from lark_controller.api.audit import AuditEntry
from lark_controller.flows.placement import Switch
from lark_controller.policies.model import SwitchRole
from lark_controller.reconcile.switch import KEPT_PROBLEMS, LINES_AT_ONCE, SwitchState, links_told
from lark_controller.switches.openflow.ports import Ports
from lark_controller.switches.openflow.replies import PortInfo

EDGE = 1


def look(state: SwitchState, *ports: PortInfo) -> list[str]:
    """The events that a look at these ports leads to; each is an uplink."""
    link = cast("Any", SimpleNamespace(features=SimpleNamespace(ports=Ports(ports))))
    state.link = link
    switch = Switch(EDGE, "worker1", SwitchRole.EDGE, uplinks=tuple(port.number for port in ports))
    return [happening.detail for happening in state.note_links(link, switch)]


def uplink(name: str, *, up: bool = True) -> PortInfo:
    return PortInfo(1, name, "02:00:00:00:00:01", up, False)


def test_a_link_that_is_up_again_is_no_problem_any_more() -> None:
    state = SwitchState(EDGE)
    assert look(state, uplink("eth0")) == []
    assert look(state, uplink("eth0", up=False)) == ["uplink eth0 of worker1 is down"]
    assert look(state) == []
    assert [each.problem for each in state.all_problems] == ["uplink eth0 of worker1 is down"]
    assert look(state, uplink("eth0")) == ["uplink eth0 of worker1 is up again"]
    assert state.all_problems == []


def test_a_port_that_is_renamed_while_it_is_down_ends_under_its_own_name() -> None:
    state = SwitchState(EDGE)
    look(state, uplink("eth0"))
    assert look(state, uplink("eth0", up=False)) == ["uplink eth0 of worker1 is down"]
    assert look(state, uplink("eth1", up=False)) == [
        "uplink eth0 of worker1 is called eth1 now",
        "uplink eth1 of worker1 is down",
    ]
    assert [each.problem for each in state.all_problems] == ["uplink eth1 of worker1 is down"]
    assert look(state, uplink("eth1")) == ["uplink eth1 of worker1 is up again"]
    assert look(state, uplink("eth0", up=False)) == ["uplink eth0 of worker1 is down", "port eth1 of worker1 is gone"]
    assert look(state, uplink("eth1")) == [
        "uplink eth0 of worker1 is called eth1 now",
        "uplink eth1 of worker1 is up again",
    ]


def test_the_next_controller_knows_which_links_were_told_as_down() -> None:
    lines = [
        ("link down", "WAN port wan of core1 is down; nothing takes its place"),
        ("link down", "LAN port a of core1 is down"),
        ("link down", "uplink b c of core1 is down"),
        ("switch gone", "core1: away"),
        ("link up", "LAN port a of core1 is up again"),
        ("link not watched", "uplink b c of core1 is called d now"),
        ("link down", "port e of core1 is gone"),
    ]
    entries = [AuditEntry(number, 0.0, "controller", action, "c0", text) for number, (action, text) in enumerate(lines)]
    assert links_told(entries) == {(True, "wan"): "WAN port", (False, "e"): "port"}


def test_a_port_that_is_renamed_again_and_again_takes_bounded_memory() -> None:
    state = SwitchState(EDGE)
    for number in range(3 * KEPT_PROBLEMS):
        look(state, uplink(f"eth{number}"))
    assert state.links is not None
    assert len(state.links) == KEPT_PROBLEMS + 1
    assert len(state.all_problems) == KEPT_PROBLEMS
    # The newest are kept.
    assert look(state, uplink(f"eth{3 * KEPT_PROBLEMS - 2}"))[0] == "uplink eth298 of worker1 is up again"


def test_a_link_that_comes_and_goes_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    state = SwitchState(EDGE)
    with caplog.at_level("INFO", LOGGER):
        for number in range(2_000):
            look(state, uplink("eth0", up=bool(number % 2)))
    assert 0 < len(caplog.records) <= LINES_AT_ONCE + 2
