"""Admission control: a reservation is admitted only where every link that it takes has room for it. Pure.

The three criteria of the QoS framework's call admission control (Senapathi et al., section V-B) are one here: the
capacity of a source or destination node is that of its access link, and the ports of the switches between are links.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lark_common.errors import CapacityError, Shortage
from lark_controller.qos.topology import KILO, Channel, Demand

# kb/s by the key of a channel: what a reservation holds.
ChannelRates = Mapping[str, int]
NOTHING: ChannelRates = MappingProxyType({})


def rates_of(demand: Demand) -> ChannelRates:
    """The rates that a demand holds once it is admitted."""
    return MappingProxyType({channel.key: kbps for channel, kbps in demand})


def shortages(reserved: ChannelRates, demand: Demand, instead_of: ChannelRates = NOTHING) -> tuple[Shortage, ...]:
    """The links that have no room for a demand; ``instead_of`` is what the same reservation held before.

    A demand that takes no more of a link than before is never short, also where a new policy made the link too small.
    """
    short = []
    for channel, kbps in demand:
        now = reserved.get(channel.key, 0)
        before = instead_of.get(channel.key, 0)
        if kbps > before and now - before + kbps > channel.capacity:
            short.append(_shortage(channel, now - before, kbps, before))
    return tuple(short)


def _shortage(channel: Channel, reserved: int, requested: int, held: int) -> Shortage:
    return Shortage(
        channel.link,
        channel.source,
        channel.target,
        channel.capacity / KILO,
        reserved / KILO,
        requested / KILO,
        held / KILO,
    )


@dataclass(frozen=True, slots=True)
class ReservedCapacity:
    """The bandwidth reserved of each channel, in kb/s; channels without a reservation are absent.

    Every change makes a new value or raises, so a change happens as a whole or not at all.
    """

    reserved: ChannelRates = field(default_factory=lambda: NOTHING)

    def admit(self, what: str, demand: Demand, instead_of: ChannelRates = NOTHING) -> ReservedCapacity:
        """Reserve a demand in place of what the same reservation held. Raises CapacityError."""
        short = shortages(self.reserved, demand, instead_of)
        if short:
            raise CapacityError(what, short)
        return self.moved(instead_of, rates_of(demand))

    def release(self, given_back: ChannelRates) -> ReservedCapacity:
        """Give back what a reservation held."""
        return self.moved(given_back, NOTHING)

    def moved(self, before: ChannelRates, after: ChannelRates) -> ReservedCapacity:
        """Reserve ``after`` in place of ``before``, whether there is room or not."""
        reserved = dict(self.reserved)
        for key, kbps in before.items():
            reserved[key] = reserved.get(key, 0) - kbps
        for key, kbps in after.items():
            reserved[key] = reserved.get(key, 0) + kbps
        return ReservedCapacity(MappingProxyType({key: kbps for key, kbps in reserved.items() if kbps}))

    def best_effort(self, channels: Iterable[Channel]) -> dict[str, int]:
        """The rate of each channel that is left for traffic without a reservation, in kb/s; less than 0 where a new
        policy made a link smaller than what was reserved."""
        return {channel.key: channel.capacity - self.reserved.get(channel.key, 0) for channel in channels}
