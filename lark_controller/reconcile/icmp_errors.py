"""ICMP errors that cores ask about, answered on the loop's thread: translated and given back, some of each job.

What is beyond the budgets is dropped, as routers do with errors (RFC 1812, section 4.3.2.8): whoever floods one job's
address takes nothing from another's errors, and little of the loop's time.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

from lark_common.limits import Buckets
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.icmp_errors import inward, outward
from lark_controller.flows.model import PORT_CONTROLLER, PORT_TABLE, Output
from lark_controller.flows.simulation.packet import parse_fast_addresses
from lark_controller.flows.tables import Core
from lark_controller.reconcile.state import LoopState
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import PacketIn

# Errors a second, and at once, of one job and of all together.
JOB_RATE, JOB_BURST = 50.0, 100.0
RATE, BURST = 1_000.0, 2_000.0
_TO_TABLES: Final = (Output(PORT_TABLE),)


class IcmpErrors:
    """Translates ICMP errors about jobs with external addresses, for all cores."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._all = Buckets(RATE, BURST)
        self._jobs = Buckets(JOB_RATE, JOB_BURST)

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        """Give one error back translated, as far as it is about an opening of its job."""
        whose = parse(packet.cookie)
        number = whose.number or self._called(packet.data)
        placed = self._loop.desired_of(link.datapath).placed.get(number)
        if whose.category != Category.EXTERNAL or placed is None or placed.decision.isolated:
            return
        external = next((each for each in placed.job.external if each.address.version == 4), None)
        if external is None or placed.job.ipv4 is None or placed.mac is None or not self._may(number):
            return
        if packet.table == Core.EXTERNAL:
            # About what did not come by the external address it goes on as it is.
            made = outward(packet.data, external, placed.job.ipv4) or packet.data
            link.packet_out(PORT_CONTROLLER, _TO_TABLES, made)
            return
        inside = inward(packet.data, external, placed.job.ipv4, placed.mac)
        if inside is not None:
            link.packet_out(packet.in_port, _TO_TABLES, inside)

    def _called(self, frame: bytes) -> int:
        """The number of the job whose open external address a frame is for, where its flow is for all of them; 0: no
        job's."""
        *_, destination, version = parse_fast_addresses(frame)
        if destination is None or version != 4:
            return 0
        directory, address = self._loop.directory, IPv4Address(destination)
        job = directory.by_external.get(address)
        return 0 if job is None or address in directory.closed.get(job.number, {}) else job.number

    def _may(self, number: int) -> bool:
        return not self._jobs.take(number) and not self._all.take("")
