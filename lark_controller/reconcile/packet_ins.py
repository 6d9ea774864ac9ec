"""Answers to PacketIns, on the reconcile loop's thread: slice decisions among other hosts, L2 learning, ICMP errors.

Every flow made here is remembered by the address that it concerns, so that it goes when a job starts or ends there: a
later job with the same address inherits nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from lark_common.runs import Address
from lark_controller.flows.desired import Desired
from lark_controller.flows.learning import Learning
from lark_controller.flows.model import ETH_ARP, PORT_TABLE, Flow, FlowKey, Output
from lark_controller.flows.packet_in_answer import answer
from lark_controller.flows.placement import LINK_LOCAL_PREFIX
from lark_controller.flows.simulation.packet import is_multicast, parse_fast_addresses
from lark_controller.flows.tables import FROM_TAG, P_ASK, TO_TAG, Core, Edge
from lark_controller.jobs.job import Job
from lark_controller.policies.model import SliceKey
from lark_controller.reconcile.icmp_errors import IcmpErrors
from lark_controller.reconcile.state import LoopState
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import FlowRemoved, PacketIn

# Reactive decisions kept for one switch, and for one job there. A job beyond its limit loses its own oldest; at the
# switch's limit the job that has most loses one, so that a job with few is served whatever others do.
MAX_DECISIONS: Final = 20_000
MAX_OF_JOB: Final = 10_000
# The reason of a FlowRemoved where a flow was deleted (OpenFlow 1.3.5, section 7.4.2).
DELETED: Final = 2
TO_TABLES: Final = (Output(PORT_TABLE),)


@dataclass(slots=True)
class _Memory:
    """The decisions made for one switch, and the stations learned there.

    ``decisions`` has by address the flows' keys, each with the number of the job whose packet came first; ``by_job``
    has by job its flows' keys, the oldest first, with their addresses (a plain dict's first key costs as many steps as
    keys went before it).
    """

    decisions: dict[tuple[int, int], dict[FlowKey, int]] = field(default_factory=dict)
    by_job: dict[int, OrderedDict[FlowKey, tuple[int, int]]] = field(default_factory=dict)
    slices: dict[int, SliceKey] = field(default_factory=dict)
    count: int = 0
    learning: Learning | None = None

    def forget(self, where: tuple[int, int], key: FlowKey) -> None:
        """Forget one decision about an address."""
        keys = self.decisions[where]
        number = keys.pop(key)
        if not keys:
            del self.decisions[where]
        own = self.by_job[number]
        del own[key]
        if not own:
            del self.by_job[number]
        self.count -= 1


class Reactions:
    """Makes reactive decisions and learns stations, for all switches."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._icmp_errors = IcmpErrors(loop)
        self._memory: dict[int, _Memory] = {}
        # Which switches hold a decision about an address, so that a change of one job does not ask all switches.
        self._holders: dict[tuple[int, int], set[int]] = {}

    def count(self, datapath: int) -> int:
        """The number of flows made for a switch here."""
        memory = self._memory.get(datapath)
        if memory is None:
            return 0
        # A station has a flow in each of two tables.
        return memory.count + (0 if memory.learning is None else 2 * len(memory.learning.where))

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        """Answer one PacketIn; what cannot be answered is dropped, as the switch would have done alone."""
        switch = self._loop.desired_of(link.datapath).switches.get(link.datapath)
        if switch is None:
            return
        if packet.table == (Edge.LEARN if switch.is_edge else Core.LEARN):
            self._learn(link, packet)
        elif switch.is_core and packet.table in (Core.CLASSIFY, Core.QOS, Core.EXTERNAL):
            self._icmp_errors.packet_in(link, packet)
        elif switch.is_edge and packet.table in (Edge.SLICE_FROM, Edge.SLICE_TO):
            self._decide(link, packet, Edge(packet.table))

    def _decide(self, link: SwitchLink, packet: PacketIn, table: Edge) -> None:
        _, _, _, ethertype, source, destination, version = parse_fast_addresses(packet.data)
        if source is None or destination is None:
            return
        own, other = (source, destination) if table is Edge.SLICE_FROM else (destination, source)
        datapath = link.datapath
        desired = self._loop.desired_of(datapath)
        job = self._job_at(version, own) or _at_link_local(desired, datapath, version, own)
        if job is None:
            return
        placed = desired.placed.get(job.number)
        peer = self._job_at(version, other)
        with_peer = None if peer is None else desired.placed.get(peer.number)
        if placed is None or (peer is not None and with_peer is None):
            # The loop has not taken one of them in yet, or has it off already: the packet is asked about again.
            return
        tag = desired.tag_at(datapath, placed.decision.slice)
        if not tag:
            return
        allowed = with_peer is None or with_peer.decision.slice == placed.decision.slice
        memory = self._memory.setdefault(datapath, _Memory())
        if placed.decision.slice is None:
            return
        memory.slices[tag] = placed.decision.slice
        solicited = version == 6 and is_multicast(packet.data)
        flow = answer(table, tag, version, other, ethertype == ETH_ARP, allowed, solicited=solicited)
        answer_bytes = b""
        if flow.key not in memory.decisions.get((version, other), ()):
            if (old := self._make_room(datapath, memory, job.number)) is not None:
                answer_bytes = wire.flow_delete(link.next_xid(), old)
            memory.decisions.setdefault((version, other), {})[flow.key] = job.number
            memory.by_job.setdefault(job.number, OrderedDict())[flow.key] = (version, other)
            memory.count += 1
            self._holders.setdefault((version, other), set()).add(datapath)
        answer_bytes += wire.flow_add(link.next_xid(), flow)
        if allowed:
            answer_bytes += wire.packet_out(link.next_xid(), packet.in_port, TO_TABLES, packet.data)
        link.write(answer_bytes)

    def _make_room(self, datapath: int, memory: _Memory, number: int) -> FlowKey | None:
        """Forget the oldest decision of a job at its limit, or of the job that has most where the switch is at its
        own; returns the flow to delete, None where there is room."""
        own = memory.by_job.get(number)
        if own is None or len(own) < MAX_OF_JOB:
            if memory.count < MAX_DECISIONS:
                return None
            own = max(memory.by_job.values(), key=len)
        key, where = next(iter(own.items()))
        self._drop(datapath, memory, where, key)
        return key

    def _job_at(self, version: int, address: int) -> Job | None:
        known = IPv4Address(address) if version == 4 else IPv6Address(address)
        return self._loop.directory.by_address.get(known)

    def _learn(self, link: SwitchLink, packet: PacketIn) -> None:
        memory = self._memory.setdefault(link.datapath, _Memory())
        if memory.learning is None:
            edge = self._loop.desired_of(link.datapath).switches[link.datapath].is_edge
            learn, forward = (Edge.LEARN, Edge.FORWARD) if edge else (Core.LEARN, Core.FORWARD)
            memory.learning = Learning(int(learn), int(forward), P_ASK)
        source, _, vlan, *_ = parse_fast_addresses(packet.data)
        flows, gone = memory.learning.learn(packet.in_port, vlan, source)
        _write(link, flows, gone)

    def forget(self, addresses: Iterable[Address]) -> dict[int, list[FlowKey]]:
        """Forget every decision about some addresses; the flows to delete, by datapath."""
        gone: dict[int, list[FlowKey]] = {}
        for address in addresses:
            where = (address.version, int(address))
            for datapath in self._holders.pop(where, ()):
                memory = self._memory[datapath]
                keys = sorted(memory.decisions.get(where, ()))
                for key in keys:
                    memory.forget(where, key)
                gone.setdefault(datapath, []).extend(keys)
        return gone

    def forget_all(self) -> dict[int, list[FlowKey]]:
        """Forget every decision (the policy changed); the flows to delete, by datapath."""
        everywhere = list(self._holders)
        gone: dict[int, list[FlowKey]] = {}
        for version, address in everywhere:
            known = IPv4Address(address) if version == 4 else IPv6Address(address)
            for datapath, keys in self.forget((known,)).items():
                gone.setdefault(datapath, []).extend(keys)
        return gone

    def forget_tags(self, datapath: int, desired: Desired) -> list[FlowKey]:
        """Forget decisions made for a tag that stands for another slice now, or for none; the flows to delete."""
        memory = self._memory.get(datapath)
        if memory is None or not memory.slices:
            return []
        slices = desired.slices_at(datapath)
        stale = {tag for tag, key in memory.slices.items() if slices.get(tag) != key}
        if not stale:
            return []
        gone = []
        for where, keys in list(memory.decisions.items()):
            for key in [key for key in keys if _tag_of(key) in stale]:
                gone.append(key)
                self._drop(datapath, memory, where, key)
        for tag in stale:
            del memory.slices[tag]
        return gone

    def flow_removed(self, link: SwitchLink, removed: FlowRemoved) -> None:
        """Forget a decision or a learned station that aged out on the switch."""
        memory = self._memory.get(link.datapath)
        if memory is None:
            return
        if memory.learning is not None:
            _write(link, (), memory.learning.aged(removed.key))
        if removed.reason == DELETED:
            return  # by the controller: forgotten already, and perhaps decided anew since
        for term in removed.key.match:
            if term.name in ("ipv4_dst", "ipv4_src", "arp_tpa", "arp_spa", "ipv6_dst", "ipv6_src", "ipv6_nd_target"):
                where = (6 if term.name.startswith("ipv6") else 4, term.value)
                if removed.key in memory.decisions.get(where, ()):
                    self._drop(link.datapath, memory, where, removed.key)

    def _drop(self, datapath: int, memory: _Memory, where: tuple[int, int], key: FlowKey) -> None:
        memory.forget(where, key)
        if where not in memory.decisions:
            holders = self._holders.get(where, set())
            holders.discard(datapath)
            if not holders:
                self._holders.pop(where, None)

    def ports_changed(self, link: SwitchLink) -> None:
        """Forget the stations learned on a port that is gone."""
        memory = self._memory.get(link.datapath)
        if memory is None or memory.learning is None:
            return
        for port in {*memory.learning.where.values()} - link.features.ports.keys():
            _write(link, (), memory.learning.forget_port(port))

    def switch_gone(self, datapath: int) -> None:
        """Forget the decisions for a switch that is compared anew: its flows for them are swept there."""
        memory = self._memory.pop(datapath, None)
        for where in () if memory is None else memory.decisions:
            holders = self._holders.get(where)
            if holders is not None:
                holders.discard(datapath)
                if not holders:
                    del self._holders[where]


def _write(link: SwitchLink, flows: Iterable[Flow], gone: Iterable[FlowKey]) -> None:
    message = b"".join(wire.flow_delete(link.next_xid(), key) for key in gone)
    message += b"".join(wire.flow_add(link.next_xid(), flow) for flow in flows)
    if message:
        link.write(message)


def _at_link_local(desired: Desired, datapath: int, version: int, address: int) -> Job | None:
    """The job at a switch with a link-local address."""
    if version != 6 or address >> 118 != LINK_LOCAL_PREFIX >> 118:
        return None
    return next((placed.job for placed in desired.jobs_at(datapath) if placed.link_local == address), None)


def _tag_of(key: FlowKey) -> int:
    bits = FROM_TAG if key.table == Edge.SLICE_FROM else TO_TAG
    value = next(term.value for term in key.match if term.name == "metadata")
    return (value & bits.mask) >> bits.shift
