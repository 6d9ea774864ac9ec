"""Desired and installed state of switches, read from the loop and from the switches. Called by REST threads."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lark_common.errors import SwitchError
from lark_common.turns import next_turn
from lark_controller.api.instances import Expected
from lark_controller.api.switches import (
    Explanation,
    FlowFilter,
    FlowPage,
    PortLoad,
    PortStatus,
    SwitchProblem,
    SwitchStatus,
    WanPortStatus,
)
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.placement import Switch, cut_off
from lark_controller.policies.model import SwitchRole
from lark_controller.policies.topology import is_wan
from lark_controller.reconcile.calls import LOOP_TIMEOUT, LoopCalls
from lark_controller.reconcile.confirmations import TRANSLATED, RulesAt
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import SwitchState, dpid_text
from lark_controller.services import flow_list as flow_lists
from lark_controller.services.explain import SwitchTables, concerned, explain
from lark_controller.services.explain_ends import Ends, ends_of
from lark_controller.services.explain_own import explained_to, require_end_of
from lark_controller.services.explain_transfers import StateOf, transfer_steps
from lark_controller.services.job_names import live_names
from lark_controller.services.switch_names import SwitchNames, is_known, known_switches
from lark_controller.switches.openflow.dumps import Dump
from lark_controller.switches.openflow.loop_thread import OpenFlow

# Switches that the loop lists before it turns to other work.
_AT_A_TIME: Final = 64


class Switches:
    """Read-only operations on switches. Thread-safe. ``transfers_of`` has the state of jobs' transfers."""

    def __init__(self, openflow: OpenFlow, reconciler: Reconciler, transfers_of: StateOf) -> None:
        self._openflow = openflow
        self._loop = LoopCalls(openflow)
        self._reconciler = reconciler
        self._transfers_of = transfers_of
        self._counting: Future[Expected] | None = None

    def all(self) -> tuple[SwitchStatus, ...]:
        """All switches that are declared, have been connected or have jobs, by datapath id."""
        loop = self._reconciler

        async def read() -> tuple[SwitchStatus, ...]:
            found: list[SwitchStatus] = []
            names = SwitchNames.of(loop)
            for number, datapath in enumerate(known_switches(loop)):
                if number % _AT_A_TIME == _AT_A_TIME - 1:
                    # Thousands of switches are some ten milliseconds of the loop, and anybody may ask again and again.
                    await asyncio.sleep(0)
                found.append(_status(loop, datapath, names, ports=False))
            return tuple(found)

        return self._loop.run(read(), LOOP_TIMEOUT)

    def expected(self) -> Expected | None:
        """The switches that are declared or have jobs, as they were after the last call; None where the loop has not
        answered since. Waits for nothing; for one thread."""
        counting = self._counting
        if counting is not None and not counting.done():
            return None
        self._counting = None
        with suppress(RuntimeError):  # The loop has ended.
            self._counting = self._openflow.call(self._count_expected)
        return None if counting is None or counting.exception() is not None else counting.result()

    def _count_expected(self) -> Expected:
        desired = self._reconciler.desired
        expected = {*desired.policy.switches, *desired.edges()}
        links = self._openflow.links
        own = {each for each in expected & links.keys() if not links[each].connection.through}
        away = tuple(expected - own) if len(own) * 2 < len(expected) else ()
        return Expected(len(expected), len(own), away)

    def find(self, datapath: str) -> SwitchStatus:
        """One switch, by datapath id (hexadecimal), name, or its host's name with or without the domain. Raises
        NotFoundError."""

        def found() -> SwitchStatus:
            names = SwitchNames.of(self._reconciler)
            return _status(self._reconciler, names.found(datapath), names, ports=True)

        return self._loop.call(found)

    def names(self, datapaths: Collection[str]) -> dict[str, str]:
        """The names of the switches among these datapath ids, in one call however many they are."""
        loop = self._reconciler

        def found() -> dict[str, str]:
            numbers = {text: int(text, 16) for text in datapaths}
            names = SwitchNames.of(loop)
            return {text: names.name(number) for text, number in numbers.items() if is_known(loop, number)}

        return self._loop.call(found) if datapaths else {}

    def hosts_of_jobs(self) -> dict[str, set[str]]:
        """The hosts in lower case of the jobs at each edge, by its datapath id."""
        loop, found = self._reconciler, dict[str, set[str]]()
        for datapath, host in self._loop.call(lambda: list(loop.desired.at_edges)):
            found.setdefault(dpid_text(datapath), set()).add(host)
        return found

    def core_ports(self) -> dict[str, tuple[PortLoad, ...]]:
        """The ports of connected cores with their load, by datapath id."""
        loop = self._reconciler
        return self._loop.call(
            lambda: {dpid_text(dp): found for dp in sorted(loop.switches) if (found := loop.core_ports.loads(dp))}
        )

    def wan_ports(self) -> tuple[WanPortStatus, ...]:
        """The WAN ports that the policy declares at cores which are connected."""
        loop = self._reconciler
        return self._loop.call(
            lambda: tuple(each for dp in loop.desired.policy.switches for each in _wan_ports(loop, dp))
        )

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        """A page of a switch's flows, desired and installed. Raises NotFoundError, SwitchError."""
        job = None if chosen.job is None else self._reconciler.directory.by_id.get(chosen.job)
        if chosen.job is not None and job is None:
            return FlowPage(())
        own = None if job is None else job.number

        async def read() -> tuple[Desired, flow_lists.SwitchFlows]:
            number = SwitchNames.of(self._reconciler).found(datapath)
            state = self._reconciler.switches.get(number)
            dump: Dump | None = None
            if state is not None and state.link is not None:
                dump = await state.link.dump(timeout, own)
                if not dump.whole:
                    # Others' flows are too many to be shown beside Lark's.
                    dump = await state.link.dump(timeout, own, foreign=False)
            desired = self._reconciler.desired_of(number)
            return desired, flow_lists.flows_of(desired, number, dump, own)

        desired, flows = self._loop.run(read(), timeout + 1.0)
        next_turn()
        return flow_lists.page(desired, flows, chosen, cursor, limit)

    def explain(self, src: str, dst: str, timeout: float, owner: str | None = None) -> Explanation:
        """Explain why a packet from ``src`` reaches ``dst`` or not; each an address or a job id. With ``owner`` one of
        them is to be a live job of this user, and the answer has nothing of others' jobs.

        Raises NotFoundError, AdError.
        """

        async def tables_of(desired: Desired, datapath: int) -> SwitchTables:
            state = self._reconciler.switches.get(datapath)
            switch = desired.switches[datapath]
            if state is not None and state.link is not None:
                with suppress(SwitchError):
                    dump = await state.link.dump(timeout, foreign=False)
                    if not dump.whole:
                        raise SwitchError("more flows than were to be expected")
                    return SwitchTables(switch, dump.program, dump.counters, live=True)
            return SwitchTables(switch, desired.build(datapath), {}, live=False)

        async def read() -> tuple[Desired, Ends, dict[int, SwitchTables]]:
            desired = self._reconciler.desired
            confirmations = self._reconciler.confirmations
            ends = ends_of(
                desired, self._reconciler.directory, src, dst, lambda number: confirmations.awaits(number, TRANSLATED)
            )
            behind = self._reconciler.workers.states.behind
            ends = replace(ends, behind=frozenset(filter(behind, ends.rules)))
            if owner is not None:
                require_end_of(ends, owner)
            datapaths = concerned(desired, ends)
            tables = await asyncio.gather(*(tables_of(desired, datapath) for datapath in datapaths))
            return desired, ends, dict(zip(datapaths, tables, strict=True))

        desired, ends, tables = self._loop.run(read(), timeout + 1.0)
        next_turn()
        whole = explain(desired, ends, tables)
        moved = tuple(transfer_steps(ends, desired.policy, self._transfers_of, owner))
        found = whole if owner is None else explained_to(owner, ends, whole)
        return replace(found, steps=(*found.steps, *moved))


