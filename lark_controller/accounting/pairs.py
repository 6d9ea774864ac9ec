"""The use of reserved flows, by pair: a job that sends, and where it sends to.

No I/O and no clock: times are handed in, in seconds since 1970. One lock, as in the ledger. Nothing is kept of a job
that has reserved nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from lark_controller.accounting.account import LEAST_STRETCH
from lark_controller.accounting.readings import FlowQueue
from lark_controller.accounting.usage import MOST
from lark_controller.jobs.job import Job, ReservedFlow

# Pairs that are kept of a job: those that it reserved first.
PAIRS_OF_JOB: Final = 128
# Ports of a reservation whose counts are kept: those of the last readings. Workers name their own.
MOST_PORTS: Final = 16
# Pairs that are gone through before others get the lock.
_AT_ONCE: Final = 200
_NOTHING_COUNTED: Final = FlowQueue(0)

# A pair's queues by their ports.
Queues = Mapping[str, FlowQueue]


class PairUse(NamedTuple):
    """The use of one pair so far.

    ``peer`` is the id of the job that the flow goes to (empty: no job), ``node`` its end in the topology, ``target``
    its addresses in words. ``inside``: both ends are on one worker, where no queue is needed. ``kbps`` is the highest
    rate that was reserved, and ``least`` the lowest. ``counted`` is the time in which its queue was counted
    (milliseconds), ``settled`` the part of that at the highest rate, and ``throttled`` the part of that in which
    packets waited. ``peak`` is the highest mean of a stretch of ``peak_millis``, bits a second. ``at`` is the last
    reading; ``final``: the job is over and its last counters are in. ``left_out`` is how many reservations of its job
    are in no pair that is kept.
    """

    peer: str
    node: str
    target: str
    steady: bool
    inside: bool
    kbps: int
    least: int
    sent: int = 0
    dropped: int = 0
    counted: int = 0
    settled: int = 0
    throttled: int = 0
    peak: int = 0
    peak_millis: int = 0
    at: float = 0.0
    final: bool = False
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class PairEntry:
    """An entry to write for a pair of the job with that ``number`` and ``job_id``: its use, and the readings to go on
    from. ``key`` is the pair's among those of its job; ``ended_at`` the end of the job, None while it lives."""

    number: int
    job_id: str
    key: str
    use: PairUse
    readings: str
    ended_at: float | None = None


def key_of(flow: ReservedFlow) -> str:
    """The key of the pair that a reserved flow is of, among those of its job."""
    return flow.peer or " ".join((flow.node, *map(str, flow.target)))


