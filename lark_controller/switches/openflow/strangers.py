"""Connections that may be anybody's: the bound of switches that nobody expects, and of what the log has of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from lark_common.errors import SwitchError
from lark_common.limits import Buckets
from lark_common.log import WARNING, event
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.places import Peer

# Different reasons that are counted for connections that never became a switch's.
_REASONS: Final = 1000
# Of the unexpected switches, and of their ports, the part of one host.
_UNEXPECTED_SHARE: Final = 4
# Their ports that are kept beyond a few of each, of all of them; one takes half a kilobyte.
MOST_PORTS: Final = 1 << 18
FEW_PORTS: Final = 64
# Seconds between two looks at which of them are expected by now, where there is no place left.
LOOK_SECONDS: Final = 10.0
# Lines in the log for switches of one host that come and go: so many at once, as of a pool behind one address, then so
# many a second.
LINES_AT_ONCE: Final = 2048
LINES: Final = 1.0


class UnexpectedSwitches:
    """The switches that have come without being declared and without jobs, ``most`` of them. What is known of a switch
    is kept while it is away."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Their networks, by datapath id.
        self._networks: dict[int, str] = {}
        self._of: Counter[str] = Counter()
        # Ports beyond a few of each, by datapath id, and by network.
        self._ports: dict[int, int] = {}
        self._ports_of: Counter[str] = Counter()
        self._all_ports = 0
        self._looked_at = -math.inf

    def check(self, datapath: int, network: str, expects: Callable[[int], bool], now: float) -> None:
        """Bound those that nobody ``expects``: whoever reaches the port can be ever others. Raises SwitchError."""
        if expects(datapath):
            self._free(datapath)
        elif datapath not in self._networks:
            if self._is_full(network) and now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                # Workers have jobs after they have come, and may stay connected for months.
                for each in [each for each in self._networks if expects(each)]:
                    self._free(each)
            if self._is_full(network):
                raise SwitchError("too many switches that the policy does not declare, and that have no jobs")
            self._networks[datapath] = network
            self._of[network] += 1

    def check_ports(self, datapath: int, expects: Callable[[int], bool], count: int, reported: bool) -> None:
        """Bound the ports that are kept of those that nobody ``expects``, also while they are away. Those before are
        kept until others are ``reported`` in their place. Raises WireError."""
        network = self._networks.get(datapath)
        if network is None or expects(datapath):
            return
        more = max(0, count - FEW_PORTS) - self._ports.get(datapath, 0)
        of_host = self._ports_of[network] + more
        if more > 0 and (of_host > MOST_PORTS // _UNEXPECTED_SHARE or self._all_ports + more > MOST_PORTS):
            raise WireError(f"{count} ports, and no more are kept of switches that are not declared and have no jobs")
        if more > 0 or reported:
            self._hold_ports(datapath, network, more)

    def _hold_ports(self, datapath: int, network: str, more: int) -> None:
        self._ports[datapath] = self._ports.get(datapath, 0) + more
        self._ports_of[network] += more
        self._all_ports += more

    def _is_full(self, network: str) -> bool:
        return len(self._networks) >= self._most or self._of[network] >= max(1, self._most // _UNEXPECTED_SHARE)

    def _free(self, datapath: int) -> None:
        if (network := self._networks.pop(datapath, None)) is not None:
            self._of[network] -= 1
            self._hold_ports(datapath, network, -self._ports.get(datapath, 0))
            del self._ports[datapath]


class ConnectionLog:
    """The log's lines of connections: a flood of them must not fill it."""

    def __init__(self) -> None:
        self._refused = 0
        self._unfinished: Counter[tuple[str, str]] = Counter()
        self._lines = Buckets(LINES, LINES_AT_ONCE)
        self._left_out = 0

    def refused(self) -> None:
        """Log that a connection got no place."""
        self._refused += 1
        if _is_logged(self._refused):
            event("connections refused: too many unfinished handshakes", level=WARNING, times=self._refused)

    def no_switch(self, connection: Connection, reason: str) -> None:
        """Log that a connection ended before it belonged to a switch."""
        self.not_taken_in(connection.peer, reason, connection.address)

    def not_taken_in(self, peer: Peer, reason: str, address: str = "") -> None:
        """Log that somebody's connection came to nothing."""
        if len(self._unfinished) >= _REASONS:
            self._unfinished.clear()
        self._unfinished[peer.network, reason] += 1
        times = self._unfinished[peer.network, reason]
        if _is_logged(times):
            event("no switch", level=WARNING, address=address or peer.host, reason=reason, times=times)

    def has_line_for(self, peer: Peer) -> bool:
        """False for a switch that is left out, since those of its host come and go too often."""
        if not self._lines.take(peer.network):
            return True
        self._left_out += 1
        if _is_logged(self._left_out):
            words = "switches come and go too often for the log, which has one a second of a host"
            event(words, level=WARNING, address=peer.host, times=self._left_out)
        return False


def _is_logged(times: int) -> bool:
    """The 1st, 2nd, 4th, 8th … time is logged: a flood must not fill the log."""
    return times & (times - 1) == 0
