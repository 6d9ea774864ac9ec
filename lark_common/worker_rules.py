"""The rules of jobs that have no port on an OpenFlow switch, as the controller hands them to the job's worker.

Frozen values, and the JSON that stands for them. The worker renders them (``lark_worker``); what they mean is
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

# Network types whose policy the worker enforces.
RULED: Final = frozenset({NetworkType.BRIDGE, NetworkType.NAT})

_ID: Final = re.compile(r"[0-9a-f]{16}")
_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class JobRules:
    """What one job may do.

    ``addresses`` are what it may send from. ``slice`` is a key of :attr:`HostRules.slices` (0: not sliced), ``wan`` one
    of :attr:`HostRules.exceptions` (0: its WAN traffic is not dropped). ``inbound`` and ``outbound`` say in which
    direction connections may be opened; ``isolated``: nothing passes at all. ``dscp`` overwrites that of everything
    that the job sends (None: the policy has no groups). ``dhcp``: the job may ask a DHCP server.
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


@dataclass(frozen=True, slots=True)
class HostRules:
    """The rules of one worker.

    ``job_networks`` are closed to sliced jobs but for the prefixes of their slice and the ``hosts`` in them.
    ``local_networks`` are what is not the WAN.
    """

    job_networks: tuple[Network, ...] = ()
    hosts: tuple[Network, ...] = ()
    local_networks: tuple[Network, ...] = ()
    exceptions: Mapping[int, tuple[Network, ...]] = field(default_factory=lambda: MappingProxyType({}))
    slices: Mapping[int, tuple[Network, ...]] = field(default_factory=lambda: MappingProxyType({}))
    jobs: tuple[JobRules, ...] = ()


def to_json(rules: HostRules) -> dict[str, Any]:
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
            }
            for job in rules.jobs
        ],
    }


def from_json(given: Mapping[str, Any]) -> HostRules:
    """The rules out of a JSON object. Raises ValueError where it is not one of :func:`to_json`."""
    try:
        return HostRules(
            _networks(given["job_networks"]),
            _networks(given["hosts"]),
            _networks(given["local_networks"]),
            {int(number): _networks(texts) for number, texts in given["exceptions"].items()},
            {int(number): _networks(texts) for number, texts in given["slices"].items()},
            tuple(_job(job) for job in given["jobs"]),
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
    )


def _number(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number from 0 to {most}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _texts(values: tuple[Address, ...] | tuple[Network, ...]) -> list[str]:
    return [str(value) for value in values]


def _networks(texts: list[str]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)
