"""Checks by OpenFlow's counters whether queues deliver what they promise; a missed guarantee is an event, and its end.

For the reconcile loop's thread; what is for the audit trail is returned to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lark_common.errors import SwitchError
from lark_common.limits import Buckets
from lark_common.log import WARNING, event
from lark_controller.api.audit import AuditEntry, Happening
from lark_controller.api.metrics import Metrics
from lark_controller.api.switches import SwitchProblem
from lark_controller.api.workers import Delivered
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import SetQueue
from lark_controller.flows.placement import Placed
from lark_controller.policies.model import GroupControl
from lark_controller.qos.delivery import (
    Counters,
    Delivery,
    at_both,
    deliveries,
)
from lark_controller.qos.queues import bits
from lark_controller.qos.topology import KILO
from lark_controller.reconcile.missed_guarantees import (
    MissedGuarantees,
    Reading,
    Whose,
    host_of_uplink,
    port_of_switch,
    uplink_of_worker,
)
from lark_controller.reconcile.queues import Promise, Queues
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import MissedNow, dpid_text
from lark_controller.switches.openflow.link import SwitchLink

CATEGORY: Final = 0xFFFFFF << 40
# Lines of the log about missed guarantees of one worker or switch, whose counters may be any: at once, and a second
# afterwards.
LINES_AT_ONCE: Final = 16
LINES: Final = 1 / 10


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
        self._missed_now = MissedGuarantees()
        self._lines = Buckets(LINES, LINES_AT_ONCE)

    def load(self, entries: Iterable[AuditEntry]) -> None:
        """Go on with the missed guarantees that a controller before has told, by its lines, the oldest first."""
        self._missed_now.load(entries, self._called, self._source_of)

    def ended(self) -> list[Happening]:
        """The ends of those missed guarantees whose jobs are over, that the policy has no more since the controller
        before, and that nobody reads any more."""
        return self._missed_now.look(self._loop.directory.by_id.__contains__, self._is_promised)

    async def look(self, datapath: int) -> list[Happening]:
        """Compare what a switch's queues have sent since the last reading with their guarantees.

        Returns the beginnings and ends of missed guarantees, for the audit trail.
        """
        state = self._loop.switches.get(datapath)
        promises = self._loop.queues.promises(datapath)
        if state is None or state.link is None or not promises:
            self._before.pop(datapath, None)
            if state is not None:
                state.missed = {}
            known = state is not None and state.link is not None and self._loop.queues.is_reported(datapath)
            return self._missed_now.read(datapath, {}, () if known else None)
        link = state.link
        try:
            now = await self._count(link, self._loop.queues)
        except SwitchError as error:
            event("queues not counted", level=WARNING, datapath=dpid_text(datapath), reason=error)
            # Of what is not read it is not known whether it is missed now.
            state.missed = {}
            return []
        promised = {key: promise.least for key, promise in promises.items()}
        before, self._before[datapath] = self._before.get(datapath, _NEVER), _Look(now, promised)
        found: dict[Whose, Reading] = {}
        missed: dict[tuple[str, int], MissedNow] = {}
        for key, delivery in deliveries(before.counted, now, at_both(before.promised, promised)):
            self._metrics.guarantees_checked.inc()
            whose = self._whose(datapath, key, promises[key])
            text = self._missed(datapath, key, promises[key], delivery) if delivery.missed else ""
            if text:
                missed[key] = _missed_now(text, promises[key], state.missed.get(key))
            _add(found, whose, delivery, text)
        state.missed = missed
        standing = [self._whose(datapath, key, promise) for key, promise in promises.items()]
        return self._missed_now.read(datapath, found, standing)

    def reported(self, host: str, queues: Mapping[tuple[str, str], Delivered]) -> tuple[int, list[Happening]]:
        """Take in a reading of a worker's queues.

        Returns how many guarantees were missed since the last one, and the beginnings and ends of missed ones.
        """
        jobs = {placed.job.id: placed for placed in self._loop.desired.ruled_at(host)}
        known = {key: each for key, each in queues.items() if key[0] in jobs}
        if not known:
            self._before_at.pop(host, None)
            return 0, self._missed_now.read(host, {}, ())
        # A part of what is left, which a queue has for certain as well, is promised to nobody.
        asked = {of: least for job in {job for job, _ in known} for of, least in _asked(jobs[job])}
        now = _Reported(
            {key: each.counted for key, each in known.items()},
            {
                (job, queue): min(each.promised, asked.get((job, queue.partition("/")[2]), each.promised))
                for (job, queue), each in known.items()
            },
        )
        before, self._before_at[host] = self._before_at.get(host, _Reported({}, {})), now
        count, found = 0, dict[Whose, Reading]()
        for (job, queue), delivery in deliveries(before.counted, now.counted, at_both(before.promised, now.promised)):
            self._metrics.guarantees_checked.inc()
            text = ""
            if delivery.missed:
                count += 1
                self._metrics.guarantees_missed.inc()
                if not self._lines.take(host):
                    _missed_event({"host": host, "queue": queue, "job": job}, delivery)
                text = _sentence(self._called(job), f"uplink {queue} of {host}", delivery)
            _add(found, self._whose_at(host, job, queue), delivery, text)
        standing = [self._whose_at(host, *key) for key in now.counted]
        return count, self._missed_now.read(host, found, standing)

    def _source_of(self, whose: Whose) -> Hashable | None:
        if whose.group:
            return int(whose.subject, 16)
        placed = self._placed(whose.subject)
        return host_of_uplink(whose.place) or (None if placed is None else placed.datapath)

    def _is_promised(self, whose: Whose) -> bool:
        """True where the policy promises something to a job or group at all; at which ports is for readings to say."""
        if whose.group:
            policy = self._loop.desired.policy
            spec = policy.switches.get(int(whose.subject, 16))
            has_queues = spec is not None and spec.group_control is GroupControl.QUEUES
            return has_queues and any(each.name == whose.group and each.guarantee for each in policy.groups)
        placed = self._placed(whose.subject)
        if placed is None:
            # Not decided about yet: a reading will say so.
            return True
        if placed.decision.isolated:
            return False
        share, job = placed.decision.bandwidth, placed.job
        limited = share is not None and share.rate(job.bandwidth) is not None
        return limited or any(not each.incoming for each in job.reserved)

    def _placed(self, job_id: str) -> Placed | None:
        job = self._loop.directory.by_id.get(job_id)
        return None if job is None else self._loop.desired.placed.get(job.number)

    def _called(self, job_id: str) -> str:
        job = self._loop.directory.by_id.get(job_id)
        return f"job {job_id}" if job is None else f"job {job.called} of {job.owner}"

    def _whose(self, datapath: int, key: tuple[str, int], promise: Promise) -> Whose:
        place = port_of_switch(key[0])
        if promise.job:
            return Whose(promise.job, "", self._called(promise.job), place)
        return Whose(dpid_text(datapath), promise.group or "", f"group {promise.group}", place)

    def _whose_at(self, host: str, job: str, queue: str) -> Whose:
        return Whose(job, "", self._called(job), uplink_of_worker(queue, host))

    def _missed(self, datapath: int, key: tuple[str, int], promise: Promise, delivery: Delivery) -> str:
        where = {"datapath": dpid_text(datapath), "port": key[0], "queue": key[1]}
        self._metrics.guarantees_missed.inc()
        if not self._lines.take(datapath):
            _missed_event({**where, "job": promise.job, "group": promise.group}, delivery)
        whose = self._whose(datapath, key, promise)
        return _sentence(whose.called, whose.place, delivery)

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


def _add(found: dict[Whose, Reading], whose: Whose, delivery: Delivery, missed: str) -> None:
    before = found.get(whose)
    found[whose] = Reading(delivery.seconds, missed if before is None else before.missed or missed)


def _asked(placed: Placed) -> Iterator[tuple[tuple[str, str], int]]:
    """The guarantees of a job's queues at its worker, in bits a second, by the job's id and the reservation's number
    (``""``: the job's own)."""
    job, share = placed.job, placed.decision.bandwidth
    if share is not None and (rate := share.rate(job.bandwidth)) is not None:
        yield (job.id, ""), bits(rate)
    for each in job.reserved:
        yield (job.id, str(each.number)), bits(each.kbps / KILO)


def _missed_now(text: str, promise: Promise, before: MissedNow | None) -> MissedNow:
    """A missed guarantee as a problem, which goes on since the look before where it was there."""
    same = before is not None and (before.job, before.group) == (promise.job, promise.group)
    at = before.problem.at if before is not None and same else time.time()
    return MissedNow(SwitchProblem(at, f"guarantee missed: {text}", "", promise.job), promise.job, promise.group)


def _missed_event(where: Mapping[str, object], delivery: Delivery) -> None:
    event(
        "guarantee missed",
        level=WARNING,
        **where,
        promised=f"{delivery.promised / 1e6:g}",
        delivered=_told_apart(delivery),
        seconds=f"{delivery.seconds:.0f}",
    )


def _sentence(whose: str, where: str, delivery: Delivery) -> str:
    return (
        f"{whose} got {_told_apart(delivery)} of {delivery.promised / 1e6:g} Mb/s at {where} for"
        f" {delivery.seconds:.0f} s, and had more to send"
    )


def _told_apart(delivery: Delivery) -> str:
    """The rate that was delivered (Mb/s), with as many digits as tell it apart from more that was promised."""
    delivered, promised = delivery.delivered / 1e6, delivery.promised / 1e6
    rounded = (f"{delivered:.{digits}f}" for digits in range(1, 6))
    return next((text for text in rounded if delivered >= promised or float(text) < promised), f"{delivered:.6f}")
