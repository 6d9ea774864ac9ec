"""The declared tables, their order, and what the bits of ``metadata`` mean. Nothing else gives these numbers.

Edge (Open vSwitch on a worker), in packet order::

    admit -> block -> slice-from -> slice-to -> wan -> track -> connect -> split -> count -> qos -> learn -> forward

Core (between the site and the WAN)::

    classify -> wan -> qos -> inbound -> external -> learn -> forward

A packet starts with metadata 0. ``admit`` (edge) or ``classify`` (core) writes what is known of the job that sent it,
``block`` (edge) or ``classify`` (core) what is known of the job that it goes to; later tables only read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from lark_controller.policies.model import SwitchRole


class Edge(IntEnum):
    """The tables of an edge switch."""

    ADMIT = 0  # only the job's own MAC and addresses leave its port
    BLOCK = 1  # blocked jobs send and receive nothing; whose job a packet goes to
    SLICE_FROM = 2  # a sliced job sends to its own slice's jobs, and to what is no job
    SLICE_TO = 3  # a sliced job receives from its own slice's jobs, and from what is no job
    WAN = 4  # WAN drop and its exceptions, both directions
    TRACK = 5  # jobs with one-way connectivity: look the connection up
    CONNECT = 6  # jobs with one-way connectivity: new connections in the allowed direction only
    SPLIT = 7  # WAN traffic goes through count
    COUNT = 8  # WAN traffic, counted by job
    QOS = 9  # DSCP by accounting group, the queue of a job with bandwidth of its own
    LEARN = 10  # source learning, on switches without NORMAL
    FORWARD = 11  # exact delivery to local jobs; everything else as a plain switch
    DROPS = 12  # packets that a rule dropped, counted by job


class Core(IntEnum):
    """The tables of a core switch."""

    CLASSIFY = (
        0  # a prefix's WAN rule; no job's source address from the WAN; external addresses to the jobs behind them
    )
    WAN = 1  # WAN drop, exceptions, steering
    QOS = 2  # queue or meter by the edge's DSCP
    INBOUND = 3  # queue towards the site, by the group of the job that a packet goes to
    EXTERNAL = 4  # what leaves by a job's external address gets that as its source
    LEARN = 5  # source learning, on switches without NORMAL
    FORWARD = 6  # steered packets to their port; everything else as a plain switch


def table_name(role: SwitchRole, table: int) -> str:
    """A table's name as documents and explanations write it (``slice-from``), or its number where there is none."""
    tables: type[IntEnum] = Edge if role is SwitchRole.EDGE else Core
    try:
        return tables(table).name.lower().replace("_", "-")
    except ValueError:
        return str(table)


@dataclass(frozen=True, slots=True)
class Bits:
    """A run of metadata bits; ``mask`` is theirs in place."""

    shift: int
    width: int
    mask: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", ((1 << self.width) - 1) << self.shift)

    def put(self, value: int) -> tuple[int, int]:
        """(value, mask) in place; raises ValueError where the value does not fit."""
        if not 0 <= value < 1 << self.width:
            raise ValueError(f"{value} does not fit {self.width} bits")
        return value << self.shift, self.mask


TAG_BITS: Final = 18

FROM_TAG: Final = Bits(0, TAG_BITS)  # slice of the local job that sends
TO_TAG: Final = Bits(18, TAG_BITS)  # slice of the local job that receives
FROM_WAN: Final = Bits(36, 7)  # position of the WAN rule of the job that sends; on edges only of one that drops
TO_WAN: Final = Bits(43, 7)  # position of the WAN rule of the job that receives; likewise
FROM_TRACKED: Final = Bits(50, 1)  # the sender has one-way connectivity
TO_TRACKED: Final = Bits(51, 1)  # the receiver has one-way connectivity
FROM_MUTE: Final = Bits(52, 1)  # the sender may not open connections
TO_MUTE: Final = Bits(53, 1)  # the receiver may not be called
GROUP: Final = Bits(54, 6)  # DSCP of the sender's accounting group
FROM_JOB: Final = Bits(60, 1)
TO_JOB: Final = Bits(61, 1)
FROM_SLICED: Final = Bits(62, 1)
TO_SLICED: Final = Bits(63, 1)
# Core switches track nothing, so there the bits mean that a packet leaves by its WAN rule's port, that one of the
# site's own hosts has sent it from behind a WAN port, and that such a one is for a pool that is known at that port.
STEERED: Final = FROM_TRACKED
FROM_HOST: Final = TO_TRACKED
TO_POOL: Final = FROM_MUTE


def combine(*parts: tuple[int, int]) -> tuple[int, int]:
    """One (value, mask) of several that do not overlap."""
    value = mask = 0
    for part_value, part_mask in parts:
        value |= part_value
        mask |= part_mask
    return value, mask


# Priorities. Locally loaded base flows have 1, so everything here overrides them.
P_EXACT: Final = 300
P_GUARD: Final = 290
P_REACTIVE: Final = 250
P_ALLOW: Final = 200
P_DEST: Final = 190
P_ASK: Final = 150
P_DENY: Final = 100
P_SWITCH: Final = 50
P_MISS: Final = 10

IDLE_REACTIVE: Final = 60  # seconds without a packet after which a reactive decision is forgotten
