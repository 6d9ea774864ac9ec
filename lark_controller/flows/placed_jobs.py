"""The live jobs and the known switches: who is attached where, by what was decided. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Self

from lark_common.runs import NetworkType
from lark_controller.flows.external_room import Refusals
from lark_controller.flows.numbers import NumberSet
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.relabel import slice_at_port
from lark_controller.flows.tags import JobsByEdge
from lark_controller.flows.worker_rules import Ruled
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Decision, Policy, SliceKey
from lark_controller.qos.worker_queues import Claim


class PlacedJobs:
    """The jobs that are admitted, each at its switch if that is known, and the switches.

    ``groups`` counts the jobs of each group of the policy, ``wan_ruled`` those of a group that come under a WAN rule,
    by its position; ``leaving`` those of which something passes, by that position and the kind of their network;
    ``unattached`` those without a network, which no rule is for; ``uncounted`` those with one whose
    use the policy does not count; ``isolated`` are the numbers of the jobs with a network of which nothing passes, and
    of all in quarantine. ``at_edges`` counts the jobs of each edge by their host, in lower case, which need not be the
    one that the policy names there. ``queues`` are the numbers of the queues that stand for jobs and reserved flows.
    ``ruled`` are the jobs whose workers enforce what is decided.
    """

    def __init__(self, policy: Policy) -> None:
        self.switches: dict[int, Switch] = {}
        self.placed: dict[int, Placed] = {}
        self.groups: Counter[str] = Counter()
        self.wan_ruled: Counter[tuple[str, int]] = Counter()
        self.leaving: Counter[tuple[int, NetworkType]] = Counter()
        self.unattached = 0
        self.uncounted = 0
        self.isolated = NumberSet()
        self.at_edges: dict[tuple[int, str], int] = {}
        self.queues: dict[Claim, int] = {}
        self.ruled = Ruled()
        self._local = JobsByEdge()
        # By host in lower case, as its name is the same in any; with them the jobs whose switches are not known yet.
        self._hosts: dict[str, int] = {spec.host.lower(): dp for dp, spec in policy.switches.items() if spec.host}
        self._homeless: dict[str, set[int]] = {}
        # The jobs with external addresses, by number, and those that switches refused.
        self._external: set[int] = set()
        self._refusals = Refusals()

    def _take_over(self, before: Self) -> None:
        """Take all jobs and switches of another, as a copy."""
        self.switches, self.placed = dict(before.switches), dict(before.placed)
        self.groups, self.ruled = before.groups.copy(), before.ruled.copy()
        self.unattached, self.isolated = before.unattached, before.isolated.copy()
        self.uncounted, self.wan_ruled = before.uncounted, before.wan_ruled.copy()
        self.leaving, self.at_edges = before.leaving.copy(), before.at_edges.copy()
        self._local = before._local.copy()
        self._hosts, self._external = dict(before._hosts), set(before._external)
        self._refusals = before._refusals.copy()
        self._homeless = {host: set(numbers) for host, numbers in before._homeless.items()}

    def datapath_of(self, job: Job) -> int | None:
        """The datapath of the edge where a job is attached: by its ad, or by its host's name; None: not known."""
        if job.network_type is not NetworkType.OVS_BRIDGE:
            return None
        return self._hosts.get(job.host.lower()) if job.datapath is None else job.datapath

    def jobs_at(self, datapath: int) -> list[Placed]:
        """The jobs that belong to an edge, by number."""
        return [self.placed[number] for number in sorted(self._local.at(datapath).numbers)]

    def present_at(self, datapath: int) -> Iterator[Placed]:
        """The jobs that belong to an edge, in any order."""
        return (self.placed[number] for number in self._local.at(datapath).numbers)

    def numbers_at(self, datapath: int) -> Set[int]:
        """The numbers of the jobs that belong to an edge."""
        return self._local.at(datapath).numbers

    def count_at(self, datapath: int) -> int:
        """The number of jobs of an edge."""
        return len(self._local.at(datapath).numbers)

    def edges(self) -> Iterator[int]:
        """The edges that have jobs."""
        return self._local.edges()

    def tag_at(self, datapath: int, key: SliceKey | None) -> int:
        """A slice's tag on a switch; 0 where it has none."""
        return 0 if key is None else self.tags_at(datapath).get(key, 0)

    def slices_at(self, datapath: int) -> dict[int, SliceKey]:
        """The slices of a switch by tag."""
        return {tag: key for key, tag in list(self.tags_at(datapath).items())}

    def tags_at(self, datapath: int) -> Mapping[SliceKey, int]:
        """The tags of the slices of an edge."""
        return self._local.at(datapath).tags

    def ruled_at(self, host: str) -> list[Placed]:
        """The jobs of a host whose policy their worker enforces, by number."""
        return [self.placed[number] for number in sorted(self.ruled.numbers(host))]

    def where(self, job: Job, decision: Decision) -> Placed:
        """A job at its port, as far as its edge is known."""
        datapath = self.datapath_of(job)
        switch = None if datapath is None else self.switches.get(datapath)
        port = None if switch is None else switch.job_port(job.port)
        queue = None
        # Most sites have none, and all jobs pass here.
        if port is not None and self.queues:
            limited = decision.bandwidth is not None and decision.bandwidth.rate(job.bandwidth) is not None
            queue = self.queues.get(Claim.of_job(job.number) if limited else Claim.of_part(job.number))
        closed = "" if job.opened is None else self._why_closed(job, datapath, switch)
        if not job.reserved or port is None:
            return Placed(job, decision, datapath, port, queue, closed=closed)
        sent = ((flow.target, Claim.of_flow(flow.number)) for flow in job.reserved if not flow.incoming)
        stand = tuple((target, number) for target, of in sent if (number := self.queues.get(of)) is not None)
        return Placed(job, decision, datapath, port, queue, stand, closed)

    def _why_closed(self, job: Job, datapath: int | None, switch: Switch | None) -> str:
        """The reason why a job's edge, as far as it is known, does not open the job's own IPv6 address."""
        if switch is not None and not switch.tracks:
            return f"switch {switch.name} has no connection tracking, which an open IPv6 address needs"
        return self._refusals.why(datapath, job)

    def _place_first(self, jobs: Iterable[tuple[Job, Decision]]) -> None:
        """Take in all jobs where there are neither jobs nor switches yet, at half the cost of one after the other."""
        edges: dict[int, tuple[list[int], list[str]]] = {}
        # Many jobs share a decision, and what follows from it is looked at once.
        decided: dict[int, tuple[Decision, list[int]]] = {}
        for job, decision in jobs:
            number = job.number
            datapath = self.datapath_of(job)
            new = self.where(job, decision) if job.external else Placed(job, decision, datapath)
            if job.external or datapath is None:
                self._index(None, new)
                continue
            self.placed[number] = new
            if (at := edges.get(datapath)) is None:
                at = edges[datapath] = [], []
            at[0].append(number)
            at[1].append(job.host)
            if (known := decided.get(id(decision))) is None:
                known = decided[id(decision)] = decision, []
            known[1].append(number)
        for datapath, (numbers, hosts) in edges.items():
            self._local.add_all(datapath, numbers)
            # Each once: nearly all jobs of an edge are of one.
            for host, count in Counter(hosts).items():
                self._count_at((datapath, host.lower()), count)
        for decision, numbers in decided.values():
            self.groups[decision.group] += len(numbers)
            if decision.wan:
                self.wan_ruled[decision.group, decision.wan] += len(numbers)
            self.uncounted += 0 if decision.accounted else len(numbers)
            if decision.isolated:
                self.isolated.update(numbers)
            else:
                # A job with an edge is of this kind.
                self.leaving[decision.wan, NetworkType.OVS_BRIDGE] += len(numbers)

    def _index(self, old: Placed | None, new: Placed | None) -> None:
        self.ruled.move(old, new)
        if (left := _seat(old)) != (taken := _seat(new)):
            self._count_at(left, -1)
            self._count_at(taken, 1)
        stays = old is not None and new is not None and _place(old) == _place(new)
        if old is not None:
            del self.placed[old.job.number]
            self._external.discard(old.job.number)
            if old.job.external:
                self._refusals.follow(old.job.number, () if new is None else new.job.external)
            self.groups[old.decision.group] -= 1
            if old.decision.wan:
                self.wan_ruled[old.decision.group, old.decision.wan] -= 1
            if _leaves(old):
                self.leaving[old.decision.wan, old.job.network_type] -= 1
            self.unattached -= _unattached(old)
            self.uncounted -= is_uncounted(old)
            self.isolated.discard(old.job.number)
            if old.datapath is not None:
                if not stays:
                    self._local.take(old.datapath, old.job.number, slice_at_port(old))
            else:
                self._homeless.get(old.job.host.lower(), set()).discard(old.job.number)
        if new is not None:
            self.placed[new.job.number] = new
            if new.job.external:
                self._external.add(new.job.number)
            self.groups[new.decision.group] += 1
            if new.decision.wan:
                self.wan_ruled[new.decision.group, new.decision.wan] += 1
            self.uncounted += is_uncounted(new)
            if _leaves(new):
                self.leaving[new.decision.wan, new.job.network_type] += 1
            if _unattached(new):
                self.unattached += 1
            elif new.decision.isolated:
                self.isolated.add(new.job.number)
            if new.datapath is not None:
                if not stays:
                    self._local.add(new.datapath, new.job.number, slice_at_port(new))
            elif new.job.network_type is NetworkType.OVS_BRIDGE:
                self._homeless.setdefault(new.job.host.lower(), set()).add(new.job.number)

    def _count_at(self, seat: tuple[int, str] | None, jobs: int) -> None:
        """Count so many jobs more of a host at an edge."""
        if seat is None:
            return
        if count := self.at_edges.get(seat, 0) + jobs:
            self.at_edges[seat] = count
        else:
            del self.at_edges[seat]


def _seat(placed: Placed | None) -> tuple[int, str] | None:
    """The edge of a job, and its host in lower case."""
    return None if placed is None or placed.datapath is None else (placed.datapath, placed.job.host.lower())


def _unattached(placed: Placed) -> bool:
    """True where a job has no network; in quarantine it is counted with the others that are."""
    return placed.job.network_type is NetworkType.NONE and not placed.decision.quarantine


def _leaves(placed: Placed) -> bool:
    """True where a job has a network and something of it passes."""
    return placed.job.network_type is not NetworkType.NONE and not placed.decision.isolated


def is_uncounted(placed: Placed) -> bool:
    """True where a job has a network, and its use of it is not counted."""
    return not placed.decision.accounted and placed.job.network_type is not NetworkType.NONE


def _place(placed: Placed) -> tuple[int | None, SliceKey | None]:
    """The edge of a job, and the slice that needs a tag there for it."""
    return placed.datapath, slice_at_port(placed)
