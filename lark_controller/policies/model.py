"""A policy once it is read, and its decisions for a job. Frozen; reading and deciding stand elsewhere.

The kinds, in the order in which a packet meets them: block, slice, wan, connectivity; a job's group, its bandwidth on
its worker, and what HTCondor moves for it there are decided beside them. Within a kind the first rule whose ``when`` is
true decides, and the rest of that kind is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

from lark_common.runs import Network
from lark_common.scitags import Collector
from lark_controller.policies.external_spec import ExternalSpec
from lark_controller.policies.transfer_rules import (
    NO_CAPACITY,
    TransferCapacity,
    TransferMark,
    TransferRule,
    TransferTerms,
)

# Limits on the WAN rules and groups of a policy: their positions travel in 7 metadata bits and in DSCP.
MAX_WAN_RULES: Final = 127
MOST_DSCP: Final = 63
MAX_GROUPS: Final = MOST_DSCP


class RuleKind(StrEnum):
    """The kinds of policy, each in a file of its own in this package."""

    BLOCK = "block"
    SLICE = "slice"
    WAN = "wan"
    CONNECTIVITY = "connectivity"
    BANDWIDTH = "bandwidth"
    TRANSFERS = "transfers"
    SCITAGS = "scitags"
    GROUP = "group"


class SwitchRole(StrEnum):
    """``edge``: Open vSwitch on a worker. ``core``: between the site and the WAN. ``access-point``: Open vSwitch on a
    machine where jobs are submitted."""

    EDGE = "edge"
    CORE = "core"
    ACCESS_POINT = "access-point"


class Reach(StrEnum):
    """A connectivity rule's treatment of one direction: as the job ad asks, always, or never."""

    REQUESTED = "requested"
    ALLOW = "allow"
    DENY = "deny"


class GroupControl(StrEnum):
    """The means by which a core or an access point's switch keeps accounting groups to their rates: by OpenFlow meters,
    by queues that the controller makes over OVSDB, or by queues that an administrator made."""

    METERS = "meters"
    QUEUES = "queues"
    PREPROVISIONED = "preprovisioned"


class InboundShares(StrEnum):
    """A worker's treatment, towards its jobs, of the rate that no job has requested: ``split`` it evenly among those
    that may use it, so that no guarantee suffers; or leave it ``open`` to all."""

    SPLIT = "split"
    OPEN = "open"


class BandwidthMode(StrEnum):
    """The meaning of RequestBandwidth on the worker: the most that the job gets, a share that it has for certain and
    may exceed while others leave something, or the one of the two in the job's attribute BandwidthMode."""

    CAP = "cap"
    GUARANTEE = "guarantee"
    REQUESTED = "requested"


@dataclass(frozen=True, slots=True)
class PortSpec:
    """A named port of a declared switch: its number or its interface name, for a WAN port its next hop's MAC and the
    name of the WAN port that takes its place while it is down, and its speed in Mb/s of L2 frame bytes (None: as the
    switch reports)."""

    port: int | str
    next_hop: str | None = None
    speed: float | None = None
    backup: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchSpec:
    """A switch that the policy names.

    ``host`` is the Machine whose jobs are attached to it (edges). ``normal`` None means: find out by asking the
    switch. ``max_rules`` 0 is no limit. ``ovsdb`` is where its OVSDB server listens, None: as in the setting.
    """

    name: str
    datapath: int
    role: SwitchRole
    ports: Mapping[str, PortSpec] = field(default_factory=lambda: MappingProxyType({}))
    host: str | None = None
    max_rules: int = 0
    normal: bool | None = None
    ovsdb: str | None = None
    group_control: GroupControl = GroupControl.METERS


@dataclass(frozen=True, slots=True)
class BlockRule:
    """No traffic at all for the jobs for which ``when`` is true."""

    position: int
    line: int
    when: str


