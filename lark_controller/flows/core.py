"""The flows of a core switch: the frame of its tables, WAN classes by prefix, queues or meters by DSCP. Pure.

The number of rules grows with policy rules, groups and prefixes, not with jobs: jobs for which no WAN rule drops or
steers need none at all here, and addresses in blocks make the others a few prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lark_common.worker_rules import CT_ZONE_GROUPS
from lark_controller.flows import access_point
from lark_controller.flows import tables as t
from lark_controller.flows.build import ICMPV6, NA, NS, SWITCH, Fields, flow
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.edge.delivery import learning_tables
from lark_controller.flows.external import from_host, pool_flows
from lark_controller.flows.model import (
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_MAX,
    PORT_NORMAL,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Meter,
    Output,
    SetField,
    SetQueue,
    Track,
    match,
)
from lark_controller.flows.placement import Switch, WanPort, mac_number
from lark_controller.flows.prefixes import Prefix
from lark_controller.flows.tables import Core, combine
from lark_controller.flows.wan import ip_fields, local_networks, wan_flows
from lark_controller.policies.model import GroupControl, GroupSpec, Policy, WanAction, WanRule
from lark_controller.qos.groups import (
    GroupPlan,
    GroupPort,
    GroupRemark,
    group_plan,
    has_queue,
    notices,
    told,
    treatments,
)
from lark_controller.qos.groups import shortcomings as qos_shortcomings

# By which stations find each other: ARP (RFC 826), and IPv6's solicitations and advertisements (RFC 4861).
_NEIGHBOURS: Final[tuple[Fields, ...]] = (
    {"eth_type": ETH_ARP},
    {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": NS},
    {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": NA},
)


def frame(switch: Switch, policy: Policy, standing: frozenset[int] = frozenset()) -> Iterator[Flow]:
    """The flows that stand on every core switch, whatever jobs there are; ``standing`` are the groups whose queues of
    the controller's are there, by DSCP."""
    for wan in switch.wan:
        for host in policy.hosts:
            fields = {"in_port": wan.number, **ip_fields(host, "src")}
            mark, noted = cookie(Category.CLASSIFY, 0), from_host(policy, host)
            yield flow(Core.CLASSIFY, t.P_EXACT + 10, fields, mark, goto=Core.WAN, metadata=noted)
        for network in policy.job_networks:
            # No host outside has a job's address (BCP 38).
            fields = {"in_port": wan.number, **ip_fields(network, "src")}
            yield flow(Core.CLASSIFY, t.P_EXACT, fields, cookie(Category.CLASSIFY, 0))
    for table, following in ((Core.CLASSIFY, Core.WAN), (Core.WAN, Core.QOS), (Core.QOS, Core.EXTERNAL)):
        yield flow(table, t.P_MISS, {}, SWITCH, goto=following)
    yield from wan_flows(policy, Core.WAN, Core.QOS)
    yield from _steering(switch, policy)
    yield from _groups(switch, policy, standing)
    yield from pool_flows(switch, policy)
    if switch.normal:
        yield flow(Core.LEARN, t.P_MISS, {}, SWITCH, goto=Core.FORWARD)
        yield flow(Core.FORWARD, t.P_SWITCH, {}, SWITCH, actions=(Output(PORT_NORMAL),))
    else:
        ports = sorted(number for number in switch.ports.values() if number <= PORT_MAX)
        yield from learning_tables(Core.LEARN, Core.FORWARD, ports)


def class_flows(rule: WanRule, prefixes: Iterable[Prefix]) -> Iterator[Flow]:
    """Flows for the prefixes that come under a WAN rule: as source, and where the rule drops also as destination.

    The way of an answer to a steered job is not this switch's choice, so steering needs half of the rules.
    """
    position, mark = rule.position, cookie(Category.CLASSIFY, rule.position)
    sides = (("src", t.P_ALLOW, t.FROM_JOB, t.FROM_WAN), ("dst", t.P_DEST, t.TO_JOB, t.TO_WAN))
    for prefix in prefixes:
        value = (prefix.value, prefix.mask)
        ethertype, name = (ETH_IPV4, "ipv4") if prefix.version == 4 else (ETH_IPV6, "ipv6")
        for side, priority, job_bit, class_bits in sides if rule.action is WanAction.DROP else sides[:1]:
            yield flow(
                Core.CLASSIFY,
                priority,
                {"eth_type": ethertype, f"{name}_{side}": value},
                mark,
                goto=Core.WAN,
                metadata=combine(job_bit.put(1), class_bits.put(position)),
            )


