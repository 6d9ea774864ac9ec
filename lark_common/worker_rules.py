"""The rules of jobs that have no port on an OpenFlow switch, as the controller hands them to the job's worker.

Frozen values, and the JSON that stands for them. The worker renders them (``lark_worker``); their meaning is
:func:`lark_controller.flows.worker_rules.permits`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import Any, Final

from lark_common.runs import Address, Network, NetworkType

# The key of :attr:`WorkerRules.slices` that is no slice, but has the addresses of jobs in none. Others are less.
UNSLICED: Final = 1 << 18

# Network types whose policy the worker enforces.
RULED: Final = frozenset({NetworkType.BRIDGE, NetworkType.NAT})

# The conntrack zone of all Lark bridges of a worker: one zone, because a packet between two local jobs must be one
# connection; and the zone of echo and all protocols but TCP and UDP, which is flushed whole when a job ends (an Open
# vSwitch that cannot flush an address has the reason), at the cost of another job's answer that is under way.
CT_ZONE: Final = 0x4C4B
CT_ZONE_OTHERS: Final = 0x4C4C
# On cores: connections of senders that no prefix identifies, each marked with its group's DSCP.
CT_ZONE_GROUPS: Final = 0x4C4D

_ID: Final = re.compile(r"[0-9a-f]{16}")
_KEY: Final = re.compile(r"[0-9a-f]{16}(/[0-9]{1,18})?")
# 10 Tb/s and more is nobody's interface.
_MOST_BITS: Final = 10**14
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class Share:
    """The bandwidth of a queue whenever it has packets (``least``) and at most (``most``), in bits a second of L2
    frames; and the bits that it may send at once (``burst``)."""

    least: int
    most: int
    burst: int


@dataclass(frozen=True, slots=True)
class Uplink:
    """The queues of what leaves a worker by one interface: ``rate`` bits a second altogether.

    ``shares`` are those of jobs, by the job's id, and of flows that jobs have reserved, by :attr:`ReservedShare.key`;
    ``parts`` are of jobs that asked for nothing, by the job's id: nobody has a right to them. ``rest`` is the queue of
    all others together.
    """

    rate: int
    rest: Share
    shares: Mapping[str, Share] = field(default_factory=lambda: MappingProxyType({}))
    parts: Mapping[str, Share] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class WayOut:
    """The interfaces by which jobs of a network type leave their worker: those of one Linux bridge, or those behind
    NAT."""

    network_type: NetworkType
    uplinks: frozenset[str]


@dataclass(frozen=True, slots=True)
class WaysOut:
    """A worker's interfaces that lead away: their ``speeds`` in Mb/s by name (None: not known), and the ``ways`` of its
    jobs; where it has told none, each job leaves by any."""

    speeds: Mapping[str, float | None] = field(default_factory=lambda: MappingProxyType({}))
    ways: tuple[WayOut, ...] = ()


UNTOLD: Final = WaysOut()


@dataclass(frozen=True, slots=True)
class ReservedShare:
    """A flow of a job that has a share of its own at the uplinks: what it sends to ``target`` (empty: to the WAN)."""

    key: str
    target: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRules:
    """The rules of one job.

    ``addresses`` are its permitted sources. ``slice`` is a key of :attr:`WorkerRules.slices` (0: the job networks are
    open to it), ``wan`` one of :attr:`WorkerRules.exceptions` (0: its WAN traffic is not dropped). ``inbound`` and
    ``outbound`` say in which direction connections may be opened; ``isolated``: nothing passes at all. ``dscp``
    overwrites that of everything that the job sends (None: the policy has no groups). ``dhcp``: the job may ask a DHCP
    server. ``inward`` limits what is sent to the job (None: nothing does), and ``reserved`` are the flows that it has
    reserved.
    """

    id: str
    network_type: NetworkType
    mac: str
    addresses: tuple[Address, ...] = ()
    vlan: int | None = None
    dhcp: bool = False
    isolated: bool = False
    slice: int = 0
    wan: int = 0
    inbound: bool = True
    outbound: bool = True
    dscp: int | None = None
    inward: Share | None = None
    reserved: tuple[ReservedShare, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """The rules of one worker.

    ``job_networks`` are closed to jobs with a ``slice`` but for its prefixes and the ``hosts`` in them.
    ``local_networks`` are not part of the WAN. ``uplinks`` are the worker's by the interface's name; None where the
    controller does not know them yet, so that the queues that stand are to stay.
    """

    job_networks: tuple[Network, ...] = ()
    hosts: tuple[Network, ...] = ()
    local_networks: tuple[Network, ...] = ()
    exceptions: Mapping[int, tuple[Network, ...]] = field(default_factory=lambda: MappingProxyType({}))
    slices: Mapping[int, tuple[Network, ...]] = field(default_factory=lambda: MappingProxyType({}))
    jobs: tuple[JobRules, ...] = ()
    uplinks: Mapping[str, Uplink] | None = None


def to_json(rules: WorkerRules) -> dict[str, Any]:
    """The rules as a JSON object."""
    return {
        "job_networks": _texts(rules.job_networks),
        "hosts": _texts(rules.hosts),
        "local_networks": _texts(rules.local_networks),
        "exceptions": {str(number): _texts(networks) for number, networks in sorted(rules.exceptions.items())},
        "slices": {str(number): _texts(networks) for number, networks in sorted(rules.slices.items())},
        "jobs": [
            {
                "id": job.id,
                "network_type": str(job.network_type),
                "mac": job.mac,
                "addresses": _texts(job.addresses),
                "vlan": job.vlan,
                "dhcp": job.dhcp,
                "isolated": job.isolated,
                "slice": job.slice,
                "wan": job.wan,
                "inbound": job.inbound,
                "outbound": job.outbound,
                "dscp": job.dscp,
                "inward": None if job.inward is None else _share_json(job.inward),
                "reserved": [{"key": each.key, "target": _texts(each.target)} for each in job.reserved],
            }
            for job in rules.jobs
        ],
        "uplinks": None
        if rules.uplinks is None
        else {
            name: {
                "rate": each.rate,
                "rest": _share_json(each.rest),
                "shares": {key: _share_json(share) for key, share in each.shares.items()},
                "parts": {key: _share_json(share) for key, share in each.parts.items()},
            }
            for name, each in rules.uplinks.items()
        },
    }


def from_json(given: Mapping[str, Any]) -> WorkerRules:
    """The rules out of a JSON object. Raises ValueError where it is not one of :func:`to_json`."""
    try:
        return WorkerRules(
            _networks(given["job_networks"]),
            _networks(given["hosts"]),
            _networks(given["local_networks"]),
            {int(number): _networks(texts) for number, texts in given["exceptions"].items()},
            {int(number): _networks(texts) for number, texts in given["slices"].items()},
            tuple(_job(job) for job in given["jobs"]),
            None if given["uplinks"] is None else {name: _uplink(each) for name, each in given["uplinks"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the rules of a host: {error!r}") from None


def _job(given: Mapping[str, Any]) -> JobRules:
    if not _ID.fullmatch(given["id"]) or not _MAC.fullmatch(given["mac"]):
        raise ValueError(f"no job: {given['id']!r} with MAC {given['mac']!r}")
    return JobRules(
        given["id"],
        NetworkType(given["network_type"]),
        given["mac"],
        tuple(ip_address(text) for text in given["addresses"]),
        None if given["vlan"] is None else _number(given["vlan"], 4094),
        _flag(given["dhcp"]),
        _flag(given["isolated"]),
        _number(given["slice"], 1 << 32),
        _number(given["wan"], 1 << 32),
        _flag(given["inbound"]),
        _flag(given["outbound"]),
        None if given["dscp"] is None else _number(given["dscp"], 63),
        None if given["inward"] is None else _share(given["inward"]),
        tuple(ReservedShare(_key(each["key"]), _networks(each["target"])) for each in given["reserved"]),
    )


def _uplink(given: Mapping[str, Any]) -> Uplink:
    shares = {_key(key): _share(each) for key, each in given["shares"].items()}
    # A controller of a release before has none.
    parts = {_key(key): _share(each) for key, each in given.get("parts", {}).items()}
    return Uplink(_number(given["rate"], _MOST_BITS), _share(given["rest"]), shares, parts)


def _share(given: Mapping[str, Any]) -> Share:
    return Share(*(_number(given[name], _MOST_BITS) for name in ("least", "most", "burst")))


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise ValueError(f"no key of a share: {text!r}")
    return text


def _number(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number from 0 to {most}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _share_json(share: Share) -> dict[str, int]:
    return {"least": share.least, "most": share.most, "burst": share.burst}


def _texts(values: tuple[Address, ...] | tuple[Network, ...]) -> list[str]:
    return [str(value) for value in values]


def _networks(texts: list[str]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)
