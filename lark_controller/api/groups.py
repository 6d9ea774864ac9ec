"""Accounting groups as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass

from lark_controller.accounting.usage import IDLE, NOTHING, Rate, Usage


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """An accounting group of the running policy and how many live jobs it takes.

    ``rate`` is what they send and receive now, ``usage`` what they and others before have since this controller's
    start. ``core_drops`` are the packets that the group's queues and meters on cores dropped since then.
    """

    name: str
    jobs: int
    dscp: int
    queue: int | None = None
    guarantee: float | None = None
    ceiling: float | None = None
    port: str | None = None
    rate: Rate = IDLE
    usage: Usage = NOTHING
    core_drops: int = 0
