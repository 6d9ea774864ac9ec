"""ClassAd text or JSON -> JobAd, MachineAd; the only place that validates ads."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

import classad2


@dataclass(frozen=True, slots=True)
class JobAd:
    """A job ad that was accepted. ``ad`` is the parsed ad (not to be changed), ``text`` the same in old syntax.

    ``group`` is AcctGroup (``""`` where the job has none); ``bandwidth`` RequestBandwidth in Mb/s; ``inbound`` and
    ``outbound`` are None where the job does not ask (absent, Undefined).
    """

    global_job_id: str
    started: int
    owner: str
    user: str
    group: str
    cluster: int
    proc: int
    prio: int
    bandwidth: float | None
    inbound: bool | None
    outbound: bool | None
    accounting: bool | None
    text: str = field(repr=False)
    ad: classad2.ClassAd = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class MachineAd:
    """A machine ad that was accepted. ``port`` is ExternalInterface, ``datapath`` LarkDatapathId, ``mac`` the inner MAC."""

    machine: str
    slot: str
    network_type: str
    address_type: str
    ipv4: IPv4Address | None
    ipv6: IPv6Address | None
    mac: str | None
    port: str | None
    datapath: int | None
    vlan: int | None
    text: str = field(repr=False)
    ad: classad2.ClassAd = field(repr=False, compare=False)