def _steering(switch: Switch, policy: Policy) -> Iterator[Flow]:
    """Steered classes leave by their rule's port, whatever is not local; the rest by each WAN port's next hop."""
    steered = False
    for rule in policy.wans:
        port = None if rule.port is None else switch.wan_or_backup(rule.port)
        if rule.action is not WanAction.STEER or port is None:
            continue
        steered = True
        mark = cookie(Category.WAN, rule.position)
        sender = t.FROM_WAN.put(rule.position)
        for ethertype in (ETH_IPV4, ETH_IPV6):
            fields = {"metadata": sender, "eth_type": ethertype}
            yield flow(Core.WAN, t.P_DENY, fields, mark, goto=Core.QOS, metadata=t.STEERED.put(1))
        yield _leaving(combine(sender, t.STEERED.put(1)), port, mark)
    if steered and not any(rule.action is WanAction.DROP for rule in policy.wans):
        yield from _local_passes(policy)
    # A gateway's MAC that is seen on several WAN ports would move about in what NORMAL learns.
    for mac, now in _next_hops(switch, policy).items():
        hop: tuple[Action, ...] = () if now.next_hop in (None, mac) else (SetField("eth_dst", now.next_hop),)
        there = (*hop, Output(now.number))
        yield flow(Core.FORWARD, t.P_ALLOW, {"eth_dst": mac}, SWITCH, actions=there)
        if switch.normal:
            # It learns nothing of a packet that goes past it, and floods answers to a job that has sent nothing else
            # for its ageing time. What a job says of its address to a gateway that asks goes by both ways.
            for fields in _NEIGHBOURS:
                both = (Output(PORT_NORMAL), *there)
                yield flow(Core.FORWARD, t.P_ALLOW + 10, {"eth_dst": mac, **fields}, SWITCH, actions=both)


def _next_hops(switch: Switch, policy: Policy) -> dict[int, WanPort]:
    """The ports by which packets to each declared next hop leave by now; of one that two have, the first."""
    found: dict[int, WanPort] = {}
    spec = policy.switches.get(switch.datapath)
    for name, port in () if spec is None else spec.ports.items():
        now = None if port.next_hop is None else switch.wan_or_backup(name)
        if port.next_hop is not None and now is not None:
            found.setdefault(mac_number(port.next_hop), now)
    return found


def _local_passes(policy: Policy) -> Iterator[Flow]:
    for network in local_networks(policy):
        fields = {"metadata": t.FROM_JOB.put(1), **ip_fields(network, "dst")}
        yield flow(Core.WAN, t.P_ALLOW, fields, cookie(Category.WAN), goto=Core.QOS)


def inbound_flows(dscp: int, prefixes: Iterable[Prefix]) -> Iterator[Flow]:
    """Flows that put packets for these prefixes into a queue towards the site: that of the group with this DSCP."""
    for prefix in prefixes:
        ethertype, name = (ETH_IPV4, "ipv4_dst") if prefix.version == 4 else (ETH_IPV6, "ipv6_dst")
        fields: Fields = {"eth_type": ethertype, name: (prefix.value, prefix.mask)}
        mark = cookie(Category.GROUP, dscp)
        yield flow(Core.INBOUND, t.P_ALLOW, fields, mark, goto=Core.EXTERNAL, actions=(SetQueue(dscp),))


def _groups(switch: Switch, policy: Policy, standing: frozenset[int]) -> Iterator[Flow]:
    """A rule a group: its queue, or its meter. DSCP is trusted from the site's side only (RFC 2475, section 2.3)."""
    if not policy.marks_packets:
        return
    queues = switch.group_control is GroupControl.QUEUES
    for wan in switch.wan:
        following = Core.INBOUND if queues else Core.EXTERNAL
        yield flow(Core.QOS, t.P_EXACT, {"in_port": wan.number}, SWITCH, goto=following)
    tracks = queues and switch.tracks and bool(policy.job_networks)
    if queues:
        yield flow(Core.INBOUND, t.P_MISS, {}, SWITCH, goto=Core.EXTERNAL)
    if tracks:
        yield from _look_up(policy)
    for network in local_networks(policy):
        # Guarantees and ceilings are the WAN's; what stays on the site is not charged to them.
        yield flow(Core.QOS, t.P_GUARD, ip_fields(network, "dst"), SWITCH, goto=Core.EXTERNAL)
    treated: dict[int, _Treated] = {}
    for treatment in treatments(policy, switch.max_meter, switch.group_control, standing):
        actions: tuple[Action, ...] = () if treatment.queue is None else (SetQueue(treatment.queue),)
        if tracks and treatment.queue is not None:
            yield from _remembered(treatment.dscp, treatment.queue, policy)
            actions = (*actions, Track(CT_ZONE_GROUPS, None, commit=True, mark=treatment.dscp))
        treated[treatment.dscp] = each = _Treated(actions, None if treatment.rate is None else treatment.dscp)
        yield from _treated({"ip_dscp": treatment.dscp}, treatment.dscp, each)
    yield from _transfers(switch, policy, treated)


