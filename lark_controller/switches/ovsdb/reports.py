"""Reports about the queues of a switch, and their way to the reconcile loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lark_common.limits import Bucket
from lark_controller.qos.queues import PortQueues

# Of the loop's time the reports about one switch may take so much, and so many seconds of it at once: a report about a
# switch with 400 jobs takes 4 ms there.
LOOP_SHARE: Final = 0.1
LOOP_AT_ONCE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """The queues in force on one switch.

    ``revision`` is that of the desired value that this is about. ``ports`` are the queues in force, None as long as
    that is not known. ``reason`` is why nothing is known or done now (``""``: it is), ``problems`` by port why
    its queues are not made, and ``ineffective`` why queues that are made have no effect on this switch. ``waited`` are
    the seconds, by port and queue, in which the worker service found packets waiting, ``dropped`` the packets that each
    has dropped.
    """

    datapath: int
    revision: int
    ports: Mapping[str, PortQueues] | None = None
    reason: str = ""
    problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ineffective: str = ""
    waited: Mapping[tuple[str, int], float] = field(default_factory=lambda: MappingProxyType({}))
    dropped: Mapping[tuple[str, int], int] = field(default_factory=lambda: MappingProxyType({}))


class LatestReports:
    """Reports that are on their way to the loop, of each switch the latest alone: a database that changes without a
    pause takes neither memory nor more than its part of the loop's time. ``hand_over`` has a function called on the
    loop with a value, and ``take`` is for the loop."""

    def __init__(
        self, hand_over: Callable[[Callable[[int], object], int], object], take: Callable[[Report], object]
    ) -> None:
        self._hand_over = hand_over
        self._take = take
        self._lock = threading.Lock()
        self._latest: dict[int, Report] = {}
        # For the loop alone.
        self._times: dict[int, Bucket] = {}

    def put(self, report: Report) -> None:
        """Hand a report to the loop; for the driver's thread."""
        with self._lock:
            waits = report.datapath in self._latest
            self._latest[report.datapath] = report
        if not waits:
            self._hand_over(self._arrived, report.datapath)

    def _arrived(self, datapath: int) -> None:
        now = time.monotonic()
        spent = self._times.setdefault(datapath, Bucket(LOOP_SHARE, LOOP_AT_ONCE, now))
        if (pause := spent.take(0.0, now)) > 0:
            asyncio.get_running_loop().call_later(pause, self._arrived, datapath)
            return
        with self._lock:
            report = self._latest.pop(datapath)
        began = time.thread_time()
        try:
            self._take(report)
        finally:
            spent.take(time.thread_time() - began, now)
