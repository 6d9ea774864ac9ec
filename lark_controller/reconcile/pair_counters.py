"""Reading the queues of reserved flows into the accounts of their pairs. For the reconcile loop's thread.

A switch's queues are read once in each round of counters, where jobs there have reserved flows, and once more when a
flow's reservation or its job is over: its queue goes after its flows, so it still stands when the request comes. A
worker reports those that it makes itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from lark_common.errors import SwitchError
from lark_common.log import failure
from lark_controller.accounting.pairs import PairLedger
from lark_controller.accounting.readings import FlowQueue
from lark_controller.api.workers import Delivered
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import Job
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.state import LoopState
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import QueueCounters

# Requests for all queues of a switch that may be under way here; more readings share the last of them.
MOST_ASKED: Final = 2
# Seconds for which the account of a pair that is over waits for its last counters.
LAST_SECONDS: Final = 5.0


class PairCounters:
    """Reads the queues of reserved flows, of switches and of workers' reports."""

    def __init__(self, pairs: PairLedger, loop: LoopState, queues: Queues) -> None:
        self._pairs, self._loop, self._queues = pairs, loop, queues
        # Readings of flows that are over, by the number of the job.
        self._last_of: dict[int, set[asyncio.Task[None]]] = {}
        # By connection, the requests under way.
        self._asked: dict[SwitchLink, list[asyncio.Task[list[QueueCounters]]]] = {}

    def follow(self, placed: Placed, before: Job | None = None) -> None:
        """Take the reserved flows of a job that is new or changed, and read those a last time that it has no more.
        ``before`` is the job as it was, None where it is new: flows that it had then have sent already."""
        if not placed.decision.accounted or not (placed.job.reserved or self._pairs.has(placed.job.number)):
            return
        present = _sent(placed.job)
        gone = set() if before is None else _sent(before) - present
        if gone and placed.datapath is not None:
            # Its queue is known until the switch's queues are calculated anew.
            last = self._read(placed.datapath, self._flows(placed.datapath, gone), LAST_SECONDS)
            self._start(placed.job.number, last)
        self._pairs.follow(placed.job, time.time(), set() if before is None else _sent(before))

    def end(self, number: int, placed: Placed) -> None:
        """Close the pairs of a job that is over; called before its flows are taken away."""
        if not self._pairs.has(number):
            return
        flows = {} if placed.datapath is None else self._flows(placed.datapath, _sent(placed.job))
        # A program gives its flows back just before its end.
        under_way = tuple(self._last_of.get(number, ()))
        if placed.datapath is None or not (flows or under_way):
            self._pairs.close(number, time.time())
        else:
            self._start(number, self._last(number, placed.datapath, flows, under_way))

    async def look(self, datapath: int) -> None:
        """Read the queues of a switch's reserved flows. Raises SwitchError."""
        # Jobs may be accounted by a new policy from now on. Most pools have no reserved flow.
        for placed in self._loop.desired_of(datapath).jobs_at(datapath):
            if placed.job.reserved or len(self._pairs):
                self.follow(placed, placed.job)
        if len(self._pairs):
            await self._read(datapath, self._queues.reserved_flows(datapath))

    async def read(self, placed: Placed, timeout: float) -> None:
        """Read the queues of a job's reserved flows now, as far as its switch answers within ``timeout`` seconds."""
        if placed.datapath is not None and self._pairs.has(placed.job.number):
            try:
                await self._read(placed.datapath, self._flows(placed.datapath, _sent(placed.job)), timeout)
            except SwitchError:
                return

    def reported(self, host: str, queues: Mapping[tuple[str, str], Delivered]) -> None:
        """Take in a worker's report of its own queues, whose names end with the number of the reserved flow."""
        jobs: dict[str, int] = {}
        for placed in self._loop.desired.ruled_at(host):
            self.follow(placed, placed.job)
            if self._pairs.has(placed.job.number):
                jobs[placed.job.id] = placed.job.number
        counted: dict[int, dict[str, FlowQueue]] = {}
        for (job, name), each in queues.items():
            port, _, number = name.partition("/")
            if job in jobs and number.isascii() and number.isdigit():
                waited = None if each.counted.waited is None else round(1000 * each.counted.waited)
                queue = FlowQueue(each.counted.sent, each.counted.dropped, waited)
                counted.setdefault(int(number), {})[port] = queue
        if counted:
            self._pairs.read(counted, time.time(), frozenset(jobs.values()))

    # -- internal

    def _flows(self, datapath: int, chosen: Iterable[int]) -> dict[int, int]:
        """The numbers of some reservations, by that of their queues at a switch."""
        wanted = set(chosen)
        flows = self._queues.reserved_flows(datapath)
        return {queue: number for queue, number in flows.items() if number in wanted}

    async def _last(
        self, number: int, datapath: int, flows: Mapping[int, int], under_way: Iterable[asyncio.Task[None]]
    ) -> None:
        try:
            # All requests leave at once, while the queues stand.
            await asyncio.gather(
                self._read(datapath, flows, LAST_SECONDS), asyncio.gather(*under_way, return_exceptions=True)
            )
        finally:
            self._pairs.close(number, time.time())

    async def _read(self, datapath: int, flows: Mapping[int, int], timeout: float | None = None) -> None:
        """Read the queues that flows have at a switch, those with these numbers. Raises SwitchError."""
        state = self._loop.switches.get(datapath)
        link = None if state is None else state.link
        if link is None or not flows:
            return
        counted = await self._counted(link, timeout)
        names = {port.number: port.name for port in link.features.ports.values()}
        dropped, waited = self._queues.dropped(datapath), self._queues.waited(datapath)
        found: dict[int, dict[str, FlowQueue]] = {}
        for each in counted:
            name = names.get(each.port)
            if each.queue in flows and name is not None:
                place = (name, each.queue)
                # There is none until the switch's database reports, and while it is away.
                seconds = waited.get(place)
                queue = FlowQueue(each.bytes, dropped.get(place), None if seconds is None else round(1000 * seconds))
                found.setdefault(flows[each.queue], {})[name] = queue
        self._pairs.read(found, time.time())

    async def _counted(self, link: SwitchLink, timeout: float | None) -> list[QueueCounters]:
        """The counters of all queues of a switch. Raises SwitchError.

        An application may give its flows back one after the other, and each answer has all queues.
        """
        asked = self._asked.setdefault(link, [])
        if len(asked) < MOST_ASKED:
            task = asyncio.get_running_loop().create_task(link.queue_stats(timeout))
            asked.append(task)
            task.add_done_callback(partial(self._answered, link))
        # A caller that gives up ends its own wait alone.
        return await asyncio.shield(asked[-1])

    def _answered(self, link: SwitchLink, task: asyncio.Task[list[QueueCounters]]) -> None:
        asked = self._asked[link]
        asked.remove(task)
        if not asked:
            del self._asked[link]
        if not task.cancelled():
            # Whether anybody still waits for the answer or not, its error is taken.
            task.exception()

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._last_of.setdefault(number, set()).add(task)
        task.add_done_callback(partial(self._done, number))

    def _done(self, number: int, task: asyncio.Task[None]) -> None:
        tasks = self._last_of[number]
        tasks.discard(task)
        if not tasks:
            del self._last_of[number]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SwitchError):
            failure("counters of reserved flows could not be read", error)


def _sent(job: Job) -> set[int]:
    """The numbers of the reserved flows that a job sends."""
    return {each.number for each in job.reserved if not each.incoming}