class _Treated(NamedTuple):
    """The actions for a group's packets that leave the site, and the meter that they pass."""

    actions: tuple[Action, ...] = ()
    meter: int | None = None


def _treated(fields: Fields, dscp: int, how: _Treated, metadata: tuple[int, int] | None = None) -> Iterator[Flow]:
    """The flows of what has a DSCP, by either family."""
    for ethertype in (ETH_IPV4, ETH_IPV6):
        data = FlowData(cookie(Category.GROUP, dscp), how.actions, int(Core.EXTERNAL), metadata, how.meter)
        yield Flow(FlowKey(int(Core.QOS), t.P_ALLOW, match(eth_type=ethertype, **fields)), data)


def _transfers(switch: Switch, policy: Policy, treated: Mapping[int, _Treated]) -> Iterator[Flow]:
    """The flows of transfers with a WAN port: treated as their group is, and steered where the switch has the port.

    There the packets get their group's own DSCP, since nobody behind it has to find their port.
    """
    groups = {group.name: group.dscp for group in policy.groups}
    # No job sends these marks; if one did, its own WAN rule would have chosen its port by now.
    no_job = t.FROM_JOB.put(0)
    for mark in policy.transfer_marks:
        dscp, port = groups.get(mark.group, 0), switch.wan_or_backup(mark.port)
        how = treated.get(dscp, _Treated())
        fields: Fields = {"metadata": no_job, "ip_dscp": mark.dscp}
        if port is None:
            yield from _treated(fields, mark.dscp, how)
            continue
        steered = combine(t.STEERED.put(1), t.GROUP.put(mark.dscp))
        yield from _treated(fields, mark.dscp, how._replace(actions=(*how.actions, SetField("ip_dscp", dscp))), steered)
        yield _leaving(steered, port, cookie(Category.GROUP, mark.dscp))


def _leaving(steered: tuple[int, int], port: WanPort, mark: int) -> Flow:
    """The flow by which what is steered leaves, for that port's router."""
    hop: tuple[Action, ...] = () if port.next_hop is None else (SetField("eth_dst", port.next_hop),)
    return flow(Core.FORWARD, t.P_EXACT, {"metadata": steered}, mark, actions=(*hop, Output(port.number)))


def _look_up(policy: Policy) -> Iterator[Flow]:
    """A packet that comes in for no job's address may be for a job behind NAT: its connection has the group."""
    for network in policy.job_networks:
        yield flow(Core.INBOUND, t.P_DEST + 5, ip_fields(network, "dst"), SWITCH, goto=Core.EXTERNAL)
    for ethertype in (ETH_IPV4, ETH_IPV6):
        fields: Fields = {"eth_type": ethertype, "ct_state": (0, CT_TRK)}
        look_up = (Track(CT_ZONE_GROUPS, int(Core.INBOUND)),)
        yield flow(Core.INBOUND, t.P_ASK, fields, SWITCH, actions=look_up)


def _remembered(dscp: int, queue: int, policy: Policy) -> Iterator[Flow]:
    """The flow that gives answers to a group its queue, where the group's senders have no job addresses: those are
    recognised by prefix, these by the mark of the tracked connection."""
    mark = cookie(Category.GROUP, dscp)
    yield flow(Core.INBOUND, t.P_DEST, {"ct_mark": dscp}, mark, goto=Core.EXTERNAL, actions=(SetQueue(queue),))
    for network in policy.job_networks:
        fields: Fields = {**ip_fields(network, "src"), "ip_dscp": dscp}
        yield flow(Core.QOS, t.P_ALLOW + 1, fields, mark, goto=Core.EXTERNAL, actions=(SetQueue(queue),))


def meters(switch: Switch, policy: Policy) -> Iterator[Meter]:
    """The meters of a core, or of an access point's switch: one for each policed group, numbered by DSCP."""
    if switch.is_edge:
        return
    for treatment in treatments(policy, switch.max_meter, switch.group_control):
        if treatment.rate is not None:
            yield Meter(treatment.dscp, treatment.rate, treatment.burst)


