"""The backups of WAN ports: the ports whose traffic a flow hands over to a backup, and the declarations of backups that
do not do what they seem to. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lark_controller.policies.model import Policy, SwitchRole, SwitchSpec, WanAction
from lark_controller.policies.switches import WAN


def handed_over(policy: Policy, spec: SwitchSpec) -> frozenset[str]:
    """The WAN ports of a switch for which a backup is used while they are down: those with a next hop, and those that a
    ``wan`` rule, a transfer or a pool of external addresses names. What goes to another is the switch's own to forward,
    by the MAC addresses that it has learned."""
    places = [] if policy.external is None else policy.external.places.values()
    named = {rule.port for rule in policy.wans if rule.action is WanAction.STEER}
    named |= {mark.port for mark in policy.transfer_marks}
    named |= {place.port for place in places if place.switch in (None, spec.name)}
    return frozenset(
        name for name, port in spec.ports.items() if name.startswith(WAN) and (port.next_hop or name in named)
    )


def backup_warnings(policy: Policy) -> Iterator[str]:
    """The backups that are not used for what they seem to be there for, for want of a next hop, and those that send on
    to the MAC address of another port's router."""
    for spec in policy.switches.values():
        if spec.role is SwitchRole.CORE:
            yield from _of_switch(spec, handed_over(policy, spec))


def _of_switch(spec: SwitchSpec, own: frozenset[str]) -> Iterator[str]:
    used = _with_backups(spec, own)
    first = next((name for name in spec.ports if name.startswith(WAN)), "")
    for name, port in spec.ports.items():
        if port.backup is None:
            continue
        where = f"switches.{spec.name}.ports.{name}"
        hop = 'its router\'s MAC address, as next_hop: "02:00:00:00:00:01"'
        if port.next_hop is None and (name not in used or name == first):
            what = "what no rule sends to it" if name in own else "nothing"
            yield (
                f"{where} has the backup {port.backup} and no next_hop, so while it is down {what} goes by"
                f" {port.backup}; accepted on each of the two ports: {hop}"
            )
        elif port.next_hop is not None and spec.ports[port.backup].next_hop is None:
            yield (
                f"{where} has the backup {port.backup}, which has no next_hop, so while {name} is down packets leave"
                f" by {port.backup} to the MAC address that they have, mostly that of the jobs' default router, which"
                f" reaches a router there only if it is its own; accepted on {port.backup}: {hop}"
            )


def _with_backups(spec: SwitchSpec, own: frozenset[str]) -> frozenset[str]:
    """These ports and their backups, and the backups of those."""
    found: set[str] = set()
    for name in own:
        next_one: str | None = name
        while next_one is not None and next_one not in found:
            found.add(next_one)
            next_one = spec.ports[next_one].backup
    return frozenset(found)
