"""ClassAd text or JSON -> JobAd, MachineAd; the only place that validates ads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from lark_common.classads import values as ad_values
from lark_common.classads.parts import Ad, lower_names
from lark_common.classads.text import attribute_at, from_json, parse_named
from lark_common.classads.values import Reader
from lark_common.errors import AdError

SEPARATOR: Final = "------"
MAX_BYTES: Final = 262144
_SEPARATING: Final = re.compile(rf"{SEPARATOR}[ \t\r]*+(?=\n|\Z)")

# An ad, its text, and the names of its attributes in lower case.
_Parsed = tuple[Ad, str, frozenset[str]]
# The attributes, in lower case, that are read of every job ad and machine ad. Others may be read as well; they take
# longer.
_ASKED_OF_JOBS: Final = frozenset(
    {
        "accountinggroup", "acctgroup", "acctgroupuser", "clusterid", "externalfamily", "externalname",
        "externalports", "globaljobid", "inboundconnectivity", "ipprotocol", "jobcurrentstartdate", "jobprio",
        "networkaccounting", "outboundconnectivity", "owner", "procid", "remotehost", "requestbandwidth",
        "requestedvlan", "requestexternaladdress", "requestmpibandwidth", "user",
    }
)  # fmt: skip
_ASKED_OF_MACHINES: Final = frozenset({"machine", "name"}) | {
    name for bare in ad_values.PREFIXED for name in (bare, f"lark{bare}")
}


@dataclass(frozen=True, slots=True)
class JobAd:
    """A job ad that was accepted. ``ad`` is the parsed ad (not to be changed), ``text`` the same in old syntax.

    ``group`` is AcctGroup (``""`` where the job has none); ``bandwidth`` RequestBandwidth in Mb/s; ``inbound`` and
    ``outbound`` are None where the job does not ask (absent, Undefined). ``text`` is in new syntax where a string holds
    a line break, which old syntax cannot say; HTCondor's private attributes (ClaimId and the like) are left out of it.
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
    ad: Ad = field(repr=False, compare=False)
    ip_protocol: str | None = None
    requested_vlan: int | str | None = None
    external: bool = False
    external_ports: str | None = None
    external_family: str | None = None
    # Of a parallel job: the pattern that its submit file asks for, its nodes, which of them this is, and their slots.
    mpi_bandwidth: str | None = None
    nodes: int | None = None
    node: int | None = None
    hosts: tuple[str, ...] = ()
    external_name: str | None = None


@dataclass(frozen=True, slots=True)
class MachineAd:
    """A machine ad that was accepted. ``port`` is ExternalInterface, ``mac`` the MAC address inside the job.

    ``network_type`` and ``address_type`` are values of jobs.NetworkType and jobs.AddressType; ``available_bandwidth``
    is AvailBandwidth in Mb/s. ``lease_over``: the IPv4 address that the run had from DHCP is its own no more.
    """

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
    ad: Ad = field(repr=False, compare=False)
    ip_protocol: str | None = None
    available_bandwidth: float | None = None
    accounting: bool | None = None
    bridge_interface: str | None = None
    internal_interface: str | None = None
    lease_over: bool = False


