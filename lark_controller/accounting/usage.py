"""Usage: what a job, a group, a user or a host has sent and received, and the rate of it. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub
from typing import Final, NamedTuple

# The largest sum: no job reaches 144 PB, and sums of such sums stay inside the 64 bits of a database's column. A
# larger count of a worker or a switch is an error, which must not keep the use of others from being written.
MOST: Final = 1 << 57


class Usage(NamedTuple):
    """Sums since a beginning.

    ``in`` is towards the job, ``out`` from it. Bytes are those of L2 frames, as a port counts them; everything else
    counts packets. ``wan`` is the part whose other end is not local. Drops are packets that a policy rule, or a queue
    or meter that was full, kept from passing: they are part of ``packets_out`` where the job sent them, and of nothing
    where it was to receive them. ``throttled`` is the time in milliseconds during which packets were dropped by rate.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    packets_in: int = 0
    packets_out: int = 0
    wan_bytes_in: int = 0
    wan_bytes_out: int = 0
    wan_packets_in: int = 0
    wan_packets_out: int = 0
    policy_drops_in: int = 0
    policy_drops_out: int = 0
    rate_drops_in: int = 0
    rate_drops_out: int = 0
    throttled: int = 0

    def plus(self, other: Usage) -> Usage:
        """The sum of two."""
        return Usage(*map(add, self, other))

    def kept(self) -> Usage:
        """No sum above :data:`MOST`."""
        return self if max(self) <= MOST else Usage(*(min(each, MOST) for each in self))

    def bounded(self) -> Usage:
        """No part more than its whole, which rounding may have made of it."""
        return self._replace(
            wan_bytes_in=min(self.wan_bytes_in, self.bytes_in),
            wan_bytes_out=min(self.wan_bytes_out, self.bytes_out),
            wan_packets_in=min(self.wan_packets_in, self.packets_in),
            wan_packets_out=min(self.wan_packets_out, self.packets_out),
        )

    def minus(self, other: Usage) -> Usage:
        """The difference to ``other``, an earlier value of the same sums."""
        return Usage(*map(sub, self, other))


NOTHING: Final = Usage()


class Rate(NamedTuple):
    """Bits a second between the last two readings, L2 frames."""

    inward: int = 0
    outward: int = 0
    wan_inward: int = 0
    wan_outward: int = 0

    def plus(self, other: Rate) -> Rate:
        """The sum of two."""
        return Rate(*map(add, self, other))

    def bounded(self) -> Rate:
        """The WAN's part no more than the whole: flows and ports are read one after the other."""
        return self._replace(
            wan_inward=min(self.wan_inward, self.inward), wan_outward=min(self.wan_outward, self.outward)
        )

    def minus(self, other: Rate) -> Rate:
        """One without the other."""
        return Rate(*map(sub, self, other))


IDLE: Final = Rate()


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The network use of one job: as of ``at`` (seconds since 1970), at the ``rate`` of that moment.

    ``final`` is True once the job is over and its last counters are in.
    """

    usage: Usage = NOTHING
    rate: Rate = IDLE
    at: float = 0.0
    final: bool = False
