"""Cookies of flows: owner tag (16 bits) | category (8 bits) | number (40 bits).

A restarted controller sweeps exactly the flows whose owner tag is its own; an operator who sees a cookie in
``ovs-ofctl dump-flows`` reads the category from bits 40 to 47 and the job (or rule) number from the rest. Job cookies
carry the job's number from the store, so that the flows of a job can be found, counted and removed by one masked
request (OpenFlow 1.3.5, section 6.4, cookie filtering).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

OWNER_TAG: Final = 0x1A4B
NUMBER_BITS: Final = 40
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1


class Category(IntEnum):
    """The reason for a flow; the meaning of the number is beside each."""

    LOCAL_BASE = 0x01  # loaded on the worker when OVS starts, before any controller; never swept. Number: 0
    SWITCH = 0x02  # the frame of the tables: misses, host traffic. Number: 0
    JOB = 0x03  # one job's own flows at its port. Number: the job's number
    SLICE = 0x04  # the prefixes that a slice may exchange packets with. Number: the slice's tag on that switch
    WAN = 0x05  # WAN drop, exceptions and steering. Number: the WAN rule's position in the policy
    CLASSIFY = 0x06  # core: the WAN rule or group of a prefix. Number: the rule's or group's
    CONNECTIVITY = 0x07  # one-way connectivity by connection tracking. Number: 0
    GROUP = 0x08  # queue, meter, DSCP of an accounting group. Number: the group's DSCP
    REACTIVE = 0x09  # decided on a PacketIn. Number: a hash of the two addresses
    LEARNED = 0x0A  # L2 learning where the switch has no NORMAL. Number: the VLAN
    COUNT = 0x0B  # counts what one job sends and receives. Number: eight times the job's number, plus what is counted
    MARKER = 0x0C  # matches no packet; shows which program the switch holds whole. Number: a part of its fingerprint

    EXTERNAL = 0x0D  # external addresses: one job's at a core. Number: the job's; 0: what is closed in the pools


# Cookie and mask that choose the flows of this program, and base flows, which are loaded on the worker.
OURS: Final = OWNER_TAG << 48, 0xFFFF << 48
# The kind of count is in the lowest bits of a counting flow's cookie, so that one masked request reads all of them.
COUNT_BITS: Final = 3
CATEGORY_MASK: Final = 0xFFFFFF << NUMBER_BITS


class Cookie(NamedTuple):
    """A cookie, taken apart."""

    owner: int
    category: int
    number: int


def cookie(category: Category, number: int = 0) -> int:
    """The 64-bit cookie of this controller for a category and number; raises ValueError if the number is too large."""
    if not 0 <= number <= NUMBER_MASK:
        raise ValueError(f"cookie number {number} does not fit {NUMBER_BITS} bits")
    return OWNER_TAG << 48 | category << NUMBER_BITS | number


def count_cookie(job: int, kind: int = 0) -> int:
    """The cookie of the flow that counts ``kind`` for a job. Raises ValueError as :func:`cookie`."""
    return cookie(Category.COUNT, job << COUNT_BITS | kind)


def of_job(job: int) -> tuple[tuple[int, int], ...]:
    """Cookies and masks that choose a job's own flows and the flows that count for it."""
    every = (1 << 64) - 1
    return (cookie(Category.JOB, job), every), (count_cookie(job), every ^ ((1 << COUNT_BITS) - 1))


def counted_by(value: int) -> tuple[int, int] | None:
    """The job's number and the kind of count, of a counting flow's cookie; None for any other."""
    if value & CATEGORY_MASK != cookie(Category.COUNT):
        return None
    number = value & NUMBER_MASK
    return number >> COUNT_BITS, number & ((1 << COUNT_BITS) - 1)


def parse(value: int) -> Cookie:
    """The parts of any cookie."""
    return Cookie(value >> 48, value >> NUMBER_BITS & 0xFF, value & NUMBER_MASK)


def is_ours(value: int) -> bool:
    """True for flows that this program installs and may remove (base flows, loaded on the worker, are not)."""
    parts = parse(value)
    return parts.owner == OWNER_TAG and parts.category != Category.LOCAL_BASE
