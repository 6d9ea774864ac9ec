"""The reasons why a switch makes no queues, or makes them without effect. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, Self

from lark_controller.qos.queues import DEFAULT_QUEUE, PortQueues, Queue
from lark_controller.switches.ovsdb.reports import Report
from lark_controller.switches.ovsdb.switch_database import READING

NO_DATABASE: Final = "the address of its database is not set (LARK_OVSDB)"
BEING_MADE: Final = "its queues are being made"


class NoQueue(str):
    """The reason why a job has no queue that it was promised, as it is shown; ``why`` is that without the word
    ``bandwidth``."""

    __slots__ = ("why",)
    why: str

    def __new__(cls, why: str) -> Self:
        """The reason out of its words."""
        made = super().__new__(cls, f"bandwidth: {why}")
        made.why = why
        return made


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
    """The groups with queues in a core's plan that are not kept by them, by DSCP, each with the reason in a sentence;
    ``stand`` are those whose queue is on every port that it is planned for."""
    found: dict[int, str] = {}
    for port, shares in sorted(planned.items()):
        why = "" if report is None else report.problems.get(port) or report.reason
        held = None if report is None or report.ports is None else report.ports.get(port)
        for dscp in shares.queues.keys() - {DEFAULT_QUEUE}:
            if not requested:
                found[dscp] = _without_effect(NO_DATABASE)
            elif report is not None and report.ineffective:
                found[dscp] = _without_effect(report.ineffective)
            elif dscp not in stand:
                if why or dscp not in found:
                    found[dscp] = _without_effect(why or BEING_MADE)
            elif why and (report is None or report.ports is None):
                found[dscp] = f"it is not known which rates its queue has: {why}"
            elif held is not None and (queue := held.queues.get(dscp)) not in (None, shares.queues[dscp]):
                found.setdefault(dscp, f"{_other(port, queue, shares.queues[dscp])}: {why or BEING_MADE}")
    return found


def _without_effect(why: str) -> str:
    return f"its queue is without effect: {why}"


def _other(port: str, held: Queue, wanted: Queue) -> str:
    """The rates that a queue has, in the place of those that it should have."""
    rates = (("a guarantee", held.least, wanted.least), ("a ceiling", held.most, wanted.most))
    said = [f"{what} of {has / 1e6:g} Mb/s and not {should / 1e6:g}" for what, has, should in rates if has != should]
    return f"its queue on port {port} has {' and '.join(said) or 'another priority'} still"