def shortcomings(switch: Switch, policy: Policy) -> tuple[str, ...]:
    """The demands of the policy that a core or an access point's switch cannot meet, in sentences for the operator."""
    if switch.is_edge:
        return ()
    sentences = list(told(qos_shortcomings(policy, switch.max_meter, switch.group_control)))
    if not switch.is_core:
        return (*sentences, *access_point.shortcomings(switch, policy))
    for rule in policy.wans:
        if rule.action is WanAction.STEER and switch.wan_or_backup(rule.port or "") is None:
            declared = policy.switches.get(switch.datapath)
            if declared is not None and rule.port in declared.ports:
                sentences.append(f"wan rule in line {rule.line}: the switch has no port {rule.port} as it is declared")
    declared = policy.switches.get(switch.datapath)
    for name, line in {mark.port: mark.line for mark in reversed(policy.transfer_marks)}.items():
        if declared is not None and name in declared.ports and switch.wan_or_backup(name) is None:
            sentences.append(f"transfers rule in line {line}: the switch has no port {name} as it is declared")
    return tuple(sentences)


def remarks(switch: Switch, policy: Policy) -> tuple[str, ...]:
    """Remarks on a policy on a core or an access point's switch, for the operator: :func:`shortcomings`, and limits
    that only seem to apply."""
    if switch.is_edge:
        return ()
    seeming = (*notices(policy, switch.group_control), *queue_plan(switch, policy).short, *_elsewhere(switch, policy))
    return (*shortcomings(switch, policy), *told(seeming))


def _elsewhere(switch: Switch, policy: Policy) -> Iterator[GroupRemark]:
    """The groups whose transfers leave by another port than the one where the group has its queue."""
    groups = {group.name: group for group in policy.groups if has_queue(group)}
    for mark in policy.transfer_marks:
        at = groups[mark.group].port if mark.group in groups else None
        here = switch.is_core and switch.group_control is GroupControl.QUEUES
        if here and at not in (None, mark.port) and switch.wan_or_backup(mark.port) is not None:
            text = f"its transfers leave by port {mark.port} (line {mark.line}), and its queue is on port {at}"
            yield GroupRemark(mark.group, text)


def queue_is_elsewhere(switch: Switch, group: GroupSpec, port: str) -> bool:
    """True where a core has a group's queue, but at another WAN port than this one: there its limits do not hold."""
    by_queues = switch.is_core and switch.group_control is GroupControl.QUEUES
    return by_queues and has_queue(group) and group.port not in (None, port)


def steered_past(switch: Switch, policy: Policy, ruled: Mapping[tuple[str, int], int]) -> Iterator[GroupRemark]:
    """The groups of whose jobs some leave by another port than the one where the group has its queue; ``ruled`` is the
    number of each group's jobs that come under a WAN rule, by its position."""
    for group in policy.groups:
        for rule in policy.wans:
            if not ruled.get((group.name, rule.position)):
                continue
            port = None if rule.port is None else switch.wan_or_backup(rule.port)
            if port is not None and queue_is_elsewhere(switch, group, port.name):
                text = (
                    f"its guarantee and ceiling do not hold for what leaves by port {port.name}, where wan rule in line"
                    f" {rule.line} sends jobs of it: its queue is on port {group.port}"
                )
                yield GroupRemark(group.name, text)


def carried_past(switch: Switch, policy: Policy, unsteered: Mapping[str, int]) -> Iterator[GroupRemark]:
    """The groups whose queue is on a port that is down, and of which a backup without that queue carries something by
    now; ``unsteered`` is the number of each group's jobs that no WAN rule drops or steers."""
    transfers = {(mark.group, mark.port) for mark in policy.transfer_marks}
    for group in policy.groups:
        port = None if group.port is None else switch.instead(group.port)
        some = unsteered.get(group.name, 0) > 0 or (group.name, group.port) in transfers
        if some and port is not None and queue_is_elsewhere(switch, group, port.name):
            text = (
                f"its guarantee and ceiling do not hold for what leaves by port {port.name}, which takes the place of"
                f" port {group.port} while that is down: its queue is on port {group.port}"
            )
            yield GroupRemark(group.name, text)


def unkept(switch: Switch, policy: Policy) -> Iterator[GroupRemark]:
    """The limits of groups that a core or an access point's switch does not keep, or not as they seem to be meant."""
    if not switch.is_edge:
        yield from qos_shortcomings(policy, switch.max_meter, switch.group_control)
        yield from notices(policy, switch.group_control)
        yield from queue_plan(switch, policy).short
        yield from _elsewhere(switch, policy)


def queue_plan(switch: Switch, policy: Policy) -> GroupPlan:
    """The queues that the controller makes on a core, or at an access point, for groups."""
    if switch.is_edge or switch.group_control is not GroupControl.QUEUES:
        return GroupPlan()
    names = {number: name for name, number in switch.ports.items()}
    wan = {port.number: port.name for port in switch.wan}
    # An access point's uplinks have every group's queue, as ports to the site.
    site = switch.lan if switch.is_core else switch.uplinks
    ports = {names[number]: GroupPort(wan.get(number), switch.speeds.get(number)) for number in (*site, *wan)}
    return group_plan(policy, ports)
