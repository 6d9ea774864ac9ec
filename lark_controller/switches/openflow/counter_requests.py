"""The counters that a connected switch is asked for again and again: of ports, of counting flows, and of drops."""

from __future__ import annotations

import asyncio
from functools import partial

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.accounting.numeric import Counts
from lark_controller.flows.model import PORT_ANY, FlowKey
from lark_controller.switches.openflow import columns, replies, wire
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.replies import FlowCount, PortCounters, PortRecord
from lark_controller.switches.openflow.requests import Bound, Requests


class CounterRequests:
    """The requests of a switch's ``connection``."""

    connection: Connection
    requests: Requests

    def counted(self) -> Bound:
        """The bound on flows of Lark's own in an answer."""
        raise NotImplementedError

    def port_counters(self, port: int = PORT_ANY, timeout: float | None = None) -> asyncio.Future[list[PortCounters]]:
        """The counters of a port, or of all; none for a port that is not there.

        The request is on its way when this returns, before what is sent afterwards. The future ends with SwitchError
        where no complete answer comes.
        """
        limit = self.connection.options.dump_timeout if timeout is None else timeout
        build = partial(wire.port_stats_request, port=port)
        return self.requests.collect("port counters", ofp.OFPMP_PORT_STATS, build, replies.port_stats, limit)

    def port_records(self) -> asyncio.Future[list[PortRecord]]:
        """The counters of all ports, as plain records; sent and ended as :meth:`port_counters`."""
        limit, build = self.connection.options.dump_timeout, wire.port_stats_request
        return self.requests.collect("port counters", ofp.OFPMP_PORT_STATS, build, replies.port_records, limit)

    def port_columns(self) -> asyncio.Future[list[columns.Words]]:
        """The counters of all ports, a part for each part of the answer; sent and ended as :meth:`port_counters`."""
        limit, build, bound = self.connection.options.dump_timeout, wire.port_stats_request, Bound()
        return self.requests.collect_parts(
            "port counters", ofp.OFPMP_PORT_STATS, build, columns.port_columns, limit, bound
        )

    def flow_columns(self, cookie: int, mask: int) -> asyncio.Future[list[Counts]]:
        """As :meth:`flow_counts`, a part for each part of the answer."""
        limit, bound = self.connection.options.dump_timeout, self.counted()
        build = partial(wire.flow_stats_request, cookie=cookie, mask=mask)
        return self.requests.collect_parts("flow counters", ofp.OFPMP_FLOW, build, columns.flow_columns, limit, bound)

    def flow_counts(self, cookie: int, mask: int, timeout: float | None = None) -> asyncio.Future[list[FlowCount]]:
        """Counters of flows whose cookies agree with ``cookie`` in the bits of ``mask``, as :meth:`port_counters`."""
        limit = self.connection.options.dump_timeout if timeout is None else timeout
        build = partial(wire.flow_stats_request, cookie=cookie, mask=mask)
        decode, bound = replies.flow_counts, self.counted()
        return self.requests.collect("flow counters", ofp.OFPMP_FLOW, build, decode, limit, bound)

    def drop_counts(self, cookie: int, mask: int) -> asyncio.Future[list[tuple[FlowKey, int]]]:
        """The packets of the flows whose cookie agrees with ``cookie`` in the bits of ``mask``, each with its key: of
        flows that are alike on many switches. Sent and ended as :meth:`port_counters`."""
        build = partial(wire.flow_stats_request, cookie=cookie, mask=mask)
        decode = partial(replies.flow_packets, chosen=(cookie, mask))
        limit = self.connection.options.dump_timeout
        return self.requests.collect("drop counters", ofp.OFPMP_FLOW, build, decode, limit, self.counted())
