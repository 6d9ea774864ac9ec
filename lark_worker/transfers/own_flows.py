"""Follows the TCP connections of jobs themselves, in each job's own network, for those whose flows have a mark.

A job makes as many connections as it likes, so what is read, kept and reported of one job has limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lark_common.limits import Bucket
from lark_worker.errors import NetworkError
from lark_worker.network.commands import inside
from lark_worker.records.known_jobs import Key
from lark_worker.transfers.book import Flow, Turns
from lark_worker.transfers.inet_diag import Connection, Name
from lark_worker.transfers.sockets import Sockets

# Connections of one job that are followed at a time, and that are read at a look: as many that have ended as are there.
MOST_OF_JOB: Final = 64
MOST_READ: Final = 1024
# Flows of one job that are reported in a second, and at once.
RATE: Final = 5.0
BURST: Final = 100.0
# Room for the ends of one job's connections between two looks: some 250 of them.
_ROOM: Final = 1 << 18

# True for a connection whose flow somebody is to know of.
Wanted = Callable[[Connection, Key], bool]


@dataclass(slots=True)
class _Job:
    namespace: str
    sockets: Sockets
    bucket: Bucket
    since: float
    flows: dict[Name, Flow] = field(default_factory=dict)
    # Flows that the last list lacked, and whose end was not reported.
    missing: set[Name] = field(default_factory=set)


class OwnFlows:
    """The flows of jobs in their own networks; not thread-safe. ``beyond`` counts those that are not reported, since
    their job has so many."""

    def __init__(self) -> None:
        self.beyond = 0
        self._jobs: dict[Key, _Job] = {}

    def __len__(self) -> int:
        """The number of flows that are followed now."""
        return sum(len(each.flows) for each in self._jobs.values())

    def flows(self) -> list[Flow]:
        """The flows that are followed now, with their last counts."""
        return [flow for job in self._jobs.values() for flow in job.flows.values()]

    def close(self) -> None:
        """Follow nothing more."""
        for job in self._jobs.values():
            job.sockets.close()
        self._jobs.clear()

    def look(self, namespaces: Mapping[Key, str], at: float, wanted: Wanted) -> Turns:
        """Look into the networks of these jobs at the time ``at``: the flows that have been found since the look
        before, and those that are over, which are all of other jobs."""
        turns = Turns([], [])
        for key in [key for key, job in self._jobs.items() if namespaces.get(key) != job.namespace]:
            job = self._jobs.pop(key)
            job.sockets.close()
            turns.over.extend(job.flows.values())
        for key, namespace in namespaces.items():
            found: list[tuple[list[Connection], list[Connection]]] = []
            try:
                inside(namespace, lambda: found.append(self._read(key, namespace, at)))  # noqa: B023  # done at once
            except NetworkError:
                # Its network has gone, or is not there yet; the next look asks again.
                continue
            self._follow(key, self._jobs[key], found[0], at, wanted, turns)
        return turns

    def _read(self, key: Key, namespace: str, at: float) -> tuple[list[Connection], list[Connection]]:
        """The connections that are there, and those that have ended; on a thread in the job's namespace."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(namespace, Sockets(_ROOM), Bucket(RATE, BURST, at), at)
        before = job.sockets.lost
        # One that makes connections faster than they are read here must not keep the looks at others.
        ended = job.sockets.ended(MOST_READ)
        there = job.sockets.open(MOST_READ)
        self.beyond += job.sockets.lost - before
        return there, ended

    def _follow(
        self,
        key: Key,
        job: _Job,
        read: tuple[list[Connection], list[Connection]],
        at: float,
        wanted: Wanted,
        turns: Turns,
    ) -> None:
        there, ended = read
        over = {each.name: each for each in ended}
        for each in (*there, *over.values()):
            known = job.flows.get(each.name)
            if known is not None:
                job.flows[each.name] = known._replace(connection=each)
            elif (each.sent or each.received) and wanted(each, key):
                # One that has ended between two looks began after the one before.
                self._begin(key, job, each, at if each.name not in over else job.since, at, turns)
        if len(there) < MOST_READ:
            # The kernel reports every end, a moment later than it takes the connection from its list at times; where
            # that message was lost, two lists say it.
            absent = job.flows.keys() - {each.name for each in there}
            over |= {name: job.flows[name].connection for name in absent & job.missing}
            job.missing = absent
        for name in over:
            if (flow := job.flows.pop(name, None)) is not None:
                turns.over.append(flow)
        job.since = at

    def _begin(self, key: Key, job: _Job, each: Connection, since: float, at: float, turns: Turns) -> None:
        if len(job.flows) >= MOST_OF_JOB or not job.bucket.take_whole(at):
            self.beyond += 1
            return
        flow = job.flows[each.name] = Flow(key, each, since)
        turns.found.append(flow)
