"""The flows of an access point's switch: what its transfers send has the group that the worker's packets name. Pure.

A worker marks what it sends for a job's transfers with the job's group (DSCP); what it receives, a job's input, is sent
by the access point, which has no word of jobs. So the switch keeps the mark of each connection by connection tracking,
and gives it to the packets of the other direction, with the group's queue or meter. The number of flows grows with
groups and local networks, not with jobs or transfers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark_common.worker_rules import CT_ZONE_GROUPS
from lark_controller.flows import tables as t
from lark_controller.flows.build import SWITCH, Fields, flow
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.edge.delivery import learning_tables
from lark_controller.flows.model import (
    CT_TRK,
    ETH_IPV4,
    ETH_IPV6,
    PORT_LOCAL,
    PORT_MAX,
    PORT_NORMAL,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Output,
    SetField,
    SetQueue,
    Track,
    match,
)
from lark_controller.flows.placement import Switch
from lark_controller.flows.tables import Core
from lark_controller.flows.wan import NOT_WAN, ip_fields, local_networks
from lark_controller.policies.model import Policy
from lark_controller.qos.groups import Treatment, treatments

NO_TRACKING: Final = "the switch tracks no connections, so what transfers send from there is in no group"


def frame(switch: Switch, policy: Policy, standing: frozenset[int] = frozenset()) -> Iterator[Flow]:
    """All flows of the switch; ``standing`` are the groups whose queues of the controller's are there, by DSCP."""
    for table, following in (
        (Core.CLASSIFY, Core.WAN), (Core.WAN, Core.QOS), (Core.QOS, Core.INBOUND), (Core.INBOUND, Core.EXTERNAL),
        (Core.EXTERNAL, Core.LEARN),
    ):  # fmt: skip
        yield flow(table, t.P_MISS, {}, SWITCH, goto=following)
    if policy.groups and switch.tracks:
        yield from _groups(switch, policy, standing)
    yield from _forwarding(switch)


def _groups(switch: Switch, policy: Policy, standing: frozenset[int]) -> Iterator[Flow]:
    site = [network for network in local_networks(policy) if network not in NOT_WAN]
    found = {each.dscp: each for each in treatments(policy, switch.max_meter, switch.group_control, standing)}
    for uplink in switch.uplinks:
        yield flow(Core.QOS, t.P_MISS + 1, {"in_port": uplink}, SWITCH, goto=Core.EXTERNAL)
    numbers = {group.name: group.dscp for group in policy.groups}
    # The port of a transfer's mark is one to the WAN, so what is sent to a worker has no use for it: the group is left.
    marks = [(each.dscp, numbers[each.group]) for each in policy.transfer_marks if each.group in numbers]
    for dscp, group in (*((each, each) for each in numbers.values()), *marks):
        remember = (Track(CT_ZONE_GROUPS, None, commit=True, mark=group),)
        for uplink in switch.uplinks:
            # From outside of the site nobody chooses a group (RFC 2475, section 2.3).
            for network in site:
                fields: Fields = {"in_port": uplink, **ip_fields(network, "src"), "ip_dscp": dscp}
                mark = cookie(Category.GROUP, dscp)
                yield flow(Core.QOS, t.P_ALLOW, fields, mark, goto=Core.EXTERNAL, actions=remember)
    for group in numbers.values():
        yield from _answers(group, found.get(group), cookie(Category.GROUP, group))
    for ethertype in (ETH_IPV4, ETH_IPV6):
        fields = {"eth_type": ethertype, "ct_state": (0, CT_TRK)}
        look_up = (Track(CT_ZONE_GROUPS, int(Core.INBOUND)),)
        yield flow(Core.INBOUND, t.P_ASK, fields, SWITCH, actions=look_up)


def _answers(dscp: int, treatment: Treatment | None, mark: int) -> Iterator[Flow]:
    """The flows of what is sent on a connection with a group's mark."""
    queue = None if treatment is None else treatment.queue
    chosen: tuple[Action, ...] = () if queue is None else (SetQueue(queue),)
    meter = None if treatment is None or treatment.rate is None else treatment.dscp
    for ethertype in (ETH_IPV4, ETH_IPV6):
        yield Flow(
            FlowKey(int(Core.INBOUND), t.P_DEST, match(eth_type=ethertype, ct_mark=dscp)),
            FlowData(mark, (SetField("ip_dscp", dscp), *chosen), int(Core.EXTERNAL), meter=meter),
        )


def _forwarding(switch: Switch) -> Iterator[Flow]:
    """As a plain switch."""
    if switch.normal:
        yield flow(Core.LEARN, t.P_MISS, {}, SWITCH, goto=Core.FORWARD)
        yield flow(Core.FORWARD, t.P_SWITCH, {}, SWITCH, actions=(Output(PORT_NORMAL),))
        return
    ports = sorted(number for number in switch.ports.values() if number <= PORT_MAX or number == PORT_LOCAL)
    yield from learning_tables(Core.LEARN, Core.FORWARD, ports)


def shortcomings(switch: Switch, policy: Policy) -> tuple[str, ...]:
    """The demands of the policy that an access point's switch cannot meet, in sentences for the operator."""
    return () if switch.tracks or not policy.groups else (NO_TRACKING,)
