"""The network of a job: the machine ad's expressions evaluated against the job ad, then the site's script.

As in the paper's section IV: NetworkType, VLAN and the rest may be expressions over the job ad; a script may change the
outcome, e.g. a VLAN's name into its number. Most jobs ask for nothing; Undefined is then never taken for true.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final

import classad2

from lark_common.classads.ads import SEPARATOR
from lark_common.classads.evaluation import evaluate, is_plain
from lark_common.classads.text import ad_text, parse_ad
from lark_common.classads.values import (
    ADDRESS_TYPES,
    NETWORK_TYPES,
    PREFIXED,
    Reader,
)
from lark_common.errors import AdError
from lark_worker.errors import RefusedError
from lark_worker.identity.trusted_ad import TrustedAds
from lark_worker.life.site_program import MAX_OUTPUT, run_program
from lark_worker.network.linux_bridge import bridge_of
from lark_worker.settings import Settings

# Attributes that the service itself sets, whatever slot ad and script have.
OWN: Final = ("ExternalInterface", "InternalInterface", "InnerMacAddress", "DatapathId")
# JobUniverse of virtual machines.
_VM_UNIVERSE: Final = 13
ADDRESSES_HERE: Final = ("controller", "static", "dhcp")


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """The choice for one job; ``machine`` is the machine ad with every network attribute evaluated.

    ``bridge`` is the Linux bridge of a bridge job.
    """

    network_type: str
    address_type: str
    ipv4: IPv4Address | None
    ipv6: IPv6Address | None
    accounted: bool
    machine: classad2.ClassAd
    vlan: int | None = None
    bridge: str = ""


def choose_network(ads: TrustedAds, settings: Settings) -> NetworkChoice:
    """Choose a job's network. Raises RefusedError where this worker cannot make it."""
    job = ads.job
    machine = classad2.ClassAd(repr(ads.machine))
    try:
        _evaluate(machine, job)
        if settings.script is not None:
            for name, value in _script(settings.script, job, machine).items():
                machine[name] = value
            _evaluate(machine, job)
        for name in OWN:
            for spelling in (name, f"Lark{name}"):
                if spelling in machine:
                    del machine[spelling]
        wish = Reader(job, machine)
        silent = wish.boolean("InboundConnectivity") is False and wish.boolean("OutboundConnectivity") is False
        accounted = settings.accounting == "all" or (
            settings.accounting == "requested" and wish.boolean("NetworkAccounting") is True
        )
        read = Reader(machine, job, "Lark")
        network = read.choice("NetworkType", NETWORK_TYPES, "none" if silent else settings.network_type)
        if silent:
            network = "none"
        address = read.choice("AddressType", ADDRESS_TYPES, settings.address_type)
        ipv4, ipv6 = read.ipv4("InnerAddressIPv4"), read.ipv6("InnerAddressIPv6")
        vlan, bridge = read.vlan("VLAN"), bridge_of(read.interface("BridgeInterface") or settings.linux_bridge)
    except AdError as error:
        raise RefusedError(str(error)) from None
    outside = _outside(ads.machine)
    if outside:
        raise RefusedError(f"{outside} outside of their network namespace, so this worker has none for them")
    if network == "nat":
        # A nat job's address is one of the worker's own, whatever the site's other jobs have.
        address = "dhcp" if address == "dhcp" else "static"
        _check_nat(settings, vlan)
    if network == "bridge" and not bridge:
        raise RefusedError("NetworkType bridge: neither the slot's ad (BridgeInterface) nor LINUX_BRIDGE names one")
    if network != "none" and address not in ADDRESSES_HERE:
        raise RefusedError(f"AddressType {address}: this worker has {', '.join(ADDRESSES_HERE)}")
    if network not in ("none", "nat") and address == "static" and ipv4 is None and ipv6 is None:
        raise RefusedError(
            "AddressType static: the slot's ad has neither LarkInnerAddressIPv4 nor LarkInnerAddressIPv6"
        )
    if network != "none" and address == "dhcp":
        if network == "nat":
            raise RefusedError(
                "AddressType dhcp: behind NAT no server's network is reached; NetworkType nat has its own"
            )
        if ipv4 is not None:
            raise RefusedError("AddressType dhcp: the slot's ad has a LarkInnerAddressIPv4, which DHCP alone may say")
    for name, value in (("LarkNetworkType", network), ("LarkAddressType", address)):
        machine[name] = value
    return NetworkChoice(network, address, ipv4, ipv6, accounted, machine, vlan, bridge if network == "bridge" else "")


def _check_nat(settings: Settings, vlan: int | None) -> None:
    if not settings.nat_networks or not settings.external_interface:
        raise RefusedError("NetworkType nat: this worker lacks NAT_NETWORKS or EXTERNAL_INTERFACE")
    if vlan is not None:
        raise RefusedError(f"VLAN {vlan}: a job behind NAT is on no VLAN; what it sends leaves as the worker's own")


def _evaluate(machine: classad2.ClassAd, job: classad2.ClassAd) -> None:
    """Put values in the place of the network attributes' expressions, so that nothing is evaluated twice."""
    for name in list(machine.keys()):
        if name.lower().removeprefix("lark") in PREFIXED and not is_plain(machine.get(name)):
            value: Any = evaluate(machine, name, job)
            del machine[name]
            if value is not None and value is not classad2.Value.Error:
                machine[name] = value


def _script(script: Path, job: classad2.ClassAd, machine: classad2.ClassAd) -> classad2.ClassAd:
    given = f"{ad_text(job).rstrip()}\n{SEPARATOR}\n{ad_text(machine).rstrip()}\n"
    ended = run_program([str(script)], given)
    if ended.why:
        raise RefusedError(ended.why)
    if len(ended.output) > MAX_OUTPUT:
        raise RefusedError(f"{script} printed more than {MAX_OUTPUT} bytes")
    try:
        changed, _ = parse_ad(ended.output.decode("utf-8"))
    except (AdError, UnicodeDecodeError) as error:
        raise RefusedError(f"{script} did not print an ad: {error}") from None
    return changed


def _outside(slot: classad2.ClassAd) -> str:
    """The parts of a job that HTCondor starts without the job's wrapper; "" for none.

    By the startd's ad; the user's does not count.
    """
    if slot.get("WantDocker") is True or slot.get("WantDockerImage") is True:
        return "Docker jobs are started"
    if slot.get("JobUniverse") == _VM_UNIVERSE:
        return "virtual machines are started"
    if any(slot.get(name) is not None for name in ("PreCmd", "PostCmd")):
        return "commands before and after a job (PreCmd, PostCmd) are started"
    return ""