@dataclass(frozen=True, slots=True)
class SliceRule:
    """No traffic between jobs with different values of the expression ``by``; ``when`` None is every job."""

    position: int
    line: int
    by: str
    when: str | None = None


class WanAction(StrEnum):
    """``allow`` is for a rule that exempts some jobs from the rules below it."""

    DROP = "drop"
    STEER = "steer"
    ALLOW = "allow"


# Exceptions of a WAN rule that are named one by one.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class WanRule:
    """The treatment of a job's WAN traffic: dropped but for ``exceptions``, or sent out of the core port ``port``.

    ``position`` counts WAN rules from 1 in file order; it is the WAN class in metadata.
    """

    position: int
    line: int
    action: WanAction
    when: str | None = None
    exceptions: tuple[Network, ...] = ()
    port: str | None = None
    # Made once, since the decision of each job has it.
    does: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "does", self._words())

    def _words(self) -> str:
        if self.port:
            return f"port {self.port}"
        named, more = self.exceptions[:_NAMED], len(self.exceptions) - _NAMED
        kept = f", except {', '.join(_short(each) for each in named)}" if named else ""
        return f"{self.action.value}{kept}{f' and {more} more' if more > 0 else ''}"


def _short(network: Network) -> str:
    return str(network.network_address if network.num_addresses == 1 else network)


@dataclass(frozen=True, slots=True)
class ConnectivityRule:
    """The directions in which a job may open connections."""

    position: int
    line: int
    inbound: Reach
    outbound: Reach
    when: str | None = None


@dataclass(frozen=True, slots=True)
class BandwidthRule:
    """The enforcement of RequestBandwidth on the worker. Rates in Mb/s.

    ``default`` is for jobs that request none, ``maximum`` the most that counts of what is requested, ``ceiling`` the
    most that a guaranteed job may borrow up to, and the most that is guaranteed; None: unlimited, no limit, the link.
    """

    position: int
    line: int
    mode: BandwidthMode
    when: str | None = None
    default: float | None = None
    maximum: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """An accounting group's treatment on the WAN.

    ``dscp`` (1 to 63) marks the group's packets at the edge. ``queue`` is a queue number that the administrator made
    on the WAN ports; ``guarantee`` and ``ceiling`` are Mb/s. With no queue and a ceiling, an OpenFlow meter polices
    the group. ``when`` makes the class apply by predicate instead of by AcctGroup. ``default`` is the class of jobs
    that no other takes.
    """

    name: str
    line: int
    dscp: int
    when: str | None = None
    queue: int | None = None
    guarantee: float | None = None
    ceiling: float | None = None
    burst: float | None = None
    port: str | None = None
    priority: int = 0


class Duplex(StrEnum):
    """``full``: each direction of a link has its capacity. ``half``: both directions share it."""

    FULL = "full"
    HALF = "half"


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link of the site's network: its ends (switches, hosts, or a WAN) and its capacity in Mb/s."""

    name: str
    ends: tuple[str, str]
    capacity: float
    duplex: Duplex = Duplex.FULL


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host's access link: the switch that it hangs on, and its capacity in Mb/s.

    ``capacity`` None means: AvailBandwidth of the worker's machine ad. ``addresses`` are those by which a
    host that runs no jobs is found.
    """

    name: str
    switch: str
    capacity: float | None = None
    duplex: Duplex = Duplex.FULL
    addresses: tuple[Network, ...] = ()


class Reserves(StrEnum):
    """The links that a job's RequestBandwidth reserves: ``host`` its worker's access link, ``wan`` the whole path to
    the WAN."""

    HOST = "host"
    WAN = "wan"


class Refused(StrEnum):
    """The fate of a job for which the network has no room: ``hold``, or back to ``idle``."""

    HOLD = "hold"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class TopologySpec:
    """The network as far as capacity is concerned, for admission control.

    ``hosts`` maps the names of hosts in lower case to their access links; ``default`` is that of workers that are
    neither there nor an end of a link.
    """

    links: tuple[LinkSpec, ...] = ()
    hosts: Mapping[str, HostSpec] = field(default_factory=lambda: MappingProxyType({}))
    default: HostSpec | None = None
    reserves: Reserves = Reserves.HOST
    refused: Refused = Refused.HOLD


@dataclass(frozen=True, slots=True)
class ScitagsRule:
    """The mark of jobs' flows. ``experiment`` and ``activity`` are numbers, or names of the registry; ``requested`` are
    the activities that a job's ad may ask for instead."""

    position: int
    line: int
    experiment: int | str
    activity: int | str
    requested: tuple[int | str, ...] = ()
    when: str | None = None