def _status(loop: Reconciler, datapath: int, names: SwitchNames, *, ports: bool) -> SwitchStatus:
    """One switch; without ``ports`` at a cost that does not grow with its jobs."""
    desired = loop.desired_of(datapath)
    state = loop.switches.get(datapath) or SwitchState(datapath)
    spec = desired.policy.switches.get(datapath)
    known = desired.switches.get(datapath)
    host = names.host(datapath)
    waiting = loop.confirmations.waiting_for(RulesAt(desired.ruled.host_called(host))) if host else 0
    return SwitchStatus(
        datapath=dpid_text(datapath),
        name=names.name(datapath),
        role=str(spec.role if spec is not None else SwitchRole.EDGE),
        connected=state.link is not None,
        in_sync=state.in_sync,
        address=state.address,
        through="" if state.link is None else state.link.connection.through,
        host=host,
        description=state.description,
        desired=desired.rules.get(datapath, 0),
        installed=state.installed,
        max_rules=0 if spec is None else spec.max_rules,
        jobs=desired.count_at(datapath),
        waiting=waiting,
        normal=True if known is None else known.normal,
        max_meter=0 if known is None else known.max_meter,
        drift=state.drift,
        packet_ins=state.packet_ins,
        since=state.since,
        reason=state.reason
        or _why_cut_off(state, desired, known)
        or _why_waiting(host, waiting)
        or _lacking(loop, state),
        ports=_ports(desired, state, known) if ports and known is not None else (),
        problems=_problems(loop, state) if ports else (),
    )


