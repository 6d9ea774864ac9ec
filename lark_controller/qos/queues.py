"""Queues as values: what a port of a switch should have. Rates are whole bits a second of L2 frame bytes.

L2 frame bytes are what Linux's schedulers count: the Ethernet header with the payload, without preamble, frame check
sequence and gap (IEEE 802.3, section 3). So a full pipe of rate r carries TCP payload of 0.956 r at an MTU of 1500.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

# The queue of packets for which no flow chose one: class 1 of Open vSwitch's linux-htb is both queue 0 and its default.
DEFAULT_QUEUE: Final = 0
# Open vSwitch's linux-htb has queues 0 to 61,439 (lib/netdev-linux.c, HTB_N_QUEUES).
MAX_QUEUE: Final = 0xEFFF
# Queue numbers at uplinks: jobs below, flows that are reserved for themselves above.
FIRST_JOB_QUEUE: Final = 1
LAST_JOB_QUEUE: Final = 0x7FFF
FIRST_RESERVED_QUEUE: Final = 0x8000
# Burst of a queue after it had to wait, as a time at its rate. Open vSwitch's own choice is one frame: then a timer
# that comes late loses rate for good, and a busy machine's timers come late by milliseconds.
BURST_SECONDS: Final = 0.03
# Open vSwitch's linux-htb gives no queue less than 1,500 bytes a second, and takes a port's rate of less than a byte
# for none: a job that asked for so little would be without a limit.
LEAST_BITS: Final = 12_000
# HTB has priorities 0 (first) to 7 (TC_HTB_NUMPRIO in Linux).
LAST_PRIORITY: Final = 7


class Queue(NamedTuple):
    """One queue: ``least`` it gets whenever it has packets, ``most`` it may get; bits a second.

    Spare bandwidth goes first to queues with a smaller ``priority``.
    """

    least: int
    most: int
    priority: int = 0

    @property
    def burst(self) -> int:
        """Bits that it may send at once: :data:`BURST_SECONDS` at what it gets for certain, or else at most."""
        return round((self.least or self.most) * BURST_SECONDS)


@dataclass(frozen=True, slots=True)
class PortQueues:
    """The queues of a port: at most ``rate`` bits a second altogether, in queues by number."""

    rate: int
    queues: Mapping[int, Queue] = field(default_factory=lambda: MappingProxyType({}))


def bits(megabits: float) -> int:
    """Mb/s as bits a second; no less than :data:`LEAST_BITS`, unless it is 0."""
    return max(round(megabits * 1_000_000), LEAST_BITS) if megabits else 0