def parse_post(body: bytes, content_type: str, limit: int = MAX_BYTES) -> tuple[JobAd, MachineAd]:
    """The two ads of a posted body of at most ``limit`` bytes.

    ``text/plain``: the job ad, a line ``------``, the machine ad, each in old or new ClassAd syntax.
    ``application/json``: ``{"job_ad": …, "machine_ad": …}``, each an object as HTCondor prints it, or a string that
    holds an ad. Raises AdError, naming the attribute, for whatever is not wholly understood.
    """
    if len(body) > limit:
        raise AdError("", f"the ads take {len(body)} bytes; at most {limit} are accepted")
    media = content_type.partition(";")[0].strip().lower()
    if media not in ("text/plain", "application/json"):
        raise AdError("", f"content type {content_type!r}; accepted: text/plain, application/json")
    if 0 in body:
        offset = body.index(0)
        raise AdError(attribute_at(body, offset), f"a NUL byte at offset {offset}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} (0x{body[error.start]:02x}) is not UTF-8; ads must be UTF-8 text"
        raise AdError(attribute_at(body, error.start), reason) from None
    if media == "application/json":
        job, machine = _from_json_text(text)
    else:
        first, second = _split(text)
        job = _parse("job ad", first, _ASKED_OF_JOBS)
        machine = _parse("machine ad", second, _ASKED_OF_MACHINES)
    (job_ad, job_text, job_names), (machine_ad, machine_text, machine_names) = job, machine
    of_job, of_machine = Reader(job_ad, machine_ad, "", job_names), Reader(machine_ad, job_ad, "Lark", machine_names)
    return _job_ad(of_job, job_text), _machine_ad(of_machine, machine_text)


def _split(text: str) -> tuple[str, str]:
    place = -1 if text.startswith(SEPARATOR) else 0
    # A search for the whole line would look at every line of the ad by the expression.
    while place < 0 or (place := text.find(f"\n{SEPARATOR}", place)) >= 0:
        found = _SEPARATING.match(text, place + 1)
        if found is not None:
            return text[: found.start()], text[found.end() :]
        place += 1
    raise AdError("", f"no line {SEPARATOR!r} between job ad and machine ad")


def _parse(which: str, text: str, asked: frozenset[str] | None = None) -> _Parsed:
    try:
        return parse_named(text, asked)
    except AdError as error:
        raise AdError(error.attribute, f"{error.reason} (in the {which})") from None


def _from_json_text(text: str) -> tuple[_Parsed, _Parsed]:
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise AdError("", "the JSON text is nested too deeply") from None
    except ValueError as error:
        raise AdError("", f"not a JSON text: {error}") from None
    if not isinstance(document, dict):
        raise AdError("", "the JSON text is not an object with the members job_ad and machine_ad")
    unknown = sorted(set(document) - {"job_ad", "machine_ad"})
    if unknown:
        raise AdError("", f"unknown member {unknown[0][:60]!a}; accepted: job_ad, machine_ad")
    return _json_ad(document, "job_ad"), _json_ad(document, "machine_ad")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _json_ad(document: dict[str, Any], member: str) -> _Parsed:
    if member not in document:
        raise AdError("", f"no member {member}; accepted: an object or a string that holds the ad")
    given = document[member]
    if isinstance(given, str):
        if any("\ud800" <= character <= "\udfff" for character in given):
            raise AdError("", f"half a surrogate pair in {member}")
        return _parse(member, given)
    if not isinstance(given, dict):
        raise AdError("", f"{member} is neither an object nor a string that holds the ad")
    ad, text = from_json(given)
    return ad, text, lower_names(ad)


def _job_ad(read: Reader, text: str) -> JobAd:
    mpi_bandwidth = read.name("RequestMpiBandwidth")
    # Of other jobs nobody looks at them, so nothing about them is refused.
    nodes, node, hosts = (None, None, ()) if mpi_bandwidth is None else _nodes(read)
    owner = read.required_name("Owner")
    global_job_id = read.required_name("GlobalJobId")
    cluster, proc = ad_values.cluster_and_proc(global_job_id)
    return JobAd(
        global_job_id=global_job_id,
        started=read.count("JobCurrentStartDate") or 0,
        owner=owner,
        user=read.name("User") or owner,
        group=_group(read, owner),
        cluster=_or(read.count("ClusterId"), cluster),
        proc=_or(read.count("ProcId"), proc),
        prio=read.integer("JobPrio") or 0,
        bandwidth=read.rate("RequestBandwidth"),
        inbound=read.boolean("InboundConnectivity"),
        outbound=read.boolean("OutboundConnectivity"),
        accounting=read.boolean("NetworkAccounting"),
        text=text,
        ad=read.ad,
        ip_protocol=read.name("IPProtocol"),
        requested_vlan=read.vlan_or_name("RequestedVLAN"),
        external=read.boolean("RequestExternalAddress") or False,
        external_ports=read.name("ExternalPorts"),
        external_family=read.name("ExternalFamily"),
        mpi_bandwidth=mpi_bandwidth,
        nodes=nodes,
        node=node,
        hosts=hosts,
        external_name=read.name("ExternalName"),
    )


def _nodes(read: Reader) -> tuple[int | None, int | None, tuple[str, ...]]:
    """The number of a parallel job's nodes, which of them this is, and their slots in that order."""
    _, slots = read.value("AllRemoteHosts")
    hosts = tuple(slot.strip() for slot in slots.split(",")) if isinstance(slots, str) and slots else ()
    return read.count("MaxHosts"), read.count("Node"), hosts


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _group(read: Reader, owner: str) -> str:
    names = (read.name(name) or "" for name in ("AcctGroup", "AccountingGroup", "AcctGroupUser"))
    return group_of(*names, owner=owner)


def group_of(acct_group: str, accounting_group: str, acct_group_user: str, *, owner: str) -> str:
    """The accounting group of a job by the attributes of these names; ``""`` where it has none."""
    if acct_group:
        return acct_group
    # HTCondor writes AccountingGroup as group.user, in a slot's ad with the user's domain; without a group it is the
    # user alone.
    accounting_group = accounting_group.partition("@")[0]
    for user in (acct_group_user, owner):
        if user and accounting_group == user:
            return ""
        if user and accounting_group.endswith(f".{user}"):
            return accounting_group[: -len(user) - 1]
    return accounting_group


def _machine_ad(read: Reader, text: str) -> MachineAd:
    # The job ad's RemoteHost is the slot that the job runs on, where the machine ad does not say it.
    slot = read.name("Name") or Reader(read.target, read.ad).name("RemoteHost") or ""
    machine = read.name("Machine") or slot.rpartition("@")[2]
    if not machine:
        raise AdError("Machine", "missing; the machine ad needs Machine or Name")
    network_type = read.choice("NetworkType", ad_values.NETWORK_TYPES, "ovs_bridge")
    address_type = read.choice("AddressType", ad_values.ADDRESS_TYPES, "static")
    ipv4 = read.ipv4("InnerAddressIPv4")
    ipv6 = read.ipv6("InnerAddressIPv6")
    if ipv4 is None and ipv6 is None and network_type != "none" and address_type == "static":
        raise AdError(
            "LarkInnerAddressIPv4",
            "missing, and so is LarkInnerAddressIPv6; without an address AddressType must be controller or dhcp",
        )
    lease_over = read.boolean("LeaseOver") or False
    if lease_over and (address_type != "dhcp" or ipv4 is not None):
        raise AdError("LarkLeaseOver", "is for AddressType dhcp, and for an ad without LarkInnerAddressIPv4")
    return MachineAd(
        machine=machine,
        slot=slot or machine,
        network_type=network_type,
        address_type=address_type,
        ipv4=ipv4,
        ipv6=ipv6,
        mac=read.mac("InnerMacAddress"),
        port=read.interface("ExternalInterface"),
        datapath=read.datapath("DatapathId"),
        vlan=read.vlan("VLAN"),
        text=text,
        ad=read.ad,
        ip_protocol=read.name("IPProtocol"),
        available_bandwidth=read.rate("AvailBandwidth"),
        accounting=read.boolean("NetworkAccounting"),
        bridge_interface=read.interface("BridgeInterface"),
        internal_interface=read.interface("InternalInterface"),
        lease_over=lease_over,
    )
