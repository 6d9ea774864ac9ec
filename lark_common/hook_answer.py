"""A job as its hook is answered: ClassAd lines, which a prepare hook prints for HTCondor to merge into the job ad."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lark_common.runs import Address


class JobAnswer(NamedTuple):
    """The part of the answer that controller and worker service give alike."""

    job_id: str
    state: str
    reason: str
    address_type: str
    network_type: str
    addresses: Iterable[Address] = ()


def name_of(external: Address) -> str:
    """The attribute of an external address."""
    return f"LarkExternalAddressIPv{external.version}"


def external(addresses: Iterable[Address], opened: Iterable[str], name: str) -> dict[str, str]:
    """The attributes of external addresses, of what is open there, and of a name (``""``: none)."""
    found = {name_of(each): str(each) for each in addresses}
    if not found:
        return {}
    return found | {"LarkExternalPorts": ", ".join(opened)} | ({"LarkExternalName": name} if name else {})


def lines(job: JobAnswer, more: Mapping[str, str | int] | None = None) -> str:
    """``Name = value`` lines in old ClassAd syntax; ``more`` are further attributes."""
    values: dict[str, str | int] = {
        "LarkJobId": job.job_id,
        "LarkState": job.state,
        "LarkReason": job.reason,
        "LarkAddressType": job.address_type,
        "LarkNetworkType": job.network_type,
        **{f"LarkInnerAddressIPv{address.version}": str(address) for address in job.addresses},
        **(more or {}),
    }
    return attribute_lines(values)


def attribute_lines(values: Mapping[str, str | int]) -> str:
    """Attributes in old ClassAd syntax, one a line."""
    return "".join(f"{name} = {quoted(value) if isinstance(value, str) else value}\n" for name, value in values.items())


def quoted(text: str) -> str:
    """A ClassAd string that HTCondor and the hook read alike, on one line.

    Old syntax has no escape but the one for a quote: a line break or control character becomes a space, a backslash a
    slash, as the hook itself writes them.
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text.replace("\\", "/"))
    return '"' + " ".join(printable.split()).replace('"', '\\"') + '"'
