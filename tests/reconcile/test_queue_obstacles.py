"""The reasons why a switch makes no queues, or without effect, as plans and groups have them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.reconcile.queue_obstacles import BEING_MADE, NO_DATABASE, group_obstacles, obstacle
from lark_controller.switches.ovsdb.driver import CONNECTING, READING, USERSPACE
from lark_controller.switches.ovsdb.reports import Report

PLANNED = {
    "wan": PortQueues(100, {0: Queue(1, 100), 7: Queue(50, 100), 8: Queue(10, 100)}),
    "lan": PortQueues(100, {0: Queue(1, 100), 7: Queue(50, 100)}),
}


@pytest.mark.parametrize(
    ("address", "report", "why"),
    [
        ("", None, NO_DATABASE),
        ("", Report(1, 1, {}), NO_DATABASE),
        # Nothing has been seen of it yet.
        ("unix:/db", None, ""),
        ("unix:/db", Report(1, 0, None, READING), ""),
        ("unix:/db", Report(1, 0, None, CONNECTING), CONNECTING),
        ("unix:/db", Report(1, 1, {}), ""),
        ("unix:/db", Report(1, 1, {}, ineffective=USERSPACE), USERSPACE),
        ("unix:/db", Report(1, 1, {}, "gone", ineffective=USERSPACE), USERSPACE),
    ],
)
def test_a_switch_that_would_make_no_queues(address: str, report: Report | None, why: str) -> None:
    assert obstacle(address, report) == why


@pytest.mark.parametrize(
    ("stand", "requested", "report", "found"),
    [
        ({7, 8}, True, Report(1, 1, PLANNED), {}),
        ({7}, True, Report(1, 1, PLANNED), {8: BEING_MADE}),
        (set(), True, None, {7: BEING_MADE, 8: BEING_MADE}),
        (set(), False, None, {7: NO_DATABASE, 8: NO_DATABASE}),
        # They stand, and packets do not wait there.
        ({7, 8}, True, Report(1, 1, PLANNED, ineffective=USERSPACE), {7: USERSPACE, 8: USERSPACE}),
        # The port that has it as a problem, whichever comes first.
        ({8}, True, Report(1, 1, {}, problems={"lan": "a foreign QoS"}), {7: "a foreign QoS"}),
        ({8}, True, Report(1, 1, {}, problems={"wan": "a foreign QoS"}), {7: "a foreign QoS"}),
        (set(), True, Report(1, 0, None, CONNECTING), {7: CONNECTING, 8: CONNECTING}),
    ],
)
def test_a_group_that_its_queues_do_not_keep(
    stand: set[int], requested: bool, report: Report | None, found: Mapping[int, str]
) -> None:
    assert group_obstacles(PLANNED, stand, requested, report) == found
