"""Switches, their flows, and the steps of an explanation, as REST shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Protocol

from lark_controller.api.described import At, Dpid

AWAY: Final = "away"
OUT_OF_SYNC: Final = "out of sync"
JOBS_WAIT: Final = "jobs wait"
IN_SYNC: Final = "in sync"
# The meaning of the member with one of these words, in REST's answers.
STATES: Final = (
    f"State of the switch and its worker: {AWAY}, {OUT_OF_SYNC}, {JOBS_WAIT} (the worker has not confirmed the rules "
    f"of bridge or nat jobs) or {IN_SYNC}"
)


def state_of(*, connected: bool, in_sync: bool, waiting: int) -> str:
    """The state of a switch and its worker in a word; of a worker without a switch its ``waiting`` jobs decide."""
    if not connected:
        return AWAY
    if not in_sync:
        return OUT_OF_SYNC
    return JOBS_WAIT if waiting else IN_SYNC


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A switch's port; ``job`` is the id of the job behind it, ``role`` one of local, uplink, job, closed, or the name
    that the policy gives it."""

    number: Annotated[int, "OpenFlow port number"]
    name: Annotated[str, "Interface name"]
    role: Annotated[str, "local, uplink, job, closed, or the name that the policy gives it"]
    job: Annotated[str | None, "The id of the job behind it"] = None
    job_name: Annotated[str | None, "That job as HTCondor names it, CLUSTER.PROC"] = None


@dataclass(frozen=True, slots=True)
class SwitchProblem:
    """Something that a switch refused or lacks, and the flow and job that caused it; ``at`` in seconds since 1970."""

    at: Annotated[At, "Its time"]
    problem: Annotated[str, "The problem, in words"]
    flow: Annotated[str, "The flow that caused it"] = ""
    job: Annotated[str | None, "The id of the job whose flow it is"] = None
    job_name: Annotated[str | None, "That job as HTCondor names it, CLUSTER.PROC; null where it has ended"] = None


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """The state of a switch.

    ``in_sync`` is True only when everything desired was confirmed by barrier after a complete dump. ``desired`` is
    the number of flows that are desired there, ``installed`` what the last dump or confirmation counted, ``max_rules``
    the limit (0: none). ``drift`` counts foreign changes of flows that periodic checks found.
    """

    datapath: Annotated[Dpid, "Datapath id"]
    name: Annotated[str, "Its name in the policy"]
    role: Annotated[str, "edge, core or access-point"]
    connected: Annotated[bool, "Connected now"]
    in_sync: Annotated[bool, "Everything desired is confirmed by barrier, after a complete dump or a marker"]
    address: Annotated[str, "Address that it connects from"] = ""
    through: Annotated[str, "The controller that stands by and hands it on, where it does not reach this one"] = ""
    host: Annotated[str, "The Machine whose jobs are attached to it"] = ""
    description: Annotated[str, "Its own description"] = ""
    desired: Annotated[int, "Flows that are desired there"] = 0
    installed: Annotated[int, "Flows that are there"] = 0
    max_rules: Annotated[int, "Its rule limit, 0 for none"] = 0
    jobs: Annotated[int, "Jobs attached to it"] = 0
    waiting: Annotated[int, "Bridge and nat jobs of its worker whose rules the worker has not confirmed"] = 0
    normal: Annotated[bool, "Has the NORMAL action"] = True
    max_meter: Annotated[int, "Number of meters that it has"] = 0
    drift: Annotated[int, "Flows that checks found changed by somebody else"] = 0
    packet_ins: Annotated[int, "Packets that it sent to the controller"] = 0
    since: Annotated[At | None, "Time when it connected"] = None
    reason: Annotated[str, "Reason why it is not in sync, or why jobs wait"] = ""
    ports: Annotated[tuple[PortStatus, ...], "Its ports"] = ()
    problems: Annotated[tuple[SwitchProblem, ...], "Refusals and shortcomings, latest first"] = ()

    @property
    def state(self) -> str:
        """Its state and its worker's, in a word."""
        return state_of(connected=self.connected, in_sync=self.in_sync, waiting=self.waiting)


class WanPortStatus(NamedTuple):
    """A WAN port that the policy declares at a connected core, which may lack it: True where it is up, and where
    another takes its place."""

    datapath: str
    name: str
    up: bool
    replaced: bool