class NamedScitag(NamedTuple):
    """An experiment and its activity as a rule has them: numbers, or names of the registry."""

    experiment: int | str
    activity: int | str


@dataclass(frozen=True, slots=True)
class FireflySpec:
    """The receivers of reports of marked flows: ``collectors``, and each flow's own destination where ``destinations``
    is true; of flows with the WAN, or of all (``local``). ``ongoing`` is the seconds between two messages of a flow
    that goes on, 0 for none. ``labels``: their IPv6 packets are marked. ``own``: all this is for what jobs send
    themselves, too, and not for transfers alone."""

    collectors: tuple[Collector, ...] = ()
    destinations: bool = False
    local: bool = False
    ongoing: int = 0
    labels: bool = False
    own: bool = False


class Accounting(StrEnum):
    """The jobs whose use of the network is counted: all, those that ask for it (NetworkAccounting), or none."""

    ALL = "all"
    REQUESTED = "requested"
    NONE = "none"


@dataclass(frozen=True)
class Policy:
    """A whole policy file, valid. ``text`` is what was read, ``digest`` its SHA-256.

    ``job_networks`` empty means that jobs live among other hosts (DHCP). ``hosts`` are addresses inside job networks
    that are no job's: gateways and servers. ``edge_uplinks`` are glob patterns (or port
    numbers) of the ports of undeclared edges that lead away from the worker; ``edge_speed`` is the speed of edges'
    uplinks in Mb/s (None: as the switch reports), where the port's own declaration does not have it.
    ``switch_words`` are the words for declared switches and their hosts, in lower case: they name no other switch.
    ``topology`` None means that no capacities are declared: nothing can be reserved, and no job is refused for want
    of room.
    """

    text: str
    digest: str
    job_networks: tuple[Network, ...] = ()
    hosts: tuple[Network, ...] = ()
    local_networks: tuple[Network, ...] = ()
    edge_uplinks: tuple[str, ...] = ()
    edge_speed: float | None = None
    edge_inbound: InboundShares = InboundShares.SPLIT
    block_prefixes: tuple[int, int] = (26, 122)
    switches: Mapping[int, SwitchSpec] = field(default_factory=lambda: MappingProxyType({}))
    switch_words: frozenset[str] = frozenset()
    blocks: tuple[BlockRule, ...] = ()
    slices: tuple[SliceRule, ...] = ()
    wans: tuple[WanRule, ...] = ()
    connectivities: tuple[ConnectivityRule, ...] = ()
    bandwidths: tuple[BandwidthRule, ...] = ()
    transfers: tuple[TransferRule, ...] = ()
    groups: tuple[GroupSpec, ...] = ()
    accounting: Accounting = Accounting.ALL
    topology: TopologySpec | None = None
    scitags: tuple[ScitagsRule, ...] = ()
    fireflies: FireflySpec = FireflySpec()
    external: ExternalSpec | None = None
    transfer_capacity: TransferCapacity = NO_CAPACITY
    transfer_marks: tuple[TransferMark, ...] = ()

    @cached_property
    def cores(self) -> frozenset[int]:
        """The cores that are declared, by their datapath ids: asked for each job that one treats."""
        return frozenset(datapath for datapath, spec in self.switches.items() if spec.role is SwitchRole.CORE)

    @property
    def marks_packets(self) -> bool:
        """True where cores act by DSCP, so that no job may choose its own."""
        return bool(self.groups or self.transfer_marks)


