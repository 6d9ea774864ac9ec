"""Reading the switches' counters into the accounts. Everything here is called on the event-loop thread.

A switch is asked for all its ports in one request and for all counting flows in another, one switch after the other,
spread over the interval; a slow one holds up nobody. What comes at a job's beginning and end is asked for on the same
connection before the flows come and go, so the switch answers with what was counted until then.

Switches are offered to instances that stand by first, as far as these ask for some: see docs/design/cluster.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lark_common.errors import SwitchError
from lark_common.log import failure
from lark_common.runs import NetworkType
from lark_common.turns import Elsewhere
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.plain import FlowCounts, PortCounts
from lark_controller.accounting.plain_readings import JobReading
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, QueueReading
from lark_controller.accounting.shares.messages import LONGEST_ORDER, OrderedJob, OrderedSwitch
from lark_controller.accounting.shares.offers import Offers, Taken
from lark_controller.accounting.shares.steps import SLACK
from lark_controller.flows.cookies import CATEGORY_MASK, COUNT_BITS, count_cookie, counted_by
from lark_controller.flows.placement import Placed
from lark_controller.reconcile.core_ports import CorePorts
from lark_controller.reconcile.counter_columns import switch_reading
from lark_controller.reconcile.drop_shares import DropShares
from lark_controller.reconcile.pair_counters import PairCounters
from lark_controller.reconcile.switch import SwitchState
from lark_controller.switches.openflow.dumps import Dump
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import FlowCount, FlowRemoved, PortCounters, PortRecord, port_age

# Switches whose answers may be under way at a time.
IN_FLIGHT: Final = 16
# Reading counters takes at most one part in this many of the loop's time, decoding and all: with so many jobs that it
# would take more, the interval grows.
SHARE: Final = 4
# Jobs of a switch that are read one by one, where columns would take longer to be made than they spare.
FEW: Final = 20
# Seconds for which a job that has ended waits for its last counters.
LAST_SECONDS: Final = 5.0

# A port's counters and a job's counting flows, as they come, the cookies of the counting flows that go meanwhile, and
# when they were asked for.
_Answers = tuple[asyncio.Future[list[PortCounters]], asyncio.Future[list[FlowCount]], set[int], float]

# Seconds from question to answer, with which a reading is late: what the switch had sent by its time may not be here.
LATE: Final = SLACK / 2
# Seconds between two looks for switches that others were to read.
_LOOKS: Final = 0.5
# Jobs that are handled before other work gets its turn of the loop.
_AT_ONCE: Final = 500
_JOB_MASK: Final = (1 << 64) - (1 << COUNT_BITS)
_COUNTS: Final = count_cookie(0)
_KINDS: Final = tuple(range(len(CountKind)))


class CounterReader:
    """Reads ports and counting flows of connected switches."""

    def __init__(
        self,
        ledger: Ledger,
        switches: Mapping[int, SwitchState],
        jobs_at: Callable[[int], list[Placed]],
        drop_shares: DropShares,
        core_ports: CorePorts,
        pair_counters: PairCounters,
        processor: Callable[[], float] = time.thread_time,
        *,
        offers: Offers | None = None,
        count: Callable[[str], object] = lambda _result: None,
    ) -> None:
        self._processor = processor
        self.offers = Offers() if offers is None else offers
        self._count = count
        # Switches that are offered to others, or that these read: the connection and the jobs' ports as they were.
        self._lent: dict[int, tuple[SwitchLink, dict[int, int]]] = {}
        # Jobs whose last reading here was late.
        self._late: set[int] = set()
        self._ledger = ledger
        self._switches = switches
        self._jobs_at = jobs_at
        self._drop_shares = drop_shares
        self._core_ports = core_ports
        self._pair_counters = pair_counters
        self._being_read: set[int] = set()
        self._places = asyncio.Semaphore(IN_FLIGHT)
        # For each answer that is under way, about a job or a whole switch (None), the cookies of counting flows that
        # went meanwhile: by job, so that many that end together are not gone through for each flow.
        self._open: dict[int | None, list[set[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._spent = 0.0

    # -- events of the reconcile loop

    def begin(self, placed: Placed) -> None:
        """Open the account of a job that is new, or at another port; called before its flows are sent."""
        job, link = placed.job, self._link(placed)
        if not placed.decision.accounted:
            return
        self._ledger.begin(job, placed.decision.group)
        if job.network_type is NetworkType.OVS_BRIDGE and (link is None or placed.port is None):
            self._ledger.lost((job.number,))
        if link is not None and placed.port is not None and not self._ledger.started(job.number):
            asked = asyncio.get_running_loop().time()
            self._start(self._first(job.number, placed.port, asked, link.port_counters(placed.port)))

    async def regroup(self, numbers: Iterable[int], placed: Mapping[int, Placed]) -> None:
        """Follow another policy: jobs may be accounted that were not, or no more, and be of another group.

        Of the jobs of these ``numbers``, those that are over by then are left out: an account must not be opened again.
        ``placed`` are the jobs that there are at any moment.
        """
        for count, number in enumerate(list(numbers)):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if (each := placed.get(number)) is None:
                continue
            if not each.decision.accounted:
                # Its use until now stays, as of now.
                self._ledger.uncount((number,))
            elif self._ledger.has_open(number):
                # Other jobs are read in the next round: no request for each job of the pool.
                self._ledger.begin(each.job, each.decision.group)
            else:
                self.begin(each)

    def end(self, number: int, placed: Placed | None) -> None:
        """Close the account of a job that is over; called before its flows are taken away."""
        self._late.discard(number)
        if not self._ledger.has_open(number):
            return
        self._ledger.leaves(number)
        link = None if placed is None else self._link(placed)
        if link is None or placed is None or placed.port is None or not placed.decision.accounted:
            self._ledger.close(number, time.time())
            return
        answers = self._ask(link, number, placed.port, LAST_SECONDS)
        self._start(self._last(number, placed.port, answers))

    async def read(self, placed: Placed, timeout: float) -> None:
        """Read a job's own counters now, as far as its switch answers within ``timeout`` seconds."""
        link, counted = self._link(placed), placed.decision.accounted and self._ledger.has_open(placed.job.number)
        if link is not None and placed.port is not None and counted:
            number = placed.job.number
            await self._read(number, placed.port, self._ask(link, number, placed.port, timeout))
            await self._pair_counters.read(placed, timeout)

    def compared(self, datapath: int, dump: Dump) -> None:
        """Take in the counting flows of a switch that has connected, before anything is changed."""
        found: dict[int, list[FlowReading]] = {}
        for key, data in dump.program.flows.items():
            whose = counted_by(data.cookie)
            if whose is not None:
                packets, size = dump.counters[key]
                found.setdefault(whose[0], []).append(FlowReading(whose[1], packets, size))
        for placed in self._jobs_at(datapath):
            self._ledger.flows_there(placed.job.number, found.get(placed.job.number, []))

    def flow_removed(self, removed: FlowRemoved) -> None:
        """Take in the last counters of a counting flow that is gone."""
        whose = counted_by(removed.cookie)
        if whose is not None:
            for gone in (*self._open.get(whose[0], ()), *self._open.get(None, ())):
                gone.add(removed.cookie)
            self._ledger.flow_gone(whose[0], FlowReading(whose[1], removed.packets, removed.bytes))

    def queues_seen(self, readings: Mapping[int, QueueReading]) -> None:
        """Take in readings of jobs' own queues, by the job's number."""
        for number, reading in readings.items():
            self._ledger.queues(number, reading)

    def gone(self, datapath: int) -> None:
        """Note that a switch is gone: its rates and its jobs' are not known."""
        self._core_ports.gone(datapath)
        self._drop_shares.gone(datapath)
        self.lost(self._jobs_at(datapath))

    def lost(self, jobs: Iterable[Placed]) -> None:
        """Note jobs whose switch or port is gone: nothing reads them."""
        self._ledger.lost([placed.job.number for placed in jobs if placed.decision.accounted])

    # -- periodic reading

    async def start(self, interval: float) -> None:
        """Read every switch again and again, from now until the loop ends; never where ``interval`` is 0."""
        if interval:
            self._start(self.run(interval))

    async def run(self, interval: float) -> None:
        """Have every switch read once in ``interval`` seconds, until cancelled."""
        while True:
            began = asyncio.get_running_loop().time()
            datapaths = [datapath for datapath, state in self._switches.items() if state.compared]
            for datapath in datapaths:
                if not self._offered(datapath):
                    await self._read_here(datapath)
                spent, self._spent = self._spent, 0.0
                await self._pause(max(interval / len(datapaths), (SHARE - 1) * spent))
            left = began + interval - asyncio.get_running_loop().time()
            await self._pause(max(left, 0.05))

    async def _pause(self, seconds: float) -> None:
        """Wait, and read what others were to read and have not read in time."""
        while seconds > 0:
            part = min(seconds, _LOOKS) if self._lent else seconds
            await asyncio.sleep(part)
            seconds -= part
            for datapath in self.offers.back() if self._lent else ():
                self._lent.pop(datapath, None)
                self._count("left")
                await self._read_here(datapath)

    async def _read_here(self, datapath: int) -> None:
        """Begin to read a switch, once there is a place."""
        await self._places.acquire()
        self._start(self._spending(datapath, self.poll), lambda _done: self._places.release())

    def _offered(self, datapath: int) -> bool:
        """Have an instance that stands by read a switch; False where this one has to."""
        if datapath in self._lent:
            return True
        if not self.offers.wanted(datapath):
            return False
        spent = Elsewhere(self._processor)
        offered = spent.measured(partial(self._offer, datapath))
        self._spent += spent.seconds
        return offered

    def _offer(self, datapath: int) -> bool:
        state = self._switches.get(datapath)
        if state is None or state.link is None or not state.compared:
            return False
        ports = self._ports_of(datapath)
        if self._asks(datapath, ports.values()) or not self._late.isdisjoint(ports.values()):
            return False
        states = self._ledger.states(ports.values())
        if None in states:
            return False
        jobs = zip(ports.values(), ports, states, strict=True)
        chosen = tuple(OrderedJob(number, port, known) for number, port, known in jobs if known)
        switch = OrderedSwitch(datapath, chosen)
        if not chosen or switch.size > LONGEST_ORDER:
            return False
        self._lent[datapath] = state.link, ports
        self.offers.offer(switch)
        return True

    def taken(self, taken: Sequence[Taken]) -> None:
        """Take in the readings of switches that another instance has made, as far as the accounts are as they were."""
        self._start(self._take_all(taken))

    async def _take_all(self, taken: Sequence[Taken]) -> None:
        for each in taken:
            spent = Elsewhere(self._processor)
            spent.measured(partial(self._take, each))
            self._spent += spent.seconds
            # There may be many, and posts are not to wait for all.
            await asyncio.sleep(0)

    def _take(self, taken: Taken) -> None:
        datapath, jobs = taken.ordered
        lent, state = self._lent.pop(datapath, None), self._switches.get(datapath)
        link = state.link if state is not None and state.compared else None
        # The switch may have answered this instance before it was read, and the older answer would come second.
        asks = self._asks(datapath, (job.number for job in jobs))
        fits = not asks and lent is not None and lent == (link, self._ports_of(datapath))
        if fits:
            steps = zip(jobs, taken.read.steps, strict=True)
            fits = not self._ledger.take((job.number, job.state, made) for job, made in steps)
        self._count("taken" if fits else "changed")
        self._start(self._look_here(datapath) if fits else self._read_here(datapath))

    async def _look_here(self, datapath: int) -> None:
        """Read the rest of a switch whose jobs' counters another instance has read."""
        async with self._places:
            await self._spending(datapath, lambda datapath: self._look(datapath, self._ports_of(datapath).values()))

    async def _look(self, datapath: int, numbers: Iterable[int]) -> None:
        """Read the counters of a switch that no account has; ``numbers`` are its jobs'. Raises SwitchError."""
        drops = self._ledger.drops_by_policy(numbers)
        await self._drop_shares.look(datapath, drops=drops)
        await self._pair_counters.look(datapath)

    async def poll(self, datapath: int) -> None:
        """Read one switch now. Raises SwitchError."""
        state = self._switches.get(datapath)
        if state is None or state.link is None or not state.compared or datapath in self._being_read:
            return
        link = state.link
        self._being_read.add(datapath)
        removed = self._collect(None)
        try:
            await self._core_ports.look(datapath)
            ports_read = self._ports_of(datapath)
            if not ports_read:
                if self._jobs_at(datapath):
                    # Pairs that were counted under the policy before are read on.
                    await self._look(datapath, ())
                return
            asked = asyncio.get_running_loop().time()
            few = len(ports_read) < FEW
            # Flows first: the WAN's part is then no newer than the whole.
            counting = count_cookie(0), CATEGORY_MASK
            flows_done: asyncio.Future[Any] = link.flow_counts(*counting) if few else link.flow_columns(*counting)
            ports_done: asyncio.Future[Any] = link.port_records() if few else link.port_columns()
            await asyncio.gather(ports_done, flows_done, return_exceptions=True)
        finally:
            self._collected(None, removed)
            self._being_read.discard(datapath)
        self._count("own")
        now = time.time()
        try:
            ports, flows = ports_done.result(), flows_done.result()
        except SwitchError:
            # It may be connected, and answer nothing: the rates of the reading before are none of now.
            self._ledger.lost(ports_read.values())
            raise
        # A port number that went to another job while the answer was under way is about neither.
        same = {port: number for port, number in self._ports_of(datapath).items() if ports_read.get(port) == number}
        self._note_late(asked, same.values())
        if few:
            self._ledger.read_all(now, _job_readings(same, ports, flows, removed))
        else:
            self._ledger.read_switch(now, switch_reading(same, ports, flows, removed))
        await self._look(datapath, same.values())

    # -- internal

    def _asks(self, datapath: int, numbers: Iterable[int]) -> bool:
        """True while an answer about this switch, or about one of these jobs, is under way to this instance."""
        return datapath in self._being_read or not self._open.keys().isdisjoint(numbers)

    def _note_late(self, asked: float, numbers: Iterable[int]) -> None:
        """Note whether a reading of these jobs was late: a flow that was made anew may then be older than it, and what
        the one before it had counted not be here yet."""
        late = asyncio.get_running_loop().time() - asked > LATE
        (self._late.update if late else self._late.difference_update)(numbers)

    def _link(self, placed: Placed) -> SwitchLink | None:
        state = None if placed.datapath is None else self._switches.get(placed.datapath)
        return None if state is None or not state.compared else state.link

    def _ports_of(self, datapath: int) -> dict[int, int]:
        """The jobs to be read at a switch, by port."""
        return {
            placed.port: placed.job.number
            for placed in self._jobs_at(datapath)
            if placed.port is not None and placed.decision.accounted
        }

    async def _spending(self, datapath: int, read: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Read something of a switch, and count the time of it."""
        state, steps = self._switches.get(datapath), Elsewhere(self._processor)
        link = None if state is None else state.link
        decoded = 0.0 if link is None else link.decoding
        try:
            await steps.measured_steps(read(datapath))
        except SwitchError:
            # The connection reports the error itself.
            return
        finally:
            self._spent += steps.seconds + (0.0 if link is None else link.decoding - decoded)

    async def _first(self, number: int, port: int, asked: float, done: asyncio.Future[list[PortCounters]]) -> None:
        try:
            found = [counters for counters in await done if counters.number == port]
        except SwitchError:
            return
        if found and not self._ledger.started(number):
            self._note_late(asked, (number,))
            self._ledger.read(number, time.time(), port_reading(found[0]), (), found[0].age)

    def _ask(self, link: SwitchLink, number: int, port: int, timeout: float) -> _Answers:
        """Ask for a job's port and counting flows; the requests are on their way when this returns, and removals are
        collected from then on until :meth:`_read` has taken the answers."""
        flows = link.flow_counts(count_cookie(number), _JOB_MASK, timeout)
        asked = asyncio.get_running_loop().time()
        return link.port_counters(port, timeout), flows, self._collect(number), asked

    async def _last(self, number: int, port: int, answers: _Answers) -> None:
        await self._read(number, port, answers)
        self._late.discard(number)
        self._ledger.close(number, time.time())

    async def _read(self, number: int, port: int, answers: _Answers) -> None:
        ports, flows, removed, asked = answers
        try:
            await asyncio.gather(ports, flows, return_exceptions=True)
        finally:
            self._collected(number, removed)
        now = time.time()
        found = [] if ports.exception() else [counters for counters in ports.result() if counters.number == port]
        counted = () if flows.exception() else _flows_of(number, _by_cookie(flows.result(), removed))
        if found:
            self._note_late(asked, (number,))
            self._ledger.read(number, now, port_reading(found[0]), counted, found[0].age)
        else:
            self._ledger.read(number, now, None, counted)

    def _collect(self, number: int | None) -> set[int]:
        """Collect FLOW_REMOVED messages while an answer is under way: they are newer than the answer."""
        gone: set[int] = set()
        self._open.setdefault(number, []).append(gone)
        return gone

    def _collected(self, number: int | None, gone: set[int]) -> None:
        left = [other for other in self._open.pop(number) if other is not gone]
        if left:
            self._open[number] = left

    def _start(self, work: Coroutine[Any, Any, None], then: Callable[[object], object] | None = None) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if then is not None:
            task.add_done_callback(then)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failure("counters could not be read", error)


def port_reading(counters: PortCounters) -> PortReading:
    """A port's counters as the accounts have them."""
    return PortReading(
        counters.rx_packets, counters.rx_bytes, counters.tx_packets, counters.tx_bytes, counters.rx_dropped,
        counters.tx_dropped,
    )  # fmt: skip


def _job_readings(
    jobs: Mapping[int, int], ports: Iterable[PortRecord], flows: Iterable[FlowCount], removed: set[int]
) -> list[JobReading]:
    """The readings of jobs, their numbers by their ports: as :func:`.counter_columns.switch_reading`, one by one."""
    records, found = {record[0]: record for record in ports}, _by_cookie(flows, removed)
    return [
        (number, _port_counts(record), _flows_of(number, found), port_age(record))
        for port, number in jobs.items()
        if (record := records.get(port)) is not None
    ]


def _port_counts(record: PortRecord) -> PortCounts:
    """As :func:`port_reading`, of a plain record."""
    _, rx_packets, tx_packets, rx_bytes, tx_bytes, rx_dropped, tx_dropped, _, _ = record
    return rx_packets, rx_bytes, tx_packets, tx_bytes, rx_dropped, tx_dropped


def _by_cookie(counts: Iterable[FlowCount], removed: set[int]) -> dict[int, FlowCount]:
    """The flows whose counters are no older than what is known of them; thousands come with each switch."""
    found = {count[0]: count for count in counts}
    for cookie in removed:
        found.pop(cookie, None)
    return found


def _flows_of(number: int, found: Mapping[int, FlowCount]) -> list[FlowCounts]:
    """A job's counting flows, each as a FlowReading has it."""
    first = _COUNTS | number << COUNT_BITS
    return [(kind, each[1], each[2]) for kind in _KINDS if (each := found.get(first | kind)) is not None]