class _Pair:
    """One pair's sums, the reservation that it has now or had last, and the readings that the sums go up to."""

    __slots__ = (
        "at",
        "before",
        "counted",
        "dropped",
        "flow",
        "inside",
        "kbps",
        "key",
        "least",
        "most",
        "node",
        "over",
        "peak",
        "peak_millis",
        "peer",
        "queues",
        "sent",
        "settled",
        "steady",
        "stored",
        "stretch",
        "target",
        "throttled",
        "unchanged",
    )

    def __init__(self, key: str, flow: ReservedFlow, inside: bool, at: float) -> None:
        self.key = key
        self.peer, self.node, self.target = flow.peer or "", flow.node, " ".join(map(str, flow.target))
        self.inside, self.steady = inside, flow.steady
        self.kbps = self.most = self.least = flow.kbps
        self.sent = self.dropped = self.counted = self.settled = self.throttled = self.peak = self.peak_millis = 0
        self.flow = 0
        # Of this reservation and of the one before, whose last counters may come after this one was made. None: its
        # first reading is what later ones are compared with, and counts nothing.
        self.queues: dict[str, FlowQueue] | None = {}
        self.before: tuple[int, dict[str, FlowQueue] | None] = (0, {})
        # The last reading, the end of the reservation (0: it is in force), the beginning of the stretch.
        self.at, self.over = at, 0.0
        self.stretch = (at, 0)
        # Its last reading was another controller's, by a clock that may differ: no stretch begins there.
        self.stored = False
        self.unchanged = True  # the terms were the same since the last reading

    def promise(self, flow: ReservedFlow, at: float, has_sent: bool) -> int:
        """Take a reservation's terms as they are now; returns the number of the reservation that nothing more comes
        of, 0 for none. ``has_sent``: if it is another one, it may have sent before ``at``."""
        gone = 0
        # A host may have got others.
        self.target = " ".join(map(str, flow.target))
        if self.flow != flow.number:
            gone, self.before = self.before[0], (self.flow, self.queues)
            self.flow, self.queues, self.at = flow.number, None if has_sent else {}, at
            self.stretch, self.unchanged = (at, self.sent), True
        elif (self.kbps, self.steady) != (flow.kbps, flow.steady):
            self.unchanged = False
        self.over = 0.0
        if flow.kbps > self.most or flow.steady != self.steady:
            # Packets that waited at other terms count for those alone.
            self.settled = self.throttled = 0
        self.kbps, self.steady = flow.kbps, flow.steady
        self.most, self.least = max(self.most, flow.kbps), min(self.least, flow.kbps)
        return gone

    def read(self, number: int, queues: Queues, at: float) -> bool:
        """Take a reading of a reservation's queues; True where something is new."""
        current = number == self.flow
        counted = self.queues if current else self.before[1]
        if counted is None:
            self._begin(current, queues, at)
            return True
        sent = dropped = waited = 0
        for place, now in islice(queues.items(), MOST_PORTS):
            before = counted.pop(place, _NOTHING_COUNTED)
            anew = now.sent < before.sent
            sent += now.sent if anew else now.sent - before.sent
            dropped += _new(before.dropped, now.dropped, anew)
            # Packets may wait at several uplinks at once.
            waited = max(waited, _new(before.waited, now.waited, anew))
            counted[place] = FlowQueue(
                now.sent,
                before.dropped if now.dropped is None else now.dropped,
                before.waited if now.waited is None else now.waited,
            )
        for place in list(islice(counted, max(0, len(counted) - MOST_PORTS))):
            del counted[place]
        self.sent, self.dropped = min(self.sent + sent, MOST), min(self.dropped + dropped, MOST)
        if current:
            self._timed(waited, at)
        return bool(sent or dropped or waited)

    def _begin(self, current: bool, queues: Queues, at: float) -> None:
        """Take the first reading of a reservation that had sent before."""
        first = dict(islice(queues.items(), MOST_PORTS))
        if not current:
            self.before = (self.before[0], first)
            return
        self.queues, self.unchanged, self.stored = first, True, False
        self.at = self._until(at)
        self.stretch = (self.at, self.sent)

    def _until(self, at: float) -> float:
        return min(at, self.over) if self.over else at

    def _timed(self, waited: int, at: float) -> None:
        end = self._until(at)
        elapsed = round(1000 * max(0.0, end - self.at))
        self.counted += elapsed
        if self.unchanged and self.kbps == self.most:
            self.settled += elapsed
            self.throttled = min(self.throttled + waited, MOST)
        self.unchanged, self.at = True, max(self.at, end)
        if self.stored:
            self.stored, self.at, self.stretch = False, end, (end, self.sent)
            return
        begun, before = self.stretch
        seconds = end - begun
        if seconds >= LEAST_STRETCH:
            rate = min(round(8 * (self.sent - before) / seconds), MOST)
            if rate > self.peak:
                self.peak, self.peak_millis = rate, round(1000 * seconds)
        if seconds >= LEAST_STRETCH or seconds < 0:
            # A clock that was set back begins a stretch, and gives no rate of the one before.
            self.stretch = (end, self.sent)
            self.at = min(self.at, end)

    def use(self, final: bool, left_out: int) -> PairUse:
        """The use so far."""
        return PairUse(
            self.peer, self.node, self.target, self.steady, self.inside, self.most, self.least, self.sent,
            self.dropped, self.counted, self.settled, self.throttled, self.peak, self.peak_millis, self.at, final,
            left_out,
        )  # fmt: skip

    def readings(self) -> str:
        """The readings to go on from after another start of the controller."""
        return json.dumps({"flow": self.flow, "kbps": self.kbps, "queues": self.queues}, separators=(",", ":"))

    @classmethod
    def restored(cls, key: str, use: PairUse, readings: str) -> _Pair:
        """A pair as it was written."""
        stored = json.loads(readings)
        flow = ReservedFlow(stored["flow"], stored["kbps"], steady=use.steady, peer=use.peer or None, node=use.node)
        pair = cls(key, flow, use.inside, use.at)
        pair.flow, pair.target, pair.most, pair.least = stored["flow"], use.target, use.kbps, use.least
        pair.sent, pair.dropped, pair.counted, pair.settled = use.sent, use.dropped, use.counted, use.settled
        pair.throttled, pair.peak, pair.peak_millis = use.throttled, use.peak, use.peak_millis
        queues = stored["queues"]
        pair.queues = None if queues is None else {place: FlowQueue(*counts) for place, counts in queues.items()}
        pair.stored = True
        return pair


