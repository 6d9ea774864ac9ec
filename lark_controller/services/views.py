"""The reconcile loop's state as frozen answers for REST. Reads, changes nothing; called on the loop's thread."""

from __future__ import annotations

from collections.abc import Mapping

from lark_common.errors import NotFoundError
from lark_controller.api.groups import GroupStatus
from lark_controller.api.switches import PortStatus, SwitchStatus
from lark_controller.api.workers import HostStatus
from lark_controller.flows.desired import Pool
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.placement import Switch
from lark_controller.policies.model import SwitchRole
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import SwitchState, dpid_text


def find_switch(loop: Reconciler, text: str) -> int:
    """A switch's datapath id from its id or name. Raises NotFoundError."""
    for datapath, spec in loop.pool.policy.switches.items():
        if spec.name == text:
            return datapath
    for datapath, known in loop.pool.switches.items():
        if known.name == text:
            return datapath
    try:
        number = int(text.removeprefix("0x").replace(":", ""), 16)
    except ValueError:
        number = -1
    if number in loop.switches or number in loop.pool.policy.switches:
        return number
    raise NotFoundError(f"no switch has the name or datapath id {text}")


def switches(loop: Reconciler) -> tuple[SwitchStatus, ...]:
    """All switches that are declared or have been connected, by datapath id."""
    return tuple(switch(loop, dp, ports=False) for dp in sorted({*loop.switches, *loop.pool.policy.switches}))


def switch(loop: Reconciler, datapath: int, *, ports: bool = True) -> SwitchStatus:
    """One switch; without ``ports`` at a cost that does not grow with its jobs."""
    pool = loop.pool_of(datapath)
    state = loop.switches.get(datapath) or SwitchState(datapath)
    spec = pool.policy.switches.get(datapath)
    known = pool.switches.get(datapath)
    return SwitchStatus(
        datapath=dpid_text(datapath),
        name=state.label(pool),
        role=str(spec.role if spec is not None else SwitchRole.EDGE),
        connected=state.link is not None,
        in_sync=state.in_sync,
        address=state.address,
        host=(spec.host if spec is not None else None) or state.description,
        description=state.description,
        desired=pool.rules.get(datapath, 0),
        installed=state.installed,
        max_rules=0 if spec is None else spec.max_rules,
        jobs=pool.count_at(datapath),
        normal=True if known is None else known.normal,
        max_meter=0 if known is None else known.max_meter,
        drift=state.drift,
        packet_ins=state.packet_ins,
        since=state.since,
        reason=state.reason,
        ports=_ports(pool, state, known) if ports and known is not None else (),
        problems=(*state.problems, *loop.queues.problems(datapath)) if ports else (),
    )


def _ports(pool: Pool, state: SwitchState, known: Switch) -> tuple[PortStatus, ...]:
    if state.link is None:
        return ()
    behind = {placed.port: placed.job.id for placed in pool.jobs_at(state.datapath) if placed.port is not None}
    roles = dict.fromkeys(known.uplinks, "uplink")
    roles |= dict.fromkeys(known.lan, "lan") | {wan.number: wan.name for wan in known.wan}
    roles[PORT_LOCAL] = "local"
    other = "closed" if known.is_edge else "switch"
    return tuple(
        PortStatus(
            port.number,
            port.name,
            "job" if port.number in behind else roles.get(port.number, other),
            behind.get(port.number),
        )
        for port in sorted(state.link.features.ports.values(), key=lambda port: port.number)
    )


def groups(loop: Reconciler, dropped: Mapping[str, int]) -> tuple[GroupStatus, ...]:
    """The accounting groups of the policy in force, how many live jobs each takes, and what cores dropped of them."""
    counts = loop.pool.groups
    return tuple(
        GroupStatus(
            group.name,
            counts[group.name],
            group.dscp,
            group.queue,
            group.guarantee,
            group.ceiling,
            group.port,
            core_drops=dropped.get(group.name, 0),
        )
        for group in loop.pool.policy.groups
    )


def host(loop: Reconciler, name: str, after: str) -> HostStatus:
    """A worker's rules; left out where their revision is ``after``."""
    revision = loop.workers.states.revision(name)
    waiting = tuple(
        placed.job.id
        for placed in loop.pool.ruled_at(name)
        if loop.workers.states.number(name) in loop.confirmations.waiting(placed.job.number)
    )
    return HostStatus(name, revision, None if revision == after else loop.pool.host_rules(name), waiting)
