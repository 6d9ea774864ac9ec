"""The load of cores' LAN and WAN ports. Everything here is called on the event-loop thread.

A core has no jobs of its own, so its load is that of its ports: all that passes them, whosever it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lark_controller.api.switches import PortLoad
from lark_controller.flows.placement import Switch
from lark_controller.policies.model import SwitchSpec
from lark_controller.reconcile.switch import SwitchState

# Megabits in a byte.
_MEGABITS: Final = 8e-6


class _Reading(NamedTuple):
    """Bytes that a port has received and sent, at a moment of the monotonic clock."""

    at: float
    received: int
    sent: int


class CorePorts:
    """The last two readings of each core's ports. ``switch_of`` is a connected switch as the policy places it,
    ``spec_of`` as the policy names it."""

    def __init__(
        self,
        switches: Mapping[int, SwitchState],
        switch_of: Callable[[int], Switch | None],
        clock: Callable[[], float] = time.monotonic,
        *,
        spec_of: Callable[[int], SwitchSpec | None] = lambda _datapath: None,
    ) -> None:
        self._switches = switches
        self._switch_of = switch_of
        self._spec_of = spec_of
        self._clock = clock
        self._last: dict[int, dict[int, _Reading]] = {}
        # Mb/s received and sent, by port.
        self._rates: dict[int, dict[int, tuple[float, float]]] = {}

    async def look(self, datapath: int) -> None:
        """Read the counters of a core's ports; nothing at a worker's switch. Raises SwitchError."""
        state, switch = self._switches.get(datapath), self._switch_of(datapath)
        if state is None or state.link is None or switch is None or switch.is_edge:
            return
        named = {*switch.lan, *(port.number for port in switch.wan)}
        counters = await state.link.port_counters()
        now = self._clock()
        found = {each.number: _Reading(now, each.rx_bytes, each.tx_bytes) for each in counters if each.number in named}
        before, self._last[datapath] = self._last.get(datapath, {}), found
        self._rates[datapath] = {
            number: ((new.received - old.received) * scale, (new.sent - old.sent) * scale)
            for number, new in found.items()
            # Counters that have gone back belong to a port or a switch that is new.
            if (old := before.get(number)) is not None
            and new.received >= old.received
            and new.sent >= old.sent
            and (scale := _MEGABITS / max(new.at - old.at, 0.001))
        }

    def loads(self, datapath: int) -> tuple[PortLoad, ...]:
        """The ports of a connected core: those to the WAN, then those to the site."""
        state, switch = self._switches.get(datapath), self._switch_of(datapath)
        if state is None or state.link is None or switch is None or switch.is_edge:
            return ()
        ports, rates = state.link.features.ports, self._rates.get(datapath, {})
        declared = self._declared(datapath, {port.name: number for number, port in ports.items()})
        found = []
        for wan in switch.wan:
            received, sent = rates.get(wan.number, (None, None))
            port = ports.get(wan.number)
            interface, speed = None if port is None else port.name, switch.speeds.get(wan.number)
            found.append(PortLoad(wan.name, True, wan.up, sent, received, speed, wan.name, interface))
        for number in switch.lan:
            if (port := ports.get(number)) is not None:
                received, sent = rates.get(number, (None, None))
                speed, name = switch.speeds.get(number), declared.get(number)
                found.append(PortLoad(port.name, False, port.up, received, sent, speed, name, port.name))
        return tuple(found)

    def _declared(self, datapath: int, numbers: Mapping[str, int]) -> dict[int, str]:
        """The policy's names of a switch's ports, by number; ``numbers`` are those of its interfaces."""
        spec = self._spec_of(datapath)
        found = {} if spec is None else {name: each.port for name, each in spec.ports.items()}
        by_number = {name: numbers.get(port) if isinstance(port, str) else port for name, port in found.items()}
        return {number: name for name, number in by_number.items() if number is not None}

    def gone(self, datapath: int) -> None:
        """Forget the readings of a switch that is gone."""
        self._last.pop(datapath, None)
        self._rates.pop(datapath, None)
