"""The reasons why a switch makes no queues, or makes them without effect. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from lark_controller.qos.queues import DEFAULT_QUEUE, PortQueues
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import READING

NO_DATABASE: Final = "the address of its database is not set (LARK_OVSDB)"
BEING_MADE: Final = "its queues are being made"


def obstacle(address: str, report: Report | None) -> str:
    """The reason why a switch with its database at ``address`` (``""``: not set) would make no queue; ``""`` where none
    is known."""
    if not address:
        return NO_DATABASE
    if report is None or report.reason == READING:
        return ""
    return report.ineffective or report.reason


def group_obstacles(
    planned: Mapping[str, PortQueues], stand: Set[int], requested: bool, report: Report | None
) -> dict[int, str]:
    """The groups with queues in a core's plan that are not kept by them, by DSCP, each with the reason; ``stand`` are
    those whose queue is on every port that it is planned for."""
    found: dict[int, str] = {}
    for port, held in planned.items():
        for dscp in held.queues.keys() - {DEFAULT_QUEUE}:
            if not requested:
                found[dscp] = NO_DATABASE
            elif report is not None and report.ineffective:
                found[dscp] = report.ineffective
            elif dscp not in stand:
                why = "" if report is None else report.problems.get(port) or report.reason
                if why or dscp not in found:
                    found[dscp] = why or BEING_MADE
    return found
