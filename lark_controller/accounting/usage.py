"""Usage: what a job, a group, a user or a host has sent and received, and the rate of it. Frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import add, itemgetter, le, sub
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

    ``transfer`` is what HTCondor moved for the job outside of the job's network: bytes of TCP's payload, the part of
    them whose other end is in the WAN, and the time in which it did, in milliseconds. It is no part of the others.
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
    transfer_bytes_in: int = 0
    transfer_bytes_out: int = 0
    transfer_wan_bytes_in: int = 0
    transfer_wan_bytes_out: int = 0
    transfer_millis: int = 0

    def plus(self, other: Usage) -> Usage:
        """The sum of two."""
        return usage_of(map(add, self, other))

    def kept(self) -> Usage:
        """No sum above :data:`MOST`."""
        return self if max(self) <= MOST else Usage(*(min(each, MOST) for each in self))

    def is_bounded(self) -> bool:
        """True where no part is more than its whole."""
        return all(map(le, _wan(self), _wholes(self))) and all(map(le, _wan_transfers(self), _transfers(self)))

    def bounded(self) -> Usage:
        """No part more than its whole, which rounding may have made of it."""
        return self._replace(
            wan_bytes_in=min(self.wan_bytes_in, self.bytes_in),
            wan_bytes_out=min(self.wan_bytes_out, self.bytes_out),
            wan_packets_in=min(self.wan_packets_in, self.packets_in),
            wan_packets_out=min(self.wan_packets_out, self.packets_out),
            transfer_wan_bytes_in=min(self.transfer_wan_bytes_in, self.transfer_bytes_in),
            transfer_wan_bytes_out=min(self.transfer_wan_bytes_out, self.transfer_bytes_out),
        )

    def minus(self, other: Usage) -> Usage:
        """The difference to ``other``, an earlier value of the same sums."""
        return usage_of(map(sub, self, other))


NOTHING: Final = Usage()
# Usage of all its sums in their order, without a call of Python: made for each job that is written.
usage_of: Final[Callable[[Iterable[int]], Usage]] = partial(tuple.__new__, Usage)


def _between(first: str, last: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
    fields = Usage._fields
    return itemgetter(*range(fields.index(first), fields.index(last) + 1))


# The wholes, and the parts of them that are of the WAN, in the same order.
_wholes: Final = _between("bytes_in", "packets_out")
_wan: Final = _between("wan_bytes_in", "wan_packets_out")
_transfers: Final = _between("transfer_bytes_in", "transfer_bytes_out")
_wan_transfers: Final = _between("transfer_wan_bytes_in", "transfer_wan_bytes_out")


class Rate(NamedTuple):
    """Bits a second between the last two readings, L2 frames; those of transfers apart, payload."""

    inward: int = 0
    outward: int = 0
    wan_inward: int = 0
    wan_outward: int = 0
    transfer_inward: int = 0
    transfer_outward: int = 0

    @property
    def moving(self) -> int:
        """All that it sends and receives, transfers included."""
        return self.inward + self.outward + self.transfer_inward + self.transfer_outward

    def plus(self, other: Rate) -> Rate:
        """The sum of two."""
        return Rate(*map(add, self, other))

    def with_transfers_of(self, other: Rate) -> Rate:
        """The job's own rates from here, those of its transfers from ``other``: they are read at different times."""
        return self._replace(transfer_inward=other.transfer_inward, transfer_outward=other.transfer_outward)


IDLE: Final = Rate()
# A rate of all its members in their order, as :data:`usage_of`.
rate_of: Final[Callable[[Iterable[int]], Rate]] = partial(tuple.__new__, Rate)


class Peak(NamedTuple):
    """The highest rates of a job in each direction, bits a second: each the mean of a stretch of some seconds."""

    inward: int = 0
    outward: int = 0


FLAT: Final = Peak()


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The network use of one job: as of ``at`` (seconds since 1970), at the ``rate`` of that moment.

    ``final`` is True once the job is over and its last counters are in. ``peak`` is the most that it has kept up.
    ``unread`` is True where its rate is not known now, and none is shown.
    """

    usage: Usage = NOTHING
    rate: Rate = IDLE
    at: float = 0.0
    final: bool = False
    peak: Peak = FLAT
    unread: bool = False
