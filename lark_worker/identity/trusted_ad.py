"""The ads of a post: the job's identity from the startd, its wishes from the job's user."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Final

import classad2

from lark_common.classads.ads import SEPARATOR
from lark_common.classads.text import ad_text, literal, parse_ad
from lark_common.errors import AdError
from lark_worker.errors import ForgedError
from lark_worker.identity.startd import IDENTITY, Slot, identity

# Attributes in which a user's copy of the job ad must equal the startd's. HTCondor itself changes others on the way.
COMPARED: Final = ("GlobalJobId", "Owner", "AcctGroup", "AcctGroupUser", "ClusterId", "ProcId")
MAX_AD: Final = 262144


@dataclass(frozen=True, slots=True)
class TrustedAds:
    """The job ad that counts, and the slot's ad as machine ad; neither is to be changed."""

    job: classad2.ClassAd = field(repr=False)
    machine: classad2.ClassAd = field(repr=False)


def trusted_ads(body: bytes, slot: Slot) -> TrustedAds:
    """The job ad with the startd's identity and the user's other attributes; the machine ad is the startd's alone.

    Raises ForgedError where the user's job ad claims to be another job, AdError where it cannot be read.
    """
    given = _job_ad(body)
    own = identity(slot.ad)
    _compare(given, own)
    for name in IDENTITY:
        if name in given:
            del given[name]
    for name in own:
        given[name] = own[name]
    return TrustedAds(given, slot.ad)


def check_same_job(body: bytes, posted: str) -> None:
    """Compare a job ad that is posted again with the first post's.

    Raises as :func:`trusted_ads` does.
    """
    _compare(_job_ad(body), _job_ad(posted.encode("utf-8", "surrogatepass")))


def with_lease(posted: str, address: IPv4Address | None) -> str:
    """A posted body with the address of a lease; None: the lease is over."""
    job, _, machine = posted.partition(f"\n{SEPARATOR}\n")
    changed = parse_ad(machine)[0]
    for name in ("LarkInnerAddressIPv4", "LarkLeaseOver"):
        if name in changed:
            del changed[name]
    if address is None:
        changed["LarkLeaseOver"] = True
    else:
        changed["LarkInnerAddressIPv4"] = str(address)
    return f"{job}\n{SEPARATOR}\n{ad_text(changed).rstrip()}\n"


def _job_ad(body: bytes) -> classad2.ClassAd:
    """The first of the two ads of a post; the second is ignored."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise AdError("", "the ads are not UTF-8") from None
    lines = text.split("\n")
    end = next((number for number, line in enumerate(lines) if line.strip() == SEPARATOR), len(lines))
    return parse_ad("\n".join(lines[:end]))[0]


def _compare(given: classad2.ClassAd, own: classad2.ClassAd) -> None:
    for name in COMPARED:
        if name not in given:
            continue
        value, known = given.lookup(name), own.get(name)
        if known is None:
            # A group that is not in the startd's ad is claimed without proof.
            reason = f"the ad has {_shown(value)}, and the startd has none (its STARTD_JOB_ATTRS must hold {name})"
            raise ForgedError(name, reason)
        if repr(value) != literal(known):
            raise ForgedError(name, f"the ad has {_shown(value)}, the startd {literal(known)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def post_body(job: classad2.ClassAd, machine: classad2.ClassAd) -> str:
    """The body of a registration."""
    return f"{ad_text(job).rstrip()}\n{SEPARATOR}\n{ad_text(machine).rstrip()}\n"