class PortLoad(NamedTuple):
    """A core's port to the WAN or to the site, and all that passes it, Mb/s; None where that is not known."""

    name: Annotated[str, "Its name: of a WAN port in the policy, else the interface's"]
    wan: Annotated[bool, "It leads to the WAN"]
    up: Annotated[bool, "It is up"]
    outward: Annotated[float | None, "Present rate in the direction of the WAN, Mb/s; null until it was read twice"]
    inward: Annotated[float | None, "Present rate in the direction of the site, Mb/s; null until it was read twice"]
    capacity: Annotated[float | None, "Its speed, Mb/s, as declared or reported; null where neither is known"]
    declared: Annotated[str | None, "Its name in the policy"] = None
    interface: Annotated[str | None, "Its interface's name at the switch"] = None


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One flow on a switch, in words, with its origin in the policy.

    ``state``: installed, missing (desired, not there), foreign (there, not Lark's) or desired (the switch was not
    asked). ``origin`` is a sentence; ``job`` the id of the job it belongs to, if it is one job's. ``packets`` and
    ``bytes`` are None where not read.
    """

    table: Annotated[int, "Table number"]
    table_name: Annotated[str, "Table name"]
    priority: Annotated[int, "Priority"]
    match: Annotated[str, "Its match, in words"]
    actions: Annotated[str, "Its actions, in words"]
    cookie: Annotated[str, "Its cookie: Lark, the category and the number of a job or rule"]
    origin: Annotated[str, "The policy that asked for it, in words"]
    state: Annotated[str, "installed, missing (desired, not there) or foreign (there, not the controller's)"]
    job: Annotated[str | None, "The id of the job it belongs to"] = None
    packets: Annotated[int | None, "Packets that matched"] = None
    bytes: Annotated[int | None, "Bytes that matched"] = None


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """The flows of a switch that a list holds: those of a live job's id, of a table, those that have a text in their
    words (whatever the case). ``None`` and ``""`` are any."""

    job: str | None = None
    table: int | None = None
    text: str = ""


class FlowTable(NamedTuple):
    """A table, and how many flows of it a list holds."""

    number: Annotated[int, "Table number"]
    name: Annotated[str, "Table name"]
    flows: Annotated[int, "Number of its flows in the list, on all pages"]


@dataclass(frozen=True, slots=True)
class FlowPage:
    """One page of a switch's flows in packet order; ``tables`` counts the whole list, whatever table was chosen."""

    flows: tuple[FlowStatus, ...]
    tables: tuple[FlowTable, ...] = ()
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an explanation: where (a switch and table, or ``directory``, ``pool``, ``policy``, ``transfers``),
    what, the proof.

    ``flow`` is the flow in words, ``packets`` and ``bytes`` its counters where they could be read.
    """

    where: Annotated[str, "A switch and table, or directory, pool, policy or transfers"]
    text: Annotated[str, "The result there, in words"]
    flow: Annotated[str, "The flow"] = ""
    packets: Annotated[int | None, "Packets that it matched"] = None
    bytes: Annotated[int | None, "Bytes that it matched"] = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The way of a packet from ``src`` to ``dst``, in words, step by step.

    ``verdict``: forwarded, dropped or unknown (a switch concerned cannot be asked). ``reason`` is one sentence.
    """

    src: Annotated[str, "From"]
    dst: Annotated[str, "To"]
    verdict: Annotated[str, "forwarded, dropped or unknown (a switch concerned cannot be asked)"]
    reason: Annotated[str, "The reason, in a sentence"]
    steps: Annotated[tuple[Step, ...], "Step by step"] = ()


class SwitchControls(Protocol):
    """Operations on switches. Thread-safe; all raise SwitchError where the controller's loop does not answer."""

    def all(self) -> tuple[SwitchStatus, ...]:
        """All switches that are declared, have been connected or have jobs."""

    def find(self, datapath: str) -> SwitchStatus:
        """One switch, by datapath id (hexadecimal) name, or its host's name. Raises NotFoundError."""

    def names(self, datapaths: Collection[str]) -> Mapping[str, str]:
        """The names of the switches among these datapath ids (hexadecimal)."""

    def hosts_of_jobs(self) -> Mapping[str, Set[str]]:
        """The hosts in lower case of the jobs at each edge, by its datapath id."""

    def core_ports(self) -> Mapping[str, tuple[PortLoad, ...]]:
        """The ports of connected cores with their load, by datapath id."""

    def wan_ports(self) -> tuple[WanPortStatus, ...]:
        """The WAN ports that the policy declares at cores which are connected."""

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        """A page of a switch's flows, desired and installed. Raises NotFoundError, also for a cursor that is none."""

    def explain(self, src: str, dst: str, timeout: float, owner: str | None = None) -> Explanation:
        """Explain why a packet from ``src`` reaches ``dst`` or not; each an address or a job id.

        With ``owner`` one of them is to be a live job of this user, and the answer has nothing of others' jobs.

        Raises NotFoundError, AdError.
        """
