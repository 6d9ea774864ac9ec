"""Switches, their flows, and the steps of an explanation, as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A switch's port; ``job`` is the id of the job behind it, ``role`` one of local, uplink, job, closed, or the name
    that the policy gives it."""

    number: int
    name: str
    role: str
    job: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchProblem:
    """Something that a switch refused or lacks, and the flow and job that caused it; ``at`` in seconds since 1970."""

    at: float
    problem: str
    flow: str = ""
    job: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """A switch as the controller sees it.

    ``in_sync`` is True only when everything desired was confirmed by barrier after a complete dump. ``desired`` is
    the number of flows that Lark wants there, ``installed`` what the last dump or confirmation counted, ``max_rules``
    the limit (0: none). ``drift`` counts flows that periodic checks found changed by somebody else.
    """

    datapath: str
    name: str
    role: str
    connected: bool
    in_sync: bool
    address: str = ""
    host: str = ""
    description: str = ""
    desired: int = 0
    installed: int = 0
    max_rules: int = 0
    jobs: int = 0
    normal: bool = True
    max_meter: int = 0
    drift: int = 0
    packet_ins: int = 0
    since: float | None = None
    reason: str = ""
    ports: tuple[PortStatus, ...] = ()
    problems: tuple[SwitchProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One flow on a switch, in words, with the policy that asked for it.

    ``state``: installed, missing (desired, not there), foreign (there, not Lark's) or desired (the switch was not
    asked). ``origin`` is a sentence; ``job`` the id of the job it belongs to, if it is one job's. ``packets`` and
    ``bytes`` are None where not read.
    """

    table: int
    table_name: str
    priority: int
    match: str
    actions: str
    cookie: str
    origin: str
    state: str
    job: str | None = None
    packets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """Which flows of a switch a list holds: those of a live job's id, of a table, those that have a text in their words
    (whatever the case). ``None`` and ``""`` are any."""

    job: str | None = None
    table: int | None = None
    text: str = ""


class FlowTable(NamedTuple):
    """A table, and how many flows of it a list holds."""

    number: int
    name: str
    flows: int


@dataclass(frozen=True, slots=True)
class FlowPage:
    """One page of a switch's flows in packet order; ``tables`` counts the whole list, whatever table was chosen."""

    flows: tuple[FlowStatus, ...]
    tables: tuple[FlowTable, ...] = ()
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an explanation: where (a switch and table, or ``directory``, ``pool``, ``policy``), what, the proof.

    ``flow`` is the flow in words, ``packets`` and ``bytes`` its counters where they could be read.
    """

    where: str
    text: str
    flow: str = ""
    packets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a packet from ``src`` reaches ``dst``, in words, step by step.

    ``verdict``: forwarded, dropped or unknown (a switch concerned cannot be asked). ``reason`` is one sentence.
    """

    src: str
    dst: str
    verdict: str
    reason: str
    steps: tuple[Step, ...] = ()


class SwitchControls(Protocol):
    """Operations on switches. Thread-safe; all raise SwitchError where the controller's loop does not answer."""

    def all(self) -> tuple[SwitchStatus, ...]:
        """All switches that are declared or have been connected."""

    def find(self, datapath: str) -> SwitchStatus:
        """One switch, by datapath id (hexadecimal) or name. Raises NotFoundError."""

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        """A page of a switch's flows, desired and installed. Raises NotFoundError, also for a cursor that is none."""

    def explain(self, src: str, dst: str, timeout: float) -> Explanation:
        """Why a packet from ``src`` reaches ``dst`` or not; each an address or a job id.

        Raises NotFoundError, AdError.
        """
