"""Checks by OpenFlow's counters whether queues deliver what they promise; a missed guarantee is an event.

For the reconcile loop's thread; what is for the audit trail is returned to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from lark_common.errors import SwitchError
from lark_common.limits import Buckets
from lark_common.log import WARNING, event
from lark_controller.api.metrics import Metrics
from lark_controller.api.switches import SwitchProblem
from lark_controller.api.workers import Delivered
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import SetQueue
from lark_controller.qos.delivery import (
    Counters,
    Delivery,
    at_both,
    deliveries,
)
from lark_controller.reconcile.queues import Promise, Queues
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.switches.openflow.link import SwitchLink

CATEGORY: Final = 0xFFFFFF << 40
# A guarantee that is missed again and again goes into the audit trail once in so many seconds.
TELL_SECONDS: Final = 3600.0
# All jobs may miss guarantees at a time; older ones are forgotten, and recorded again.
_REMEMBERED: Final = 10_000
# Lines of the log about missed guarantees of one worker or switch, whose counters may be any: at once, and a second
# afterwards.
LINES_AT_ONCE: Final = 16
LINES: Final = 1 / 10


@dataclass(frozen=True, slots=True)
class Missed:
    """A guarantee that was missed, for the audit trail: the job's or the switch's id, and a sentence."""

    subject: str
    text: str


class _Look(NamedTuple):
    """A reading of a switch's queues, and their guarantees (bits a second), by port and queue."""

    counted: Mapping[tuple[str, int], Counters]
    promised: Mapping[tuple[str, int], int]


class _Reported(NamedTuple):
    """A reading of a worker's queues, as :class:`_Look`, by job and the queue's name."""

    counted: Mapping[tuple[str, str], Counters]
    promised: Mapping[tuple[str, str], int]


_NEVER: Final = _Look({}, {})