def _wan_ports(loop: Reconciler, datapath: int) -> Iterator[WanPortStatus]:
    state, known = loop.switches.get(datapath), loop.desired.switches.get(datapath)
    if state is None or state.link is None or known is None or not known.is_core:
        return
    up = {port.name for port in known.wan if port.up}
    # One that the switch lacks is down as well.
    for name in filter(is_wan, loop.desired.policy.switches[datapath].ports):
        yield WanPortStatus(dpid_text(datapath), name, name in up, known.instead(name) is not None)


def _why_cut_off(state: SwitchState, desired: Desired, known: Switch | None) -> str:
    return "" if known is None or state.link is None else cut_off(known, desired.policy)


def _why_waiting(host: str, waiting: int) -> str:
    if not waiting:
        return ""
    words = "1 bridge or nat job waits" if waiting == 1 else f"{waiting} bridge or nat jobs wait"
    return f"{words} for its worker {host}"


def _lacking(loop: Reconciler, state: SwitchState) -> str:
    """The newest of the problems that a switch which is there has now, whatever it has in its tables."""
    if state.link is None:
        return ""
    lacking = [*state.lacks.values(), *state.down.values(), *loop.queues.problems(state.datapath)]
    newest = max(lacking, key=lambda each: each.at, default=None)
    if newest is None:
        return ""
    return newest.problem + (f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else "")


def _problems(loop: Reconciler, state: SwitchState) -> tuple[SwitchProblem, ...]:
    missed = []
    # Since the last look one may have lost its queue, as where its job or group is over.
    promises = loop.queues.promises(state.datapath) if state.missed and state.link is not None else {}
    for key, each in state.missed.items():
        promise = promises.get(key)
        if promise is not None and (promise.job, promise.group) == (each.job, each.group):
            missed.append(each.problem)
    problems = (*state.all_problems, *missed, *loop.queues.problems(state.datapath))
    found = sorted(problems, key=lambda each: each.at, reverse=True)
    live = loop.directory.by_id
    names = live_names(job for each in found if each.job and (job := live.get(each.job)))
    return tuple(replace(each, job_name=names.get(each.job or "")) for each in found)


def _ports(desired: Desired, state: SwitchState, known: Switch) -> tuple[PortStatus, ...]:
    if state.link is None:
        return ()
    behind = {placed.port: placed.job for placed in desired.jobs_at(state.datapath) if placed.port is not None}
    roles = dict.fromkeys(known.uplinks, "uplink")
    roles |= dict.fromkeys(known.lan, "lan") | {wan.number: wan.name for wan in known.wan}
    roles[PORT_LOCAL] = "local"
    other = "closed" if known.is_edge else "switch"
    names = live_names(behind.values())
    return tuple(
        PortStatus(
            port.number,
            port.name,
            "job" if port.number in behind else roles.get(port.number, other),
            None if (job := behind.get(port.number)) is None else job.id,
            None if job is None else names[job.id],
        )
        for port in sorted(state.link.features.ports.values(), key=lambda port: port.number)
    )
