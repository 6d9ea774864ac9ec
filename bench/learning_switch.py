"""The reference: a learning switch as an os-ken application is usually written, run as ``osken-manager`` runs it.

``python -m bench.learning_switch PORT``. A packet whose destination is known leads to a flow and a packet-out,
every other to a packet-out that floods: what os-ken's own example of a learning switch does.
"""

from __future__ import annotations

import sys
from typing import Any

from os_ken import cfg
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, packet
from os_ken.ofproto import ofproto_v1_3


class LearningSwitch(app_manager.OSKenApp):
    """Learns stations from PacketIns, and sets a flow for every pair of learned stations."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012  # os-ken's declaration, a class attribute by contract

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stations: dict[int, dict[str, int]] = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def connected(self, event: Any) -> None:
        """Send what no flow matches to the controller, whole."""
        datapath = event.msg.datapath
        protocol, parser = datapath.ofproto, datapath.ofproto_parser
        actions = [parser.OFPActionOutput(protocol.OFPP_CONTROLLER, protocol.OFPCML_NO_BUFFER)]
        self.add_flow(datapath, 0, parser.OFPMatch(), actions)

    def add_flow(self, datapath: Any, priority: int, match: Any, actions: list[Any]) -> None:
        """Set one flow."""
        protocol, parser = datapath.ofproto, datapath.ofproto_parser
        instructions = [parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions)]
        datapath.send_msg(
            parser.OFPFlowMod(datapath=datapath, priority=priority, match=match, instructions=instructions)
        )

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def packet_in(self, event: Any) -> None:
        """Learn where the source is; send the packet on to where the destination is."""
        message = event.msg
        datapath = message.datapath
        protocol, parser = datapath.ofproto, datapath.ofproto_parser
        in_port = message.match["in_port"]
        frame = packet.Packet(message.data).get_protocols(ethernet.ethernet)[0]
        stations = self.stations.setdefault(datapath.id, {})
        stations[frame.src] = in_port
        out_port = stations.get(frame.dst, protocol.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(out_port)]
        if out_port != protocol.OFPP_FLOOD:
            match = parser.OFPMatch(in_port=in_port, eth_dst=frame.dst, eth_src=frame.src)
            self.add_flow(datapath, 1, match, actions)
        datapath.send_msg(
            parser.OFPPacketOut(
                datapath=datapath,
                buffer_id=protocol.OFP_NO_BUFFER,
                in_port=in_port,
                actions=actions,
                data=message.data,
            )
        )


def main(port: int) -> None:
    """Serve switches on a port of the loopback interface until the process is ended."""
    cfg.CONF(args=[], project="os_ken")
    cfg.CONF.set_override("ofp_listen_host", "127.0.0.1")
    cfg.CONF.set_override("ofp_tcp_listen_port", port)
    app_manager.AppManager.run_apps(["bench.learning_switch", "os_ken.controller.ofp_handler"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
