"""The worker's own tables in the kernel: puts rules in place, one transaction a table and change, and reads counters.

The tables have the name of the setting ``PREFIX`` and are there while there are jobs that need them. No other table is
ever touched.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lark_common import log
from lark_common.runs import NetworkType
from lark_common.worker_rules import JobRules, WorkerRules
from lark_worker.controller_link import Applied
from lark_worker.errors import NetworkError
from lark_worker.network.commands import NETNS, inside, run
from lark_worker.network.forwarding import Forwarding
from lark_worker.network.nat import gateway_of
from lark_worker.queues.shaping import Shaped
from lark_worker.records.records import Record
from lark_worker.rules import bridged, render, routed
from lark_worker.rules.render import Port, is_one_way, one_way
from lark_worker.rules.table import Table, change, delete, read
from lark_worker.settings import Settings

FAMILIES: Final[Mapping[str, str]] = {"bridge": bridged.FAMILY, "nat": routed.FAMILY}
ETHERNET: Final = 14


@dataclass(frozen=True, slots=True)
class Count:
    """Packets, and their bytes with Ethernet headers."""

    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a job since its start, apart for the WAN and the local networks.

    ``out_dropped`` and ``in_dropped``: dropped by the policy. ``out_limited``: dropped because they would have opened
    too many connections. ``spoofed``: packets that no job may send.
    """

    out_wan: Count = Count()
    out_local: Count = Count()
    out_dropped: Count = Count()
    out_limited: Count = Count()
    in_wan: Count = Count()
    in_local: Count = Count()
    in_dropped: Count = Count()
    spoofed: Count = Count()

    def report(self) -> dict[str, int]:
        """As they are reported (``POST /v1/jobs/{id}/counters``): the counts of a switch at the job's port."""
        sent = (self.out_wan, self.out_local, self.out_dropped, self.out_limited, self.spoofed)
        given = (self.in_wan, self.in_local)
        return {
            "bytes_out": sum(each.bytes for each in sent),
            "packets_out": sum(each.packets for each in sent),
            "bytes_in": sum(each.bytes for each in given),
            "packets_in": sum(each.packets for each in given),
            "wan_bytes_out": self.out_wan.bytes,
            "wan_packets_out": self.out_wan.packets,
            "wan_bytes_in": self.in_wan.bytes,
            "wan_packets_in": self.in_wan.packets,
            "policy_drops_out": self.out_dropped.packets + self.out_limited.packets,
            "policy_drops_in": self.in_dropped.packets,
        }


