"""Limits the cost of one switch to the loop that all switches share: time for its messages, and PacketIns.

A switch may send as much as it likes, whether it is broken or a job floods it. Its messages are therefore paid from
budgets of its own, and no other switch, request or post waits behind them for long. A switch whose time is over is not
read for a while: TCP slows it down.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from lark_common.limits import Bucket
from lark_controller.switches.openflow.places import Peer

# Of the loop's time one switch may take so much with messages that nobody asked for or has a use for, and so much with
# answers; so many seconds of it at once. A dump of 3,500 flows takes 0.03 s.
UNSOLICITED_SHARE: Final = 0.05
ANSWERS_SHARE: Final = 0.2
TIME_AT_ONCE: Final = 0.1
ANSWERS_AT_ONCE: Final = 0.1
# The same until its handshake is over: a switch that connects again and again has no new budget each time.
NEW_AT_ONCE: Final = 0.05
# All switches together that have used up their own time.
COMMON_SHARE: Final = 0.15
# A switch that has used up its time is read again after so many seconds at the earliest.
LEAST_PAUSE: Final = 0.01
# While callers wait for switches, it waits for them so many seconds more at most, and looks so often.
LONGEST_PUT_OFF: Final = 0.05
LOOK_AGAIN: Final = 0.002
# Connections of one host that are greeted: so many a second, so many at once (a pool of 1,000 switches behind one
# address that comes back). One beyond that waits, so many seconds at most.
ARRIVALS: Final = 50.0
ARRIVALS_AT_ONCE: Final = 1024.0
# The same of all hosts of one IPv6 /64, as a multiple: one machine may have all of its addresses.
ARRIVALS_OF_NETWORK: Final = 4
LONGEST_WAIT: Final = 5.0
# Budgets that are kept for switches that are away.
_TIMES: Final = 4096
# So many PacketIns a second of a port that sends few are taken in any case: a neighbour's flood hides no port.
_QUIET_RATE: Final = 10.0
_QUIET_BURST: Final = 20.0
# All quiet ports together, as a share of the switch's own rate and burst.
_QUIET_SHARE: Final = 0.5
# Ports of a switch that are counted apart, those that asked last; one that is forgotten begins anew.
_PORTS: Final = 4096


class SwitchTime:
    """The loop's time of one switch: ``unsolicited`` for messages that no request waits for, ``answers`` for others.
    ``common`` is what all switches beyond their own time share."""

    __slots__ = ("_answers", "_unsolicited", "common")

    def __init__(self, now: float, unsolicited: float, answers: float, common: Bucket) -> None:
        self._unsolicited = Bucket(UNSOLICITED_SHARE, unsolicited, now)
        self._answers = Bucket(ANSWERS_SHARE, answers, now)
        self.common = common

    def take(self, unsolicited: float, answers: float, now: float) -> float:
        """Take time; returns the seconds for which the switch is not to be read."""
        pause = max(self._unsolicited.take(unsolicited, now), self._answers.take(answers, now))
        return max(pause, self.common.take(unsolicited + answers, now)) if pause > 0 else 0.0


class SwitchTimes:
    """The times of all switches, which a switch finds again when it connects again."""

    def __init__(self) -> None:
        self._common: Bucket | None = None
        self._of: OrderedDict[int, SwitchTime] = OrderedDict()

    def new(self, now: float) -> SwitchTime:
        """The time of a connection that is no switch's yet."""
        return SwitchTime(now, NEW_AT_ONCE, NEW_AT_ONCE, self._shared(now))

    def of(self, datapath: int, now: float) -> SwitchTime:
        """The time of a switch."""
        found = self._of.pop(datapath, None) or SwitchTime(now, TIME_AT_ONCE, ANSWERS_AT_ONCE, self._shared(now))
        self._of[datapath] = found
        if len(self._of) > _TIMES:
            self._of.popitem(last=False)
        return found

    def __contains__(self, datapath: int) -> bool:
        return datapath in self._of

    def _shared(self, now: float) -> Bucket:
        if self._common is None:
            self._common = Bucket(COMMON_SHARE, NEW_AT_ONCE, now)
        return self._common


class Arrivals:
    """Bounds the connections that are greeted: one that is opened again whenever it is closed costs more than it takes,
    and has to wait for that."""

    def __init__(self) -> None:
        self._of: OrderedDict[Peer | str, Bucket] = OrderedDict()

    def wait(self, peer: Peer, now: float) -> float:
        """The seconds until a new connection of a peer is greeted."""
        own = self._wait(peer, 1, now)
        return own if peer.network == peer.host else max(own, self._wait(peer.network, ARRIVALS_OF_NETWORK, now))

    def _wait(self, whose: Peer | str, times: int, now: float) -> float:
        bucket = self._of.pop(whose, None) or Bucket(times * ARRIVALS, times * ARRIVALS_AT_ONCE, now)
        self._of[whose] = bucket
        if len(self._of) > _TIMES:
            self._of.popitem(last=False)
        owed = max(0.0, -bucket.left(now)) / (times * ARRIVALS)
        return bucket.take(1.0, now) if owed < LONGEST_WAIT else LONGEST_WAIT

    def paid(self, peer: Peer, now: float) -> None:
        """Give back the cost of a peer's connection that turned out to be worth it."""
        for whose, most in ((peer, ARRIVALS_AT_ONCE), (peer.network, ARRIVALS_OF_NETWORK * ARRIVALS_AT_ONCE)):
            if (bucket := self._of.get(whose)) is not None and bucket.left(now) < most:
                bucket.take(-1.0, now)


class PacketInBudget:
    """Limits the PacketIns of one switch that are handled: ``rate`` a second, ``burst`` at once.

    Ports that ask seldom have a part of their own. The excess is dropped unread, as a switch drops packets that its own
    queue to the controller cannot hold: the packet is asked about again when it is sent again.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._all = Bucket(rate, burst, now)
        self._for_quiet = Bucket(rate * _QUIET_SHARE, max(1.0, burst * _QUIET_SHARE), now)
        self._ports: OrderedDict[bytes, Bucket] = OrderedDict()
        self._refused_until: dict[bytes, float] = {}
        self.dropped = 0

    def refuses(self, port: bytes, now: float) -> bool:
        """True, and counted as dropped, where it is known from the last one that there is nothing for this port yet."""
        if now >= self._refused_until.get(port, 0.0):
            return False
        self.dropped += 1
        return True

    def admit(self, port: bytes, now: float) -> bool:
        """True if a PacketIn that came in at a port is to be handled."""
        own = self._ports.get(port)
        if own is None:
            if len(self._ports) >= _PORTS:
                self._ports.popitem(last=False)
            own = self._ports[port] = Bucket(_QUIET_RATE, _QUIET_BURST, now)
        else:
            self._ports.move_to_end(port)
        quiet = own.take_whole(now)
        if self._all.take_whole(now) or (quiet and self._for_quiet.take_whole(now)):
            return True
        self.dropped += 1
        if not quiet:
            if len(self._refused_until) >= _PORTS:
                self._refused_until.clear()
            self._refused_until[port] = now + min(self._all.until(), own.until())
        return False
