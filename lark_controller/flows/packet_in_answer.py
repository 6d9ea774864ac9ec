"""Answers to PacketIns: whether a sliced job may talk with an address among other hosts. Pure.

They are asked only where the policy declares no job networks, so that a job's address looks like any other host's; the
answer stands on that switch until it is idle, and goes at once when a job starts or ends at the address.
"""

from __future__ import annotations

from typing import Final

from lark_controller.flows import tables as t
from lark_controller.flows.build import address_or_target_fields
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import ETH_ARP, FLAG_SEND_FLOW_REM, Flow, FlowData, FlowKey, match
from lark_controller.flows.prefixes import Prefix
from lark_controller.flows.tables import Edge

FULL_LENGTH: Final = {4: 32, 6: 128}


def answer(
    table: Edge, tag: int, version: int, address: int, arp: bool, allowed: bool, *, solicited: bool = False
) -> Flow:
    """The flow that answers for a slice (its tag) and the other side's address.

    ``table`` is SLICE_FROM (the address is the destination) or SLICE_TO (it is the source). ``solicited``: a
    solicitation that is sent to a group asks for it.
    """
    sending = table is Edge.SLICE_FROM
    prefix = Prefix(version, address, FULL_LENGTH[version])
    fields = next(
        found
        for found in address_or_target_fields(prefix, "dst" if sending else "src")
        if (found["eth_type"] == ETH_ARP) == arp and ("ipv6_nd_target" in found) == (solicited and sending)
    )
    tag_bits = (t.FROM_TAG if sending else t.TO_TAG).put(tag)
    following = Edge.SLICE_TO if sending else Edge.WAN
    number = hash((version, address)) & 0xFFFFFFFF
    return Flow(
        FlowKey(int(table), t.P_REACTIVE, match(metadata=tag_bits, **fields)),
        FlowData(
            cookie(Category.REACTIVE, number),
            goto=int(following if allowed else Edge.DROPS),
            idle_timeout=t.IDLE_REACTIVE,
            flags=FLAG_SEND_FLOW_REM,
        ),
    )
