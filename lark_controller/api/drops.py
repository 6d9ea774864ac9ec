"""The packets that are dropped now, as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from lark_controller.api.described import At, Dpid

# The meaning of `unread`, wherever an answer has it.
UNREAD: Final = (
    "Live jobs whose rates and drops are not known now: not read twice since a start or takeover, at a switch that is "
    "away, without a port, or of a worker that has fallen silent"
)
# The same of `cores_unread`.
CORES_UNREAD: Final = (
    "Connected core switches of which it is not known what they drop of groups now: not looked at twice yet since a "
    "start, a connection or a change of the policy's groups or WAN rules, or not answering"
)

# And of `down`.
DOWN: Final = (
    "WAN ports that are down without a backup that is up, with the live jobs whose packets to the WAN are dropped for "
    "that; no counter has these packets"
)


@dataclass(frozen=True, slots=True)
class Drop:
    """Packets of one job, or of a group at a core, that one rule drops now."""

    packets_per_second: Annotated[float, "Packets a second between the last two readings"]
    source: Annotated[str, "The sender, in words"]
    destination: Annotated[str, "The receiver, in words"]
    rule: Annotated[str, "The rule that drops them, in words"]
    kind: Annotated[
        str,
        "block, quarantine, slice, wan, connectivity, policy (another rule), worker (what a worker drops of its bridge "
        "and nat jobs without a rule), rate (its own queue), group (a core's queue or meter)",
    ]
    direction: Annotated[str, "out (packets from the job) or in"]
    at: Annotated[At, "Time of the reading"]
    estimated: Annotated[bool, "Several rules drop packets and are not counted apart for each job: this is a share"] = (
        False
    )
    line: Annotated[int | None, "The rule's line in the policy"] = None
    job: Annotated[str | None, "The job's id"] = None
    name: Annotated[str | None, "The job as HTCondor names it, CLUSTER.PROC"] = None
    global_job_id: Annotated[str | None, "GlobalJobId"] = None
    owner: Annotated[str | None, "Owner"] = None
    group: Annotated[str, "Its group of the policy"] = ""
    host: Annotated[str | None, "Machine"] = None
    datapath: Annotated[Dpid | None, "The switch that drops them"] = None
    switch: Annotated[str | None, "The name that the policy has for a core that drops them"] = None


@dataclass(frozen=True, slots=True)
class DropsByDown:
    """A WAN port that is down, without a backup that is up, and the live jobs whose packets to the WAN are dropped for
    that. No counter has these packets."""

    port: Annotated[str, "The WAN port, as the policy names it; empty with the scope self"]
    switches: Annotated[tuple[str, ...], "The cores where it is down; none with the scope self"]
    jobs: Annotated[
        int, "Live jobs that would leave by it: steered there, or by no rule where it is the first WAN port of a core"
    ]


@dataclass(frozen=True, slots=True)
class DropList:
    """The drops of now, the most first; ``jobs`` and ``packets_per_second`` are those of all jobs, listed or not, and
    ``groups`` those of which cores drop something, whose jobs are not told apart.
    ``down`` are the WAN ports by which nothing leaves,
    which is not in these numbers, with the jobs of all, of the user or the one.
    ``away`` are the switches that cannot be asked now, None of one user's jobs or of one job, ``uncounted`` the live
    jobs that the policy in force does not count, or those of the user, and ``unread`` those whose rates and drops are
    not known now. ``cores_unread`` are the cores whose drops are not known, None as ``away``."""

    drops: tuple[Drop, ...]
    jobs: int
    packets_per_second: float
    away: int | None = None
    uncounted: int = 0
    unread: int = 0
    cores_unread: int | None = None
    groups: int = 0
    down: tuple[DropsByDown, ...] = ()


class DropControls(Protocol):
    """The operations on drops. Thread-safe."""

    def now(self, limit: int, owner: str | None = None) -> DropList:
        """The drops of now: the ``limit`` most, of all jobs or of one user's."""

    def of_job(self, limit: int, job_id: str) -> DropList:
        """The drops of now of one job, by rule; nothing of one that is over."""

    def away(self) -> int:
        """The number of switches that cannot be asked now."""

    def uncounted(self, owner: str | None = None) -> int:
        """The number of live jobs with a network, of all users or of one, whose use the policy in force does not
        count."""

    def unread(self, owner: str | None = None) -> int:
        """The number of live jobs with a network, of all users or of one, whose rates and drops are not known now."""

    def cores_unread(self) -> int:
        """The number of connected cores of which it is not known what they drop of groups now."""