@dataclass(slots=True)
class _Sender:
    """The pairs of one job, and the reservations that none of them is of."""

    id: str
    pairs: dict[str, _Pair]
    left: set[int]
    left_out: int = 0
    ended_at: float | None = None

    @property
    def final(self) -> bool:
        """True once the job is over and its last counters are in."""
        return self.ended_at is not None


class PairLedger:
    """The pairs of all live jobs that have reserved flows; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders: dict[int, _Sender] = {}
        # By the reservation's number: the job's number and the pair.
        self._flows: dict[int, tuple[int, _Pair]] = {}
        self._changed: dict[tuple[int, str], None] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def has(self, number: int) -> bool:
        """True if something of the job with that number is kept here."""
        return number in self._senders

    def follow(self, job: Job, at: float, sent_before: Container[int] = ()) -> None:
        """Take the reserved flows that a live job sends as they are now; those that it has no more are over.

        Flows with a number in ``sent_before`` may have sent before ``at``: those that are new here are counted from
        their first reading on.
        """
        flows = [each for each in job.reserved if not each.incoming]
        with self._lock:
            sender = self._senders.get(job.number)
            if sender is None:
                if not flows:
                    return
                sender = self._senders[job.number] = _Sender(job.id, {}, set())
            if sender.final:
                return
            present = {each.number for each in flows}
            sender.left &= present
            for pair in sender.pairs.values():
                if pair.flow not in present and not pair.over:
                    pair.over = at
            keys = {each.number: self._flows[each.number][1].key for each in flows if each.number in self._flows}
            for each in flows:
                key = keys.get(each.number) or key_of(each)
                if each.number not in keys and key in keys.values():
                    # There may be two flows to a job that is reached by another address than before.
                    key = f"{key} {each.number}"
                keys[each.number] = key
                self._promise(job, sender, key, each, at, each.number in sent_before)

    def _promise(self, job: Job, sender: _Sender, key: str, flow: ReservedFlow, at: float, has_sent: bool) -> None:
        pair = sender.pairs.get(key)
        if pair is None:
            if len(sender.pairs) >= PAIRS_OF_JOB:
                if flow.number not in sender.left:
                    sender.left.add(flow.number)
                    sender.left_out += 1
                    self._changed[job.number, next(iter(sender.pairs))] = None
                return
            inside = flow.peer is not None and flow.node == job.host.lower()
            pair = sender.pairs[key] = _Pair(key, flow, inside, at)
            self._changed[job.number, key] = None
        terms = (pair.flow, pair.kbps, pair.steady, pair.target)
        if gone := pair.promise(flow, at, has_sent):
            self._flows.pop(gone, None)
        if terms != (pair.flow, pair.kbps, pair.steady, pair.target):
            self._changed[job.number, key] = None
        self._flows[flow.number] = job.number, pair

    def read(self, counted: Mapping[int, Queues], at: float, of: Collection[int] | None = None) -> None:
        """Take readings of queues, by the number of the reservation that each is of; with ``of`` those of the jobs
        with these numbers alone."""
        with self._lock:
            for number, queues in counted.items():
                job, pair = self._flows.get(number, (0, None))
                if pair is None or (of is not None and job not in of) or self._senders[job].final:
                    continue
                peak = pair.peak
                if pair.read(number, queues, at) or pair.peak != peak:
                    self._changed[job, pair.key] = None

    def close(self, number: int, at: float) -> None:
        """Close the pairs of a job that is over and whose last counters are in."""
        with self._lock:
            sender = self._senders.get(number)
            if sender is None or sender.final:
                return
            sender.ended_at = at
            for key, pair in sender.pairs.items():
                pair.over = pair.over or at
                self._changed[number, key] = None

    def restore(self, number: int, job_id: str, key: str, use: PairUse, readings: str) -> None:
        """Go on with a pair of a live job as it was written, before a start of the controller."""
        with self._lock:
            sender = self._senders.setdefault(number, _Sender(job_id, {}, set()))
            sender.left_out = max(sender.left_out, use.left_out)
            pair = sender.pairs[key] = _Pair.restored(key, use, readings)
            self._flows[pair.flow] = number, pair

    def of_job(self, number: int) -> tuple[PairUse, ...] | None:
        """The pairs of a job, in the order in which they were reserved; None where it has none here."""
        with self._lock:
            sender = self._senders.get(number)
            if sender is None:
                return None
            return tuple(pair.use(sender.final, sender.left_out) for pair in sender.pairs.values())

    # to be written

    def changed(self, only_ended: bool = False) -> list[tuple[int, str]]:
        """The pairs that are not written as they are; ``only_ended``: those of jobs that are over."""
        with self._lock:
            return [key for key in self._changed if not only_ended or self._senders[key[0]].final]

    def entries(self, chosen: Iterable[tuple[int, str]]) -> list[PairEntry]:
        """The entries to write of these pairs."""
        rest, found = iter(chosen), list[PairEntry]()
        while part := list(islice(rest, _AT_ONCE)):
            with self._lock:
                for number, key in part:
                    sender = self._senders[number]
                    pair = sender.pairs[key]
                    use = pair.use(sender.final, sender.left_out)
                    readings = "" if sender.final else pair.readings()
                    found.append(PairEntry(number, sender.id, key, use, readings, sender.ended_at))
        return found

    def wrote(self, entries: Iterable[PairEntry]) -> None:
        """Note that these were written. A job that is over is forgotten once all its pairs are, so that who asks
        meanwhile gets all of them from here."""
        with self._lock:
            over = set()
            for entry in entries:
                sender = self._senders[entry.number]
                if entry.use == sender.pairs[entry.key].use(sender.final, sender.left_out):
                    self._changed.pop((entry.number, entry.key), None)
                if sender.final:
                    over.add(entry.number)
            for number in over:
                pairs = self._senders[number].pairs
                if any((number, key) in self._changed for key in pairs):
                    continue
                del self._senders[number]
                for pair in pairs.values():
                    for flow in (pair.flow, pair.before[0]):
                        self._flows.pop(flow, None)


def _new(before: int | None, now: int | None, anew: bool) -> int:
    """The new part of a queue's count; nothing where one of both is unknown. A queue that was made ``anew`` counts from
    0, and so does one whose worker service has started again, in what that counts."""
    if before is None or now is None:
        return 0
    return now if anew or now < before else now - before