class Firewall:
    """The tables of one worker; thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._forwarding = Forwarding(settings.state_dir, settings.external_interface)
        # The contents of each family's table; absent where it was not read since the start.
        self._held: dict[str, Table | None] = {}
        # The contents of jobs' namespaces; absent where they were not read since the start.
        self._inside: dict[str, Table | None] = {}
        # By counter, the counts of a table that was deleted.
        self._lost: dict[str, Count] = {}
        self._last: dict[str, Count] = {}
        # By job, how many packets were over the limit of connections when that was noted last, and what was not taken.
        self._noted: dict[str, int] = {}
        self._limited: dict[str, str] = {}
        self._most: int | None = None

    @property
    def name(self) -> str:
        """The name of the tables."""
        return self._settings.prefix

    def prepare(self, record: Record) -> None:
        """Make the table before a job's device is there: without rules it passes nothing. Raises NetworkError."""
        family = FAMILIES.get(record.network_type)
        if family is None:
            return
        with self._lock:
            self._inside[record.id] = None
            if record.network_type == "nat":
                self._forwarding.take()
            if self._known(family) is None:
                self._put(self._table(family, WorkerRules(), []))

    def close(self, records: Iterable[Record]) -> None:
        """Make missing tables for jobs without rules yet, so that they pass nothing. Raises NetworkError."""
        with self._lock:
            for family in {FAMILIES[record.network_type] for record in records if record.network_type in FAMILIES}:
                if self._known(family) is None:
                    self._put(self._table(family, WorkerRules(), []))

    def apply(self, rules: WorkerRules, records: Iterable[Record], shaped: Shaped) -> Applied:
        """Put the rules of these live jobs in place, but for those whose bandwidth cannot be ``shaped``. Raises
        NetworkError where the kernel does not take them."""
        with self._lock:
            return self._apply(rules, list(records), shaped)

    def note_deleted(self, family: str) -> bool:
        """Note that a table of this name was deleted; True where it is to be put in place again."""
        with self._lock:
            if self._held.pop(family, None) is None or self._known(family) is not None:
                return False
            for name, count in self._last.items():
                before = self._lost.get(name, Count())
                self._lost[name] = Count(before.packets + count.packets, before.bytes + count.bytes)
            self._last.clear()
            return True

    def remove(self, families: Iterable[str] = ("bridge", "inet")) -> None:
        """Delete the tables. Raises NetworkError."""
        with self._lock:
            self._remove(families)

    def take_limited(self) -> dict[str, str]:
        """The jobs that have met their limit of connections since the last call, each with a sentence."""
        with self._lock:
            found, self._limited = self._limited, {}
            return found

    def counters(self, record: Record) -> Counters:
        """The counters of a live job since its start. Raises NetworkError."""
        return self.all_counters([record])[record.id]

    def all_counters(self, records: Iterable[Record]) -> dict[str, Counters]:
        """The counters of these jobs, by id; jobs of other network types have none. Raises NetworkError."""
        chosen = [record for record in records if record.network_type in FAMILIES]
        with self._lock:
            counts: dict[str, Count] = {}
            for family in {FAMILIES[record.network_type] for record in chosen}:
                if self._known(family) is not None:
                    counts |= self._read_counters(family)
            self._last |= counts
            within = {record.id: self._counted_inside(record) for record in chosen if self._inside.get(record.id)}
            return {record.id: self._counters(record.id, counts, within.get(record.id, {})) for record in chosen}

    def _counters(self, job_id: str, counts: Mapping[str, Count], within: Mapping[str, Count]) -> Counters:
        found = {}
        for what in render.COUNTED:
            name = render.counter(job_id, what)
            parts = (counts.get(name, Count()), self._lost.get(name, Count()), within.get(what, Count()))
            found[what] = Count(sum(part.packets for part in parts), sum(part.bytes for part in parts))
        limited = found["out_limited"].packets
        if limited > 2 * self._noted.get(job_id, 0):
            self._noted[job_id] = limited
            log.event("a job has too many connections", level=log.WARNING, job=job_id, most=self._most, packets=limited)
            self._limited[job_id] = f"too many connections (at most {self._most}): {limited} packets dropped so far"
        return Counters(**found)

    def _apply(self, rules: WorkerRules, records: list[Record], shaped: Shaped) -> Applied:
        live = {record.id: record for record in records if record.network_type in FAMILIES and not record.over}
        refused: dict[str, str] = {}
        late = set()
        ports: dict[str, list[Port]] = {"bridge": [], "nat": []}
        for job in rules.jobs:
            record = live.get(job.id)
            if record is None:
                continue
            if not record.made:
                late.add(job.id)
            elif job.network_type != record.network_type or job.mac != record.mac:
                refused[job.id] = "the controller's rules are of another network type or MAC address than the job"
            elif (why := shaped.refused.get(job.id) or self._enter(record, job)) != "":
                refused[job.id] = why
            else:
                own = {key: chosen for key in _keys(job) if (chosen := shaped.classes.get(key)) is not None}
                ports[job.network_type].append(Port(job, record.port, own))
        for kind, family in FAMILIES.items():
            if any(record.network_type == kind for record in live.values()):
                self._put(self._table(family, rules, ports[kind]))
            elif self._known(family) is not None:
                self._remove([family])
        for job in rules.jobs:
            if job.id in live and job.id not in refused and job.id not in late and not is_one_way(job):
                self._leave(live[job.id])
        self._forget(set(live))
        return Applied(refused, frozenset(late), shaped.out)

    def _table(self, family: str, rules: WorkerRules, ports: list[Port]) -> Table:
        if family == bridged.FAMILY:
            return bridged.table(self.name, self._settings.prefix, rules, ports)
        return routed.table(
            self.name,
            self._settings.prefix,
            rules,
            ports,
            networks=self._settings.nat_networks,
            gateways=[gateway_of(network) for network in self._settings.nat_networks],
            external=self._settings.external_interface,
            routes=not self._forwarding.taken,
            connections=self._connections(),
        )

    def _connections(self) -> int:
        """The number of connections that a job may have open at a time; 0, any number, where the kernel cannot count
        them."""
        if self._most is None:
            self._most = self._settings.connections
            name = f"{self.name}_probe"
            script = f"add table inet {name}\nadd chain inet {name} c\nadd rule inet {name} c ct count over 1 drop\n"
            try:
                if self._most:
                    run(["nft", "-f", "-"], script + delete("inet", name))
            except NetworkError as error:
                log.failure("this kernel cannot limit connections (nft_connlimit)", error)
                self._most = 0
        return self._most

    def _put(self, desired: Table) -> None:
        script = change(desired, self._known(desired.family))
        if script:
            # Until the kernel has answered, its contents are unknown.
            del self._held[desired.family]
            run(["nft", "-f", "-"], script)
        self._held[desired.family] = desired

    def _known(self, family: str) -> Table | None:
        """The contents of a family's table; of one from an earlier run of the service, the names of its parts."""
        if family not in self._held:
            # A kernel without this family has no table of it.
            listed = run(["nft", "-j", "list", "tables", family], check=False) or '{"nftables": []}'
            there = any(entry.get("table", {}).get("name") == self.name for entry in json.loads(listed)["nftables"])
            found = json.loads(run(["nft", "-j", "list", "table", family, self.name])) if there else None
            self._held[family] = None if found is None else read(found, family, self.name)
        return self._held[family]

    def _remove(self, families: Iterable[str]) -> None:
        for family in families:
            if self._known(family) is not None:
                run(["nft", "-f", "-"], delete(family, self.name))
            self._held[family] = None
            if family == routed.FAMILY:
                self._forwarding.give_back()

    # -- inside a job's namespace: the directions in which connections may be opened ----------------------------------

    def _enter(self, record: Record, job: JobRules) -> str:
        """Put a one-way job's table in place; returns the reason where that cannot be."""
        desired = one_way(self.name, job, self._connections())
        if desired is None or self._inside.get(record.id) == desired:
            return ""
        # A table of an earlier run of the service is replaced whole; its counters are used by this service alone.
        script = delete("inet", self.name) + change(desired, None)
        try:
            self._within(record, lambda: run(["nft", "-f", "-"], script))
        except NetworkError as error:
            log.failure("a job's connections cannot be tracked", error, job=record.id)
            return "this worker's kernel cannot track connections, which one-way connectivity needs"
        self._inside[record.id] = desired
        return ""

    def _leave(self, record: Record) -> None:
        """Remove the table of a job that is not, or no longer, restricted to one direction."""
        if self._inside.get(record.id, True) is None:
            return
        # Where the kernel cannot track connections there is nothing to delete either.
        with contextlib.suppress(NetworkError):
            self._within(record, lambda: run(["nft", "-f", "-"], delete("inet", self.name)))
        self._inside[record.id] = None

    def _within(self, record: Record, work: Callable[[], object]) -> None:
        if not (NETNS / record.namespace).exists():
            raise NetworkError(f"namespace {record.namespace} is not there")
        inside(record.namespace, lambda: (work(), None)[1])

    def _counted_inside(self, record: Record) -> dict[str, Count]:
        found: list[str] = []
        listing = ["nft", "-j", "list", "counters", "table", "inet", self.name]
        try:
            self._within(record, lambda: found.append(run(listing)))
        except NetworkError:
            return {}  # the namespace has just gone
        return _counts(json.loads(found[0]))

    def _read_counters(self, family: str) -> dict[str, Count]:
        listed = run(["nft", "-j", "list", "counters", "table", family, self.name])
        return _counts(json.loads(listed))

    def _forget(self, live: set[str]) -> None:
        for known in (self._inside, self._noted):
            for job_id in known.keys() - live:
                del known[job_id]
        for counts in (self._lost, self._last):
            for name in [name for name in counts if name.split("_")[1] not in live]:
                del counts[name]


def _counts(listed: Mapping[str, Any]) -> dict[str, Count]:
    """The counters of a listing. The kernel counts without Ethernet headers, switches with them."""
    parts = (entry["counter"] for entry in listed["nftables"] if "counter" in entry)
    return {part["name"]: Count(part["packets"], part["bytes"] + ETHERNET * part["packets"]) for part in parts}


def _keys(job: JobRules) -> tuple[str, ...]:
    """The keys of the shares that a job may have."""
    return (job.id, *(each.key for each in job.reserved))


def is_ruled(record: Record) -> bool:
    """True if a job's policy is enforced here."""
    return record.network_type in (NetworkType.BRIDGE, NetworkType.NAT)