@dataclass(frozen=True, slots=True)
class HostBandwidth:
    """The enforcement of a job's bandwidth on its worker. Rates in Mb/s, None as in :class:`BandwidthRule`.

    ``borrows`` is True where what the job requests is guaranteed, and False where it is the job's limit.
    """

    borrows: bool
    default: float | None = None
    maximum: float | None = None
    ceiling: float | None = None

    def rate(self, requested: float | None) -> float | None:
        """The rate, in Mb/s, of a job that requests so much (None or 0: nothing); None: it is not limited."""
        rate = requested or self.default
        # Nothing is guaranteed to a job, nor booked, that it cannot send.
        bounds = (self.maximum, self.ceiling if self.borrows else None)
        return None if rate is None else min([rate, *(each for each in bounds if each is not None)])

    @property
    def mode(self) -> BandwidthMode:
        """The meaning of what the job requests: a cap or a guarantee."""
        return BandwidthMode.GUARANTEE if self.borrows else BandwidthMode.CAP

    @property
    def words(self) -> str:
        """The enforcement in words, for plans and tables: ``guarantee (default 5, ceiling 50 Mb/s)``."""
        named = (("default", self.default), ("maximum", self.maximum), ("ceiling", self.ceiling))
        rates = ", ".join(f"{name} {rate:g}" for name, rate in named if rate is not None)
        return f"{self.mode} ({rates} Mb/s)" if rates else str(self.mode)


class SliceKey(NamedTuple):
    """A slice: the rule's position and the value of its ``by`` expression (as ClassAd text)."""

    rule: int
    value: str


# Stands for the jobs that no slice rule takes, where they are told from those of slices. Rules begin at 1.
NO_SLICE: Final = SliceKey(0, "")


class Because(NamedTuple):
    """A reason: the kind, the rule's position in its kind, its line in the file, its predicate, and the values met.

    ``values`` are (attribute, ClassAd text) pairs of what the predicate referred to. ``does`` is the rule's treatment
    in words, where no other part of the decision has it.
    """

    kind: RuleKind
    position: int
    line: int
    when: str
    values: tuple[tuple[str, str], ...]
    does: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The policy's decision for one job. Jobs with equal facts share one decision.

    ``wan`` is the position of the WAN rule that applies (0: none). ``inbound`` and ``outbound`` are true where the job
    accepts connections and may open them; both False is no network at all. ``group`` is the name of its GroupSpec,
    ``""`` where the policy has no groups that take it. ``bandwidth`` is None where RequestBandwidth is not enforced,
    ``transfers`` where no rule is about what HTCondor moves for it. ``accounted`` is true where its use of the network
    is counted. ``because`` explains each, in the order in which they are met. ``scitag`` is the mark of its flows.
    ``quarantine`` is no policy's: the pool's contradiction of the job, whose port then passes nothing.
    """

    blocked: bool = False
    slice: SliceKey | None = None
    wan: int = 0
    inbound: bool = True
    outbound: bool = True
    group: str = ""
    bandwidth: HostBandwidth | None = None
    transfers: TransferTerms | None = None
    accounted: bool = True
    because: tuple[Because, ...] = ()
    quarantine: str = ""
    scitag: NamedScitag | None = None

    @property
    def size(self) -> int:
        """The characters of the values in it."""
        met = sum(len(value) for reason in self.because for _, value in reason.values)
        return met + (0 if self.slice is None else len(self.slice.value))

    @property
    def one_way(self) -> bool:
        """True where exactly one direction is open, which needs connection tracking."""
        return self.inbound != self.outbound

    @property
    def isolated(self) -> bool:
        """True where nothing at all may pass."""
        return self.blocked or bool(self.quarantine) or not (self.inbound or self.outbound)
