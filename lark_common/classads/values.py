"""Reads one typed value after the other out of an ad: the checks on single attributes, and what each accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from types import MappingProxyType
from typing import Any, Final, TypeVar

import classad2

from lark_common.classads.evaluation import evaluate
from lark_common.classads.parts import Ad
from lark_common.classads.text import literal
from lark_common.errors import AdError

# The written value (in lower case) -> its meaning. "null" is the paper's word for no network (section IV).
NETWORK_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {"ovs_bridge": "ovs_bridge", "bridge": "bridge", "nat": "nat", "none": "none", "null": "none"}
)
# "local" is what the original called an address out of the worker's own range.
ADDRESS_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {"static": "static", "local": "static", "dhcp": "dhcp", "controller": "controller"}
)
# Attributes of the machine ad that are accepted with and without the prefix Lark, in lower case.
PREFIXED: Final = frozenset(
    {
        "addresstype",
        "availbandwidth",
        "bridgeinterface",
        "datapathid",
        "externalinterface",
        "inneraddressipv4",
        "inneraddressipv6",
        "innermacaddress",
        "internalinterface",
        "ipprotocol",
        "leaseover",
        "networkaccounting",
        "networktype",
        "vlan",
    }
)
MAX_NAME: Final = 512
# Two names (a user's and a group's) must fit into an entry of PostgreSQL's indexes: 2,704 bytes.
MAX_NAME_BYTES: Final = 1024

AnyAddress = TypeVar("AnyAddress", IPv4Address, IPv6Address)

_MAC = re.compile(r"[0-9a-f]{2}(?:([:-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}")
_DATAPATH = re.compile(r"(?:0x)?([0-9a-f]{1,16})")
# Linux's IFNAMSIZ leaves 15 bytes for an interface's name.
_INTERFACE = re.compile(r"[!-.0-~]{1,15}")
_JOB_ID = re.compile(r"#(\d{1,10})\.(\d{1,10})#")


def cluster_and_proc(global_job_id: str) -> tuple[int, int]:
    """ClusterId and ProcId out of a GlobalJobId (``schedd#cluster.proc#time``); zeros where it is none of that form."""
    found = _JOB_ID.search(global_job_id)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


@dataclass(frozen=True, slots=True)
class Reader:
    """Typed reading of ``ad``, with ``target`` as the other ad.

    Attributes in :data:`PREFIXED` are looked up with ``prefix`` first. Every method returns None where the attribute is
    absent, Undefined or Error, and raises AdError where it has a value that is not accepted. ``names`` are those of the
    ad's attributes in lower case, if they are known: most that are asked for are in few ads.
    """

    ad: Ad
    target: Ad
    prefix: str = ""
    names: frozenset[str] | None = None

    def value(self, name: str) -> tuple[str, Any]:
        """The name under which an attribute was found, and its value."""
        lowered = name.lower()
        if self.prefix and lowered in PREFIXED and (self.names is None or self.prefix.lower() + lowered in self.names):
            found = evaluate(self.ad, self.prefix + name, self.target)
            if found is not None and found is not classad2.Value.Error:
                return self.prefix + name, found
        if self.names is not None and lowered not in self.names:
            return name, None
        found = evaluate(self.ad, name, self.target)
        return name, None if found is classad2.Value.Error else found

    def name(self, name: str) -> str | None:
        """A string on one line, without control characters; an empty one is None."""
        found, value = self.value(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise AdError(found, f"{_shown(value)} is not a string")
        if len(value) > MAX_NAME:
            raise AdError(found, f"{len(value)} characters; at most {MAX_NAME} are accepted")
        if (size := len(value.encode("utf-8", "surrogatepass"))) > MAX_NAME_BYTES:
            raise AdError(found, f"{size} bytes of UTF-8; at most {MAX_NAME_BYTES} are accepted")
        if not value.isprintable() or value != value.strip():
            raise AdError(found, "control characters, or blanks at an end, in a name")
        return value

    def required_name(self, name: str) -> str:
        """As :meth:`name`, but the ad is refused without it."""
        value = self.name(name)
        if value is None:
            state = "empty, Undefined or an error" if name in self.ad else "missing"
            raise AdError(name, f"{state}; a job without it cannot be distinguished from others")
        return value

    def integer(self, name: str) -> int | None:
        """An integer of either sign."""
        found, value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise AdError(found, f"{_shown(value)} is not an integer")
        return value

    def count(self, name: str) -> int | None:
        """An integer of 0 or more."""
        value = self.integer(name)
        if value is not None and value < 0:
            raise AdError(name, f"{value} is negative; 0 or more is accepted")
        return value

    def rate(self, name: str) -> float | None:
        """A number of Mb/s, 0 or more."""
        found, value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise AdError(found, f"{_shown(value)} is not a number of Mb/s")
        if not 0 <= value <= 1e9:
            raise AdError(found, f"{value} Mb/s; 0 to 1e9 is accepted")
        return float(value)

    def boolean(self, name: str) -> bool | None:
        """True or false; a number is true unless it is zero, as everywhere in ClassAds."""
        found, value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, bool | int | float):
            raise AdError(found, f"{_shown(value)} is not a boolean; accepted: true, false")
        return bool(value)

    def choice(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """One of ``choices`` in any case, as its canonical value."""
        found, value = self.value(name)
        if value is None:
            return default
        chosen = choices.get(value.lower()) if isinstance(value, str) else None
        if chosen is None:
            raise AdError(found, f"{_shown(value)} is not accepted; accepted: {', '.join(choices)}")
        return chosen

    def vlan(self, name: str) -> int | None:
        """A VLAN number (IEEE 802.1Q: 1 to 4094)."""
        found, value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise AdError(found, f"{_shown(value)} is not a number, 1 to 4094; a name is for the site's script to turn")
        if not 1 <= value <= 4094:
            raise AdError(found, f"VLAN {value}; 1 to 4094 is accepted")
        return value

    def vlan_or_name(self, name: str) -> int | str | None:
        """A VLAN number, or a site's name for one, which the worker turns into a number."""
        return self.name(name) if isinstance(self.value(name)[1], str) else self.vlan(name)

    def ipv4(self, name: str) -> IPv4Address | None:
        """A host's IPv4 address; a prefix length may follow after a slash."""
        found, text = self._text(name, "an IPv4 address")
        if text is None:
            return None
        try:
            given = IPv4Interface(text) if "/" not in text or text.partition("/")[2].isdigit() else None
        except ValueError:
            given = None
        if given is None:
            raise AdError(found, f"{_shown(text)} is not an IPv4 address, a.b.c.d or a.b.c.d/length")
        network = given.network
        ends = (network.network_address, network.broadcast_address) if network.prefixlen < 31 else ()
        if given.ip in ends or given.ip == IPv4Address("255.255.255.255") or given.ip in _IPV4_THIS:
            raise AdError(found, f"{text} is a network's or broadcast address, not a host's")
        return _host(found, given.ip)

    def ipv6(self, name: str) -> IPv6Address | None:
        """A host's IPv6 address; a prefix length may follow after a slash."""
        found, text = self._text(name, "an IPv6 address")
        if text is None:
            return None
        try:
            given = IPv6Interface(text)
        except ValueError:
            raise AdError(found, f"{_shown(text)} is not an IPv6 address") from None
        # A copy without scope id: link-local and IPv4-mapped addresses are no job's own in the pool.
        address = IPv6Address(int(given.ip))
        if "%" in text or address.is_link_local or address.ipv4_mapped is not None:
            raise AdError(found, f"{text} is link-local or IPv4-mapped; a job needs an address of its own in the pool")
        return _host(found, address)

    def mac(self, name: str) -> str | None:
        """A unicast MAC address, in lower case with colons."""
        found, text = self._text(name, "a MAC address")
        if text is None:
            return None
        lowered = text.lower()
        if not _MAC.fullmatch(lowered):
            raise AdError(found, f"{_shown(text)} is not a MAC address, six pairs of hexadecimal digits")
        mac = lowered.replace("-", ":")
        if int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
            raise AdError(found, f"{mac} is a multicast or the zero address, not a host's")
        return mac

    def interface(self, name: str) -> str | None:
        """The name of a network interface."""
        found, text = self._text(name, "an interface's name")
        if text is None:
            return None
        if not _INTERFACE.fullmatch(text) or text in (".", ".."):
            raise AdError(found, f"{_shown(text)} is not an interface's name: 1 to 15 characters, no blank, no slash")
        return text

    def datapath(self, name: str) -> int | None:
        """An OpenFlow datapath id: up to 16 hexadecimal digits (colons or 0x allowed), or an integer."""
        found, value = self.value(name)
        if value is None:
            return None
        number = -1
        if isinstance(value, str):
            digits = _DATAPATH.fullmatch(value.strip().lower().replace(":", ""))
            number = int(digits.group(1), 16) if digits else -1
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        if number <= 0:
            raise AdError(found, f"{_shown(value)} is not a datapath id: 16 hexadecimal digits, not all zero")
        return number

    def _text(self, name: str, what: str) -> tuple[str, str | None]:
        found, value = self.value(name)
        if value is None:
            return found, None
        if not isinstance(value, str):
            raise AdError(found, f"{_shown(value)} is not {what} in a string")
        return found, value.strip()


_IPV4_THIS = IPv4Interface("0.0.0.0/8").network


def _host(found: str, address: AnyAddress) -> AnyAddress:
    for wrong, word in (
        (address.is_unspecified, "unspecified"),
        (address.is_multicast, "multicast"),
        (address.is_loopback, "loopback"),
    ):
        if wrong:
            raise AdError(found, f"{address} is {word}; a host's address is needed")
    return address


def _shown(value: Any) -> str:
    text = literal(value)
    return text if len(text) <= 60 else text[:57] + "..."
