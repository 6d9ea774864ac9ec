"""A learning L2 switch in two tables, for switches without NORMAL. Pure: sources come in, flows to add and delete go
out.

The first table matches (port, VLAN, source): a known station goes on to the second, an unknown one also goes to the
controller. The second matches (VLAN, destination) and outputs; unknown destinations are flooded by an explicit list of
ports. The frame of both stands in :mod:`..edge.program`. Stations age by the idle timeouts of their
flows, on the switch: without a controller nothing is learned, and what is unknown is flooded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import (
    FLAG_SEND_FLOW_REM,
    VLAN_PRESENT,
    Flow,
    FlowData,
    FlowKey,
    Output,
    match,
)

_MULTICAST: Final = 1 << 40
IDLE_TIMEOUT: Final = 300  # seconds (IEEE 802.1D-2004, table 7-5, ageing time)
QUIET_TIME: Final = 10  # seconds for which a port at its limit sends no PacketIn of an unknown source


class Learned(NamedTuple):
    """Flows to add (an add with a present key replaces) and to delete."""

    flows: tuple[Flow, ...] = ()
    gone: tuple[FlowKey, ...] = ()


class Station(NamedTuple):
    """A MAC in a VLAN (0: untagged)."""

    vlan: int
    mac: int


def learned_cookie(vlan: int) -> int:
    """The cookie of flows learned in a VLAN."""
    return cookie(Category.LEARNED, vlan)


@dataclass(slots=True)
class Learning:
    """The stations that one switch without NORMAL has learned; mutable, for one thread, and empty after a reconnect.

    Learned flows have ``priority`` in both tables, which must be above the miss of the first and the flood of the
    second, and below the flows of jobs; ``priority - 1`` in the first is for a port at its limit. ``per_port`` and
    ``total`` limit the stations.
    """

    learn_table: int
    forward_table: int
    priority: int
    cookie_of: Callable[[int], int] = learned_cookie
    idle_timeout: int = IDLE_TIMEOUT
    per_port: int = 1024
    total: int = 2048
    where: dict[Station, int] = field(default_factory=dict)
    _count: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.where)

    def learn(self, in_port: int, vlan: int, eth_src: int) -> Learned:
        """Learn a source that is new at this port: it is added, moved here from another port, or not taken.

        A source already known here changes nothing (its flows are on their way). At a limit the port is made quiet
        for :data:`QUIET_TIME`, so that random sources occupy neither memory nor the controller.
        """
        if eth_src & _MULTICAST or not eth_src:
            return Learned()
        station = Station(vlan, eth_src)
        old = self.where.get(station)
        if old == in_port:
            return Learned()
        if self._count.get(in_port, 0) >= self.per_port or (old is None and len(self.where) >= self.total):
            return Learned((self._quiet(in_port),))
        gone = self._forget(station)
        self.where[station] = in_port
        self._count[in_port] = self._count.get(in_port, 0) + 1
        return Learned((self._to(station, in_port), self._from(station, in_port)), gone[:1])

    def aged(self, key: FlowKey) -> tuple[FlowKey, ...]:
        """Forgets a station whose learned flow is gone from the switch (FlowRemoved); returns its other flow, to
        delete.

        If only one of the two were left, a station that sends would never be learned again, or one that is silent
        never be forgotten. Flows that belong to no known station, as those deleted by a move, are ignored.
        """
        fields = {term.name: term.value for term in key.match}
        station = Station(fields.get("vlan_vid", 0) & 0xFFF, fields.get("eth_src", fields.get("eth_dst", 0)))
        port = self.where.get(station)
        if port is None or key not in (self._from_key(station, port), self._to_key(station)):
            return ()
        return tuple(each for each in self._forget(station) if each != key)

    def forget_port(self, port: int) -> tuple[FlowKey, ...]:
        """Forget the stations of a port that went away; returns the flows to delete."""
        stations = [station for station, where in self.where.items() if where == port]
        return tuple(key for station in stations for key in self._forget(station))

    def _forget(self, station: Station) -> tuple[FlowKey, ...]:
        """Forget a station; its flow in the first table and its flow in the second."""
        port = self.where.pop(station, None)
        if port is None:
            return ()
        self._count[port] -= 1
        if not self._count[port]:
            del self._count[port]
        return (self._from_key(station, port), self._to_key(station))

    def _from_key(self, station: Station, port: int) -> FlowKey:
        fields = match(in_port=port, vlan_vid=_vid(station.vlan), eth_src=station.mac)
        return FlowKey(self.learn_table, self.priority, fields)

    def _to_key(self, station: Station) -> FlowKey:
        return FlowKey(self.forward_table, self.priority, match(vlan_vid=_vid(station.vlan), eth_dst=station.mac))

    def _from(self, station: Station, port: int) -> Flow:
        return Flow(self._from_key(station, port), self._data(station.vlan, goto=self.forward_table))

    def _to(self, station: Station, port: int) -> Flow:
        return Flow(self._to_key(station), self._data(station.vlan, Output(port)))

    def _data(self, vlan: int, *actions: Output, goto: int | None = None) -> FlowData:
        return FlowData(self.cookie_of(vlan), actions, goto, idle_timeout=self.idle_timeout, flags=FLAG_SEND_FLOW_REM)

    def _quiet(self, port: int) -> Flow:
        key = FlowKey(self.learn_table, self.priority - 1, match(in_port=port))
        return Flow(key, FlowData(self.cookie_of(0), goto=self.forward_table, hard_timeout=QUIET_TIME))


def _vid(vlan: int) -> int:
    return VLAN_PRESENT | vlan if vlan else 0
