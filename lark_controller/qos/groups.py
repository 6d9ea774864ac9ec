"""The treatment of each accounting group by a core switch: by a meter, by a queue of the controller's, or by an
administrator's. Pure.

Rates are Mb/s of L2 frame bytes, as queues and meters count them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from lark_controller.policies.model import GroupControl, GroupSpec, Policy
from lark_controller.qos.queues import DEFAULT_QUEUE, LAST_PRIORITY, PortQueues, Queue, bits
from lark_controller.qos.worker_queues import LEAST_REST

# Share of a second's worth of the rate that a meter lets through at once. Open vSwitch's own advice; with a tenth of
# a second's worth a single TCP stream reaches half of the rate.
METER_BURST: Final = 0.8


@dataclass(frozen=True, slots=True)
class Treatment:
    """A group on one switch: its packets' DSCP, and the queue or the meter (rate in kb/s, burst in kb) for them."""

    dscp: int
    queue: int | None = None
    rate: int | None = None
    burst: int = 0


@dataclass(frozen=True, slots=True)
class GroupPort:
    """A port of a core: its name in the policy (None: it leads to the site), and its speed in Mb/s if it is known."""

    wan: str | None
    speed: float | None


class GroupRemark(NamedTuple):
    """A limit of a group (``""``: of all groups) that a switch does not keep, in words for the operator."""

    group: str
    text: str

    def __str__(self) -> str:
        return f"group {self.group}: {self.text}" if self.group else self.text


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The queues of a core's ports, by the port's name on the switch, and what cannot be promised."""

    ports: Mapping[str, PortQueues] = field(default_factory=lambda: MappingProxyType({}))
    short: tuple[GroupRemark, ...] = ()


def treatments(
    policy: Policy,
    max_meter: int,
    control: GroupControl = GroupControl.METERS,
    standing: frozenset[int] = frozenset(),
) -> Iterator[Treatment]:
    """The treatment of each group that a switch with ``max_meter`` meters (0: none) can treat.

    Meters, and queues of the controller's, are numbered by DSCP; of the latter those that are ``standing`` are used. A
    group's burst is its own, or :data:`METER_BURST` of a second's worth.
    """
    for group in policy.groups:
        if control is GroupControl.QUEUES:
            if group.dscp in standing:
                yield Treatment(group.dscp, queue=group.dscp)
        elif group.queue is not None:
            yield Treatment(group.dscp, queue=group.queue)
        elif control is GroupControl.METERS and group.ceiling is not None and group.dscp <= max_meter:
            rate = round(group.ceiling * 1000)
            burst = rate * METER_BURST if group.burst is None else group.burst * 1000
            yield Treatment(group.dscp, rate=rate, burst=max(1, round(burst)))


def has_queue(group: GroupSpec) -> bool:
    """True for a group that the policy gives anything that takes a queue."""
    return group.guarantee is not None or group.ceiling is not None or group.priority != 0


def group_plan(policy: Policy, ports: Mapping[str, GroupPort]) -> GroupPlan:
    """The queues of the groups, numbered by DSCP, on these ports (by their names on the switch).

    A group that names a WAN port has its queue there and towards the site; others have one on every port. Traffic of no
    group shares the default queue, which has the rest. A guarantee that a port cannot hold beside those before
    it is left out, and reported.
    """
    groups = [group for group in policy.groups if has_queue(group)]
    if not groups:
        return GroupPlan()
    ranks = _ranks(groups)
    short: list[GroupRemark] = []
    found: dict[str, PortQueues] = {}
    for name, port in sorted(ports.items()):
        if port.speed is None:
            text = f"the speed of port {name} is not known, so no group has a queue there; the policy can say it"
            short.append(GroupRemark("", text))
            continue
        link, promised = bits(port.speed), 0
        queues: dict[int, Queue] = {}
        for group in groups:
            if port.wan is not None and group.port not in (None, port.wan):
                continue
            least = bits(group.guarantee or 0)
            if promised + least > link:
                text = (
                    f"port {name} of {port.speed:g} Mb/s has {(link - promised) / 1e6:g} Mb/s left "
                    f"for a guarantee of {group.guarantee:g}; it has none there"
                )
                short.append(GroupRemark(group.name, text))
                least = 0
            promised += least
            most = link if group.ceiling is None else min(bits(group.ceiling), link)
            queues[group.dscp] = Queue(least, most, ranks[group.priority])
        rest = max(link - promised, round(link * LEAST_REST))
        queues[DEFAULT_QUEUE] = Queue(rest, link, ranks[0])
        found[name] = PortQueues(link, MappingProxyType(queues))
    return GroupPlan(MappingProxyType(found), tuple(short))


def _ranks(groups: list[GroupSpec]) -> dict[int, int]:
    """The scheduler's priorities (0 first) of the policy's (the greatest first); the last of too many share one."""
    given = sorted({0, *(group.priority for group in groups)}, reverse=True)
    return {priority: min(rank, LAST_PRIORITY) for rank, priority in enumerate(given)}


def shortcomings(policy: Policy, max_meter: int, control: GroupControl = GroupControl.METERS) -> Iterator[GroupRemark]:
    """The limits of groups that a switch cannot keep."""
    for group in policy.groups:
        limited = group.guarantee is not None or group.ceiling is not None
        if control is GroupControl.PREPROVISIONED and limited and group.queue is None:
            yield GroupRemark(group.name, "it has no rates on this switch, because it names no queue (groups_by)")
        elif is_policed(group, control) and group.dscp > max_meter:
            has = "no meters" if max_meter == 0 else f"only {max_meter} meters"
            yield GroupRemark(
                group.name,
                f"ceiling {group.ceiling:g} Mb/s is not enforced, because this switch has {has}; "
                f"give the group a queue",
            )


def notices(policy: Policy, control: GroupControl) -> Iterator[GroupRemark]:
    """The limits of groups that do not apply on a switch though they seem to."""
    if control is GroupControl.PREPROVISIONED:
        return
    by_name = {group.name.lower(): group for group in policy.groups if group.when is None}
    for group in policy.groups:
        if control is GroupControl.METERS and group.queue is None:
            yield from _of_meter(group)
        parent = by_name.get(group.name.lower().rpartition(".")[0])
        if parent is not None and group.when is None and parent.ceiling is not None:
            yield GroupRemark(
                group.name,
                f"what it sends is not counted in the ceiling of {parent.name} ({parent.ceiling:g} Mb/s), because the "
                f"queues and meters of this switch have one level",
            )


def _of_meter(group: GroupSpec) -> Iterator[GroupRemark]:
    """The promises to a group that no meter keeps."""
    if group.guarantee is not None:
        yield GroupRemark(
            group.name,
            f"guarantee {group.guarantee:g} Mb/s is not given, because a meter can only limit; groups_by: queues can",
        )
    if group.priority:
        yield GroupRemark(group.name, "priority is without effect, because a meter can only limit")


def told(remarks: Iterable[GroupRemark]) -> Iterator[str]:
    """The remarks as sentences; of groups with the same remark one, with their names."""
    names: dict[str, list[str]] = {}
    for remark in remarks:
        names.setdefault(remark.text, []).append(remark.group)
    for text, groups in names.items():
        if len(groups) == 1:
            yield str(GroupRemark(groups[0], text))
        else:
            yield f"groups {', '.join(groups[:-1])} and {groups[-1]}: {text}"


def is_policed(group: GroupSpec, control: GroupControl = GroupControl.METERS) -> bool:
    """True for a group that needs a meter: it has a ceiling, and no queue that an administrator made."""
    return control is GroupControl.METERS and group.queue is None and group.ceiling is not None