class Guarantees:
    """The last reading of each switch's queues."""

    def __init__(self, loop: Reconciler, metrics: Metrics) -> None:
        self._loop = loop
        self._metrics = metrics
        self._before: dict[int, _Look] = {}
        self._before_at: dict[str, _Reported] = {}
        self._reported_at: dict[str, float] = {}
        self._lines = Buckets(LINES, LINES_AT_ONCE)

    async def look(self, datapath: int) -> list[Missed]:
        """Compare what a switch's queues have sent since the last reading with their guarantees.

        Returns the missed guarantees that were not returned for a while.
        """
        state = self._loop.switches.get(datapath)
        promises = self._loop.queues.promises(datapath)
        if state is None or state.link is None or not promises:
            self._before.pop(datapath, None)
            return []
        link = state.link
        try:
            now = await self._count(link, self._loop.queues)
        except SwitchError as error:
            event("queues not counted", level=WARNING, datapath=dpid_text(datapath), reason=error)
            return []
        promised = {key: promise.least for key, promise in promises.items()}
        before, self._before[datapath] = self._before.get(datapath, _NEVER), _Look(now, promised)
        found = []
        for key, delivery in deliveries(before.counted, now, at_both(before.promised, promised)):
            self._metrics.guarantees_checked.inc()
            if delivery.missed:
                missed = self._missed(datapath, key, promises[key], delivery)
                if self._is_new(promises[key].job or f"{dpid_text(datapath)} {promises[key].group}"):
                    found.append(missed)
        return found

    def reported(self, host: str, queues: Mapping[tuple[str, str], Delivered]) -> tuple[int, list[Missed]]:
        """Take in a reading of a worker's queues.

        Returns how many guarantees were missed since the last one, and those that were not returned for a while.
        """
        jobs = {placed.job.id for placed in self._loop.desired.ruled_at(host)}
        known = {key: each for key, each in queues.items() if key[0] in jobs}
        if not known:
            self._before_at.pop(host, None)
            return 0, []
        now = _Reported(
            {key: each.counted for key, each in known.items()}, {key: each.promised for key, each in known.items()}
        )
        before, self._before_at[host] = self._before_at.get(host, _Reported({}, {})), now
        count, found = 0, []
        for (job, queue), delivery in deliveries(before.counted, now.counted, at_both(before.promised, now.promised)):
            self._metrics.guarantees_checked.inc()
            if delivery.missed:
                count += 1
                self._metrics.guarantees_missed.inc()
                if not self._lines.take(host):
                    _missed_event({"host": host, "queue": queue, "job": job}, delivery)
                if self._is_new(job):
                    found.append(Missed(job, _sentence(self._called(job), f"uplink {queue} of {host}", delivery)))
        return count, found

    def _called(self, job_id: str) -> str:
        job = self._loop.directory.by_id.get(job_id)
        return f"job {job_id}" if job is None else f"job {job.called} of {job.owner}"

    def _is_new(self, whose: str) -> bool:
        now = time.monotonic()
        if now - self._reported_at.get(whose, -TELL_SECONDS) < TELL_SECONDS:
            return False
        self._reported_at.pop(whose, None)
        while len(self._reported_at) >= _REMEMBERED:
            del self._reported_at[next(iter(self._reported_at))]
        self._reported_at[whose] = now
        return True

    def _missed(self, datapath: int, key: tuple[str, int], promise: Promise, delivery: Delivery) -> Missed:
        where = {"datapath": dpid_text(datapath), "port": key[0], "queue": key[1]}
        self._metrics.guarantees_missed.inc()
        if not self._lines.take(datapath):
            _missed_event({**where, "job": promise.job, "group": promise.group}, delivery)
        whose = self._called(promise.job) if promise.job else f"group {promise.group}"
        text = _sentence(whose, f"port {key[0]}", delivery)
        problem = SwitchProblem(time.time(), f"guarantee missed: {text}", "", promise.job)
        self._loop.switches[datapath].problems.append(problem)
        return Missed(promise.job or dpid_text(datapath), text)

    async def _count(self, link: SwitchLink, queues: Queues) -> dict[tuple[str, int], Counters]:
        names = {port.number: port.name for port in link.features.ports.values()}
        counted = await link.queue_stats()
        at = time.monotonic()
        offered = await self._offered(link)
        waited = queues.waited(link.datapath)
        ports = {number: {each.port for each in counted if each.queue == number} for number in offered}
        return {
            (names[each.port], each.queue): Counters(
                at,
                each.bytes,
                each.errors,
                # Through which of several ports a flow's packets left is not known.
                offered.get(each.queue) if len(ports.get(each.queue, ())) == 1 else None,
                waited.get((names[each.port], each.queue)),
            )
            for each in counted
            if each.port in names
        }

    async def _offered(self, link: SwitchLink) -> dict[int, int]:
        """The bytes that jobs' own flows sent to each queue."""
        counters = await link.counters(cookie(Category.JOB), CATEGORY)
        flows = self._loop.desired_of(link.datapath).build(link.datapath).flows
        offered: dict[int, int] = {}
        for key, (_, size) in counters.items():
            data = flows.get(key)
            for action in () if data is None else data.actions:
                if isinstance(action, SetQueue):
                    offered[action.queue] = offered.get(action.queue, 0) + size
        return offered


def _missed_event(where: Mapping[str, object], delivery: Delivery) -> None:
    event(
        "guarantee missed",
        level=WARNING,
        **where,
        promised=f"{delivery.promised / 1e6:g}",
        delivered=f"{delivery.delivered / 1e6:.1f}",
        seconds=f"{delivery.seconds:.0f}",
    )


def _sentence(whose: str, where: str, delivery: Delivery) -> str:
    return (
        f"{whose} got {delivery.delivered / 1e6:.1f} of {delivery.promised / 1e6:g} Mb/s at {where} for"
        f" {delivery.seconds:.0f} s, and had more to send"
    )
