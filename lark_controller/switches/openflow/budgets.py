"""Limits the cost of one switch to the loop that all switches share: time for unsolicited messages, and PacketIns.

A switch may send as much as it likes, whether it is broken or a job floods it. Its unsolicited messages are therefore
paid from budgets of its own, and no reply or other switch waits behind them for long.
"""

from __future__ import annotations

from typing import Final

# Of the loop's time one switch may take so much with messages that are no replies; so many seconds of it at once.
TIME_SHARE: Final = 0.2
TIME_AT_ONCE: Final = 0.25
# A switch that has used up its time is read again after so many seconds at the earliest.
LEAST_PAUSE: Final = 0.01
# So many PacketIns a second of a port that sends few are taken in any case: a neighbour's flood hides no port.
_QUIET_RATE: Final = 10.0
_QUIET_BURST: Final = 20.0
# All quiet ports together, as a share of the switch's own rate and burst.
_QUIET_SHARE: Final = 0.5
# Ports that are told apart; those beyond share one entry.
_PORTS: Final = 65_536


class Allowance:
    """Fills at ``rate`` a second up to ``most``, and can be taken below nothing. Full at first; for one thread."""

    __slots__ = ("_left", "_most", "_rate", "_since")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self._rate = rate
        self._most = most
        self._left = most
        self._since = now

    def left(self, now: float) -> float:
        """The amount that is left now."""
        self._left = min(self._most, self._left + (now - self._since) * self._rate)
        self._since = now
        return self._left

    def take(self, amount: float, now: float) -> float:
        """Take an amount, whether it is there or not; answers the seconds until something is there again."""
        self._left = self.left(now) - amount
        return max(0.0, -self._left / self._rate)

    def take_one(self, now: float) -> bool:
        """Take one if there is one."""
        if self.left(now) < 1.0:
            return False
        self._left -= 1.0
        return True


class PacketInBudget:
    """Limits the PacketIns of one switch that are handled: ``rate`` a second, ``burst`` at once.

    Ports that ask seldom have a part of their own. The excess is dropped unread, as a switch drops packets that its own
    queue to the controller cannot hold: the packet is asked about again when it is sent again.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._all = Allowance(rate, burst, now)
        self._for_quiet = Allowance(rate * _QUIET_SHARE, max(1.0, burst * _QUIET_SHARE), now)
        self._ports: dict[bytes, Allowance] = {}
        self.dropped = 0

    def admit(self, port: bytes, now: float) -> bool:
        """True if a PacketIn that came in at a port is to be handled."""
        own = self._ports.get(port)
        if own is None:
            if len(self._ports) >= _PORTS:
                port = b""
            own = self._ports.setdefault(port, Allowance(_QUIET_RATE, _QUIET_BURST, now))
        quiet = own.take_one(now)
        if self._all.take_one(now) or (quiet and self._for_quiet.take_one(now)):
            return True
        self.dropped += 1
        return False
