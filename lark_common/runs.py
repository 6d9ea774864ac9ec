"""A run of a job: its key, its addresses, how it is attached, and how it ended."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

# At most 18 digits: the largest number that the controller's tables hold has 19.
_NUMBER: Final = re.compile(
    r"(?:(?P<before>[^#]+)#)?(?P<cluster>[0-9]{1,18})(?:\.(?P<proc>[0-9]{1,18}))?(?:@(?P<after>[^#]+))?"
)

Address = IPv4Address | IPv6Address


Network = IPv4Network | IPv6Network


def link_local(mac: str) -> IPv6Address:
    """The IPv6 link-local address that the kernel makes from a MAC (RFC 4291, appendix A)."""
    return IPv6Address(link_local_number(int(mac.replace(":", ""), 16)))


def link_local_number(mac: int) -> int:
    """:func:`link_local` of integers."""
    return 0xFE80 << 112 | (mac >> 24 ^ 0x020000) << 40 | 0xFFFE << 24 | mac & 0xFFFFFF


def access_point(global_job_id: str) -> str:
    """The access point that a GlobalJobId begins with; ``""`` where it names none."""
    name, mark, _ = global_job_id.partition("#")
    return name if mark else ""


def number(global_job_id: str) -> str:
    """CLUSTER.PROC, the job's name for HTCondor's users; the whole GlobalJobId where it has none."""
    parts = global_job_id.split("#")
    return parts[1] if len(parts) > 1 else global_job_id


def names(jobs: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """The names of jobs that are shown together, by id: CLUSTER.PROC, with the access point where two have it. Each job
    is given by id, CLUSTER.PROC and GlobalJobId."""
    found = [(job_id, called, access_point(global_job_id)) for job_id, called, global_job_id in jobs]
    points: dict[str, set[str]] = {}
    for _, called, point in found:
        points.setdefault(called, set()).add(point)
    return {
        job_id: f"{point}#{called}" if point and len(points[called]) > 1 else called for job_id, called, point in found
    }


class JobNumber(NamedTuple):
    """A cluster of jobs, or one of them: ``proc`` None is all. ``access_point`` is the whole name of where it was
    submitted or the first part of that, None where it is not said."""

    cluster: int
    proc: int | None = None
    access_point: str | None = None


def number_in_word(word: str) -> JobNumber | None:
    """The number that a word is: ``103``, ``103.0``, ``submit1#103.0`` or ``103.0@submit1``; None of another word."""
    found = _NUMBER.fullmatch(word) if word.isprintable() else None
    if found is None or (found["before"] and found["after"]):
        return None
    proc = found["proc"]
    return JobNumber(int(found["cluster"]), None if proc is None else int(proc), found["before"] or found["after"])


class RunKey(NamedTuple):
    """The key of a run: GlobalJobId, JobCurrentStartDate (seconds since 1970, 0 if absent), slot.

    ``slot`` is the machine ad's Name (``slot1_2@worker1.example``), so the nodes of a parallel job, which share a
    GlobalJobId, are different jobs.
    """

    global_job_id: str
    started: int
    slot: str

    @property
    def id(self) -> str:
        """The job's id in REST and logs: 16 hexadecimal digits, the same for the same run on every controller."""
        text = f"{self.global_job_id}\n{self.started}\n{self.slot}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def access_point(self) -> str:
        """The access point that submitted the job; ``""`` where GlobalJobId names none."""
        return access_point(self.global_job_id)


class EndedBy(StrEnum):
    """The event by which a job's end was noticed: its hook's call, the end of its ``condor_starter``, a restart of its
    worker's service, or that it did not start there."""

    HOOK = "hook"
    STARTER = "starter"
    WORKER = "worker"
    START = "start"

    @property
    def reason(self) -> str:
        """The reason that is shown for a job that has ended so."""
        return _ENDINGS[self]


_ENDINGS: Final = {
    EndedBy.HOOK: "ended by its hook",
    EndedBy.STARTER: "ended with its condor_starter",
    EndedBy.WORKER: "ended when its worker started again",
    EndedBy.START: "did not start on its worker",
}


class NetworkType(StrEnum):
    """The attachment of a job (paper, section III); ``none`` is no network at all."""

    OVS_BRIDGE = "ovs_bridge"
    BRIDGE = "bridge"
    NAT = "nat"
    NONE = "none"


class AddressType(StrEnum):
    """The source of a job's address (paper, Table II; ``controller``: assigned by this controller)."""

    STATIC = "static"
    DHCP = "dhcp"
    CONTROLLER = "controller"
