"""Explains why a packet from one address reaches another, or not, by simulating it through the installed flows.

Pure: what the switches hold is read beforehand. The walk uses the interpreter of :mod:`.flows.simulation.simulate`
on a first packet (an echo request, so a new connection); tests hold it against ``ovs-appctl ofproto/trace``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final

from lark_common.runs import Address, NetworkType
from lark_common.worker_rules import RULED
from lark_controller.api.switches import Explanation, Step
from lark_controller.flows import core
from lark_controller.flows.build import SWITCH, TCP, UDP
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import ETH_IPV4, ETH_IPV6, VLAN_PRESENT, Flow, FlowData, FlowKey, Program
from lark_controller.flows.origins import origin
from lark_controller.flows.packet_in_answer import answer
from lark_controller.flows.placement import Placed, Switch, WanPort
from lark_controller.flows.simulation.classifier import Tables
from lark_controller.flows.simulation.simulate import (
    Hit,
    PortView,
    Result,
    run_fields,
)
from lark_controller.flows.tables import Edge, table_name
from lark_controller.flows.text import flow_text
from lark_controller.flows.wan import local_networks, worker_address
from lark_controller.flows.wan_down import UnseenWays, are_unseen, router_unsure
from lark_controller.flows.worker_rules import refused
from lark_controller.jobs.external import WITH_PORTS
from lark_controller.jobs.job import Job, shown_state
from lark_controller.policies.model import Because
from lark_controller.policies.topology import is_wan
from lark_controller.reconcile.workers import LATE, NOT_YET
from lark_controller.services.explain_ends import Ends, external_steps, is_local
from lark_controller.services.explain_lines import flow_line, rule_line

# A MAC that is in use nowhere stands for an unknown station (locally administered).
SOMEBODY: Final = 0x02FFFFFFFFFF
# And a port of a client.
SOME_PORT: Final = 49152
_ASKS: Final = "asks the controller, which decides by whose jobs it is"


@dataclass(frozen=True, slots=True)
class SwitchTables:
    """The flows of one switch and their counters.

    ``live`` is False where the switch could not be asked: the flows are then those that it should hold.
    """

    switch: Switch
    program: Program
    counters: Mapping[FlowKey, tuple[int, int]]
    live: bool


def concerned(desired: Desired, ends: Ends) -> list[int]:
    """The switches that such a packet may pass, in order: the sender's edge, cores, the receiver's edge."""
    placed = [job.datapath for job in (ends.src_job, ends.dst_job) if job is not None]
    # The loop changes these meanwhile; a list of a dictionary is made in one step.
    edges = [datapath for datapath in placed if datapath is not None and datapath in desired.switches]
    cores = [dp for dp, switch in list(desired.switches.items()) if switch.is_core]
    if ends.translated is not None:
        # By another core it does not come or leave.
        there = set(desired.translating(ends.translated))
        cores = [dp for dp in cores if dp in there]
    chain = [*edges[:1], *cores, *edges[1:]] if edges else cores
    if len(edges) == 1 and (ends.src_job is None or ends.src_job.datapath is None):
        chain = [*cores, *edges]
    return list(dict.fromkeys(chain))


def explain(desired: Desired, ends: Ends, tables: Mapping[int, SwitchTables]) -> Explanation:
    """Explain: the two ends, then each switch in order."""
    steps = [*_who(ends, ends.src, ends.src_job), *_who(ends, ends.dst, ends.dst_job), *_translated(desired, ends)]
    seen = _seen(desired, ends)
    ruled = _ruled(desired, ends, seen, steps)
    try:
        verdict, reason = ruled or _Walk(desired, replace(ends, src=seen), tables, steps).go()
    except _StrangeFlowError as error:
        verdict, reason = "unknown", str(error)
    if late := _late(ends, verdict):
        verdict, reason = "unknown", f"by the rules that should be there: {verdict}, {reason}; {late}"
    elif verdict == "forwarded" or (ruled and " drops it: " in reason):
        # Any other drop holds whatever the rules of a worker are.
        reason += ends.until_confirmed()
    return Explanation(str(ends.src), str(ends.dst), verdict, reason, tuple(steps))


def _late(ends: Ends, verdict: str) -> str:
    """The job whose worker may have other rules for it than those by which this is the verdict, in words, or the reason
    why no Linux gateway has its translation yet. Of a job that has no rules yet nothing passes."""
    unsure = (LATE, NOT_YET) if verdict == "forwarded" else (LATE,)
    for placed in (ends.src_job, ends.dst_job):
        if placed is not None and placed.job.network_type in RULED and placed.job.reason.endswith(unsure):
            return f"job {ends.called(placed.job)} waits: {placed.job.reason}"
    return (ends.gateway or "") if verdict == "forwarded" else ""


def waits_for_gateway(ends: Ends, found: Explanation) -> bool:
    """True where the verdict is unknown because no Linux gateway has the translation yet, as :func:`_late` has it."""
    return found.verdict == "unknown" and bool(ends.gateway) and found.reason.endswith(f"; {ends.gateway}")


def _seen(desired: Desired, ends: Ends) -> Address:
    """The source that everybody behind the sender's worker sees: of a job behind NAT one that a worker may have."""
    source, target = ends.src_job, ends.dst_job
    if source is None or source.job.network_type is not NetworkType.NAT:
        return ends.src
    together = target is not None and target.job.network_type is NetworkType.NAT and target.job.host == source.job.host
    return ends.src if together else worker_address(desired.policy, ends.src.version)


def _ruled(desired: Desired, ends: Ends, seen: Address, steps: list[Step]) -> tuple[str, str] | None:
    """The verdict of workers, by their rules for jobs without a port on a switch, or of a Linux gateway; None where the
    switches decide. ``seen`` is the source behind the sender's worker.

    What a worker holds is not asked for: a job is enforced when its worker has confirmed these rules.
    """
    for placed, other, sends in ((ends.src_job, ends.dst, True), (ends.dst_job, seen, False)):
        if placed is None or placed.job.network_type not in RULED:
            continue
        rules = ends.rules[placed.job.host]
        job = next(each for each in rules.jobs if each.id == placed.job.id)
        found = refused(rules, job, other, sends=sends)
        why = "" if found is None else found.reason + rule_line(ends, found.kind, inward=not sends)
        where = f"worker {placed.job.host}"
        steps.append(Step(where, why or f"the rules of job {ends.called(placed.job)} let it pass"))
        if why:
            return "dropped", f"{where} drops it: {why}"
        if sends and seen != ends.src:
            steps.append(Step(where, f"what leaves the worker has the worker's own address: explained for {seen}"))
    source, target = ends.src_job, ends.dst_job
    if ends.gateway is not None and ends.inward is not None and (source is not None or is_local(desired, ends.src)):
        return "dropped", "a Linux gateway drops what comes from inside for an external address"
    if target is not None and target.job.network_type is NetworkType.NAT:
        if source is not None and source.job.network_type is NetworkType.NAT and seen == ends.src:
            return "forwarded", f"worker {target.job.host} hands it to job {ends.called(target.job)}"
        return "dropped", f"none but nat jobs of worker {target.job.host} reach a job behind its NAT"
    return None


def _translated(desired: Desired, ends: Ends) -> list[Step]:
    """The external address on the way, and the packet for which the question is answered."""
    found = external_steps(ends)
    spec = desired.policy.external
    for name, networks in () if found or spec is None else spec.pools.items():
        if ends.dst_job is None and any(ends.dst in network for network in networks):
            return [Step("external", f"{ends.dst} is of pool {name}, and no live job has it")]
    return found


def _who(ends: Ends, address: Address, placed: Placed | None) -> list[Step]:
    if placed is None:
        return [Step("directory", f"{address} is no job's address")]
    called = ends.called(placed.job)
    steps = [
        Step(
            "directory",
            f"{address} is {_describe(placed.job, called)}, {shown_state(placed.job, placed.decision.isolated)}",
        )
    ]
    if placed.decision.quarantine:
        steps.append(Step("pool", f"job {called} is quarantined: {placed.decision.quarantine}"))
    if not placed.decision.because:
        steps.append(Step("policy", f"no rule applies to job {called}"))
    steps += [Step("policy", f"job {called}: {sentence(because)}") for because in placed.decision.because]
    return steps


def _describe(job: Job, called: str) -> str:
    """A job in a few words."""
    group = f" in {job.group}" if job.group else ""
    return f"job {called} ({job.id}) of {job.owner}{group} on {job.run.slot}"


def sentence(because: Because) -> str:
    """One reason in words: which rule, where it stands, which values it met."""
    met = ", ".join(f"{name} = {value}" for name, value in because.values)
    where = f" (policy line {because.line})" if because.line else ""
    why = "; ".join(part for part in (because.when, f"met {met}" if met else "") if part)
    return f"{because.kind} rule {because.position}{where} applies{f': {why}' if why else ''}"


class _StrangeFlowError(Exception):
    """A switch reports a flow by which no packet can be followed."""


class _Walk:
    """A packet's way from switch to switch."""

    def __init__(self, desired: Desired, ends: Ends, tables: Mapping[int, SwitchTables], steps: list[Step]) -> None:
        self.desired = desired
        self.ends = ends
        self.tables = tables
        self.steps = steps
        self.all_live = True
        # A packet for an external address is for a job.
        self.local = ends.inward is not None or is_local(desired, ends.dst)
        job = ends.translated if ends.gateway is None else None
        self.by_core = job is not None
        # A packet whose address a core translates passes by no other core.
        there = None if job is None else set(desired.translating(job))
        self.unseen = [each for each in desired.unseen_cores() if there is None or each.datapath in there]

    def go(self) -> tuple[str, str]:
        fields = self._fields()
        source, target = self.ends.src_job, self.ends.dst_job
        for address, placed in ((self.ends.src, source), (self.ends.dst, target)):
            policy = self.desired.policy
            a_jobs = any(address in network for network in policy.job_networks)
            if placed is None and a_jobs and not any(address in host for host in policy.hosts):
                return "dropped", f"{address} is for jobs and no live job has it: a port without a job passes nothing"
        for placed in (source, target):
            if placed is not None and placed.datapath is not None and placed.datapath not in self.tables:
                return "unknown", f"the switch of job {self.ends.called(placed.job)} has not connected yet"
            if placed is not None and placed.datapath is None and placed.job.network_type is NetworkType.OVS_BRIDGE:
                why = placed.job.reason or f"no switch is known for host {placed.job.host}"
                return "unknown", f"job {self.ends.called(placed.job)} is at no switch: {why}"
            if placed is not None and placed.datapath is not None and placed.port is None:
                return "unknown", f"job {self.ends.called(placed.job)} is at no port of its switch: {placed.job.reason}"
        if self.by_core and not any(here.switch.is_core for here in self.tables.values()):
            names = ", ".join(each.name for each in self.unseen)
            return "unknown", f"no core that translates the external address has connected yet: {names}"
        at, in_port = self._start()
        shut = next((w for w in self.tables[at].switch.wan if w.number == in_port and not w.up), None) if at else None
        if shut is not None:
            entries = [each.name for each in self.unseen if any(map(is_wan, each.ports))]
            return self._unless(entries, "dropped", f"it would come from the WAN by {shut.name}, which is down")
        for datapath in self._path(at):
            here = self.tables[datapath]
            if datapath != at:
                in_port = self._entry(here.switch)
            result = self._through(here, {**fields, "in_port": in_port})
            if not result.outputs:
                return self._verdict("dropped", self._dropped(here, result))
            if target is not None and datapath == target.datapath:
                if target.port in result.ports:
                    by = self.ends.where_it_comes_by()
                    called = self.ends.called(target.job)
                    return self._forwarded(f"{here.switch.name} hands it to job {called}{by}")
                if here.switch.is_edge and not set(result.ports) & set(here.switch.uplinks):
                    return self._verdict("dropped", f"{here.switch.name} does not hand it to the job")
            if here.switch.is_core and not self.local:
                out = [wan for port in result.ports for wan in here.switch.wan if wan.number == port]
                if out:
                    self._note_unlimited(here.switch, [wan.name for wan in out if wan.up])
                    sent = result.headers[0].get("ipv4_src")
                    up = [wan.name for wan in out if wan.up]
                    by = f"{here.switch.name} sends it to the WAN by {', '.join(up or [wan.name for wan in out])}"
                    others = self._others_out()
                    if not up:
                        return self._unless(others, "dropped", f"{by}, which is down")
                    if unsure := self._unsure(here.switch, result):
                        return self._verdict("unknown", unsure)
                    changed = sent is not None and sent != fields.get("ipv4_src")
                    return self._unless(others, "forwarded", f"{by} as {ip_address(sent)}" if changed and sent else by)
            fields = {k: v for k, v in result.headers[0].items() if k not in ("in_port", "metadata", "ct_state")}
        return self._forwarded("it leaves Lark's switches as a plain switch would send it")

    def _unsure(self, switch: Switch, result: Result) -> str:
        """The reason why nobody knows whether a packet reaches its router by the WAN ports to which it is flooded."""
        last = result.trace[-1].data
        plain = last is not None and last.cookie == SWITCH and result.headers[0].get("eth_dst") == SOMEBODY
        why = router_unsure(switch) if plain else ""
        return f"{switch.name} sends it as a plain switch would: {why}" if why else ""

    def _forwarded(self, reason: str) -> tuple[str, str]:
        """The verdict where no switch that is known drops it, nor sends it to the WAN."""
        source, target = self.ends.src_job, self.ends.dst_job
        # Between two jobs of one worker no core is on the way.
        together = source is not None and target is not None and source.job.host.lower() == target.job.host.lower()
        others = [] if together and not self.by_core else [each.name for each in self.unseen]
        return self._unless(others, "forwarded", reason)

    def _others_out(self) -> Sequence[str]:
        """The cores that have not connected and by which it depends whether a packet leaves for the WAN, as the map has
        it."""
        source = self.ends.src_job
        ways = UnseenWays(self.desired.policy, self.desired.cores(), self.unseen)
        if source is None:
            # No rule is about packets of others than jobs.
            return ways.of(0, NetworkType.OVS_BRIDGE)
        return ways.of(source.decision.wan, source.job.network_type)

    def _unless(self, others: Sequence[str], verdict: str, reason: str) -> tuple[str, str]:
        """The verdict by the switches that are known, unless these others, which have not connected, may have
        another."""
        if others:
            return "unknown", f"by the switches that are known: {verdict}, {reason}; {are_unseen(others)}"
        return self._verdict(verdict, reason)

    def _note_unlimited(self, switch: Switch, ports: Sequence[str]) -> None:
        """Say where the limits of the sender's group do not hold for what leaves by these ports."""
        name = "" if self.ends.src_job is None else self.ends.src_job.decision.group
        for group in self.desired.policy.groups:
            # Where a switch floods, the port with the queue is among them.
            if group.name == name and ports and all(core.queue_is_elsewhere(switch, group, port) for port in ports):
                text = (
                    f"guarantee and ceiling of group {name} (policy line {group.line}) do not hold for what leaves by"
                )
                there = f"{', '.join(ports)}: its queue is on port {group.port}"
                self.steps.append(Step(switch.name, f"{text} {there}"))

    def _verdict(self, verdict: str, reason: str) -> tuple[str, str]:
        if self.all_live:
            return verdict, reason
        return "unknown", f"by the flows that should be there: {verdict}, {reason}; not every switch could be asked"

    def _fields(self) -> dict[str, int]:
        source, target = self.ends.src_job, self.ends.dst_job
        from_mac = source.mac if source is not None else None
        to_mac = target.mac if target is not None else self._gateway()
        fields = {
            "eth_src": SOMEBODY if from_mac is None else from_mac,
            "eth_dst": SOMEBODY if to_mac is None else to_mac,
            "vlan_vid": self._tag(),
            "ip_dscp": self._dscp(),
        }
        if self.ends.src.version == 4:
            fields |= {
                "eth_type": ETH_IPV4,
                "ipv4_src": int(self.ends.src),
                "ipv4_dst": int(self.ends.inside),
            }
            echo = {"ip_proto": 1, "icmpv4_type": 8}
        else:
            fields |= {
                "eth_type": ETH_IPV6,
                "ipv6_src": int(self.ends.src),
                "ipv6_dst": int(self.ends.dst),
            }
            echo = {"ip_proto": 58, "icmpv6_type": 128, "icmpv6_code": 0}
        opening = self.ends.opening
        if opening is None or opening.protocol not in WITH_PORTS:
            return fields | echo
        # The other end's port is any that nobody has a rule for.
        ports = (SOME_PORT, opening.first) if self.ends.inward is not None else (opening.first, SOME_PORT)
        protocol = opening.protocol
        number = TCP if protocol == "tcp" else UDP
        return fields | {"ip_proto": number, f"{protocol}_src": ports[0], f"{protocol}_dst": ports[1]}

    def _dscp(self) -> int:
        """The DSCP that the packet has when the first switch gets it: that of its group where the sender's worker sets
        it by its rules. A job's switch sets it itself, and what comes from elsewhere is of no group."""
        source = self.ends.src_job
        rules = None if source is None else self.ends.rules.get(source.job.host)
        if rules is None or source is None or source.job.network_type not in RULED:
            return 0
        return next((each.dscp or 0 for each in rules.jobs if each.id == source.job.id), 0)

    def _tag(self) -> int:
        """The VLAN tag with which the first switch gets the packet: none from a job's port, which tags by itself; from
        elsewhere that of the job's VLAN, in which its worker's bridge or the VLAN's router sends."""
        source = self.ends.src_job
        if source is not None and source.port is not None:
            return 0
        behind_nat = source is not None and source.job.network_type is NetworkType.NAT
        placed = self.ends.dst_job if behind_nat else source or self.ends.dst_job
        vlan = None if placed is None else placed.job.vlan
        if vlan is None:
            return 0
        self.steps.append(Step("directory", f"explained for a packet with the tag of VLAN {vlan}, the job's"))
        return VLAN_PRESENT | vlan

    def _gateway(self) -> int | None:
        hops = [wan.next_hop for switch in list(self.desired.switches.values()) for wan in switch.wan]
        return hops[0] if hops and not self.local else None

    def _start(self) -> tuple[int, int]:
        source = self.ends.src_job
        if source is not None and source.datapath is not None and source.port is not None:
            return source.datapath, source.port
        for datapath, here in self.tables.items():
            if here.switch.is_core:
                inside = source is not None or any(self.ends.src in n for n in local_networks(self.desired.policy))
                ports = here.switch.lan if inside else tuple(wan.number for wan in self._entries(here.switch))
                return datapath, ports[0] if ports else 0
        target = self.ends.dst_job
        if target is not None and target.datapath is not None:
            return target.datapath, self._entry(self.tables[target.datapath].switch)
        return 0, 0

    def _entries(self, switch: Switch) -> tuple[WanPort, ...]:
        """The WAN ports of a core by which a packet may come, those that are up first: for an external address those
        where its pool is."""
        spec, inward = self.desired.policy.external, self.ends.inward
        port = None if spec is None or inward is None else spec.place(inward.address).port
        now = None if port is None else switch.wan_or_backup(port)
        return tuple(sorted((wan for wan in switch.wan if now in (None, wan)), key=lambda wan: not wan.up))

    def _path(self, start: int) -> list[int]:
        order = [dp for dp in concerned(self.desired, self.ends) if dp in self.tables]
        return order[order.index(start) :] if start in order else order

    def _entry(self, switch: Switch) -> int:
        if switch.is_edge:
            return switch.uplinks[0] if switch.uplinks else 0
        return switch.lan[0] if switch.lan else 0

    def _through(self, here: SwitchTables, fields: dict[str, int]) -> Result:
        if not here.live:
            self.all_live = False
        try:
            found = Tables(here.program)
        except ValueError as error:
            raise _StrangeFlowError(f"{here.switch.name} reports a flow that no switch takes: {error}") from None
        view = PortView.of(here.switch.ports.values())
        result = run_fields(found, fields, view)
        for table in (Edge.SLICE_FROM, Edge.SLICE_TO) if here.switch.is_edge else ():
            if any(asked.table == table for asked in result.to_controller):
                self.steps.append(Step(f"{here.switch.name} {table_name(here.switch.role, table)}", _ASKS))
                found.set(self._answer(here.switch.datapath, table))
                result = run_fields(found, fields, view)
        note = "" if here.live else " (could not be asked; what it should hold)"
        for hit in self._decided(here, result):
            where = f"{here.switch.name} {table_name(here.switch.role, hit.table)}{note}"
            if hit.key is None or hit.data is None:
                self.steps.append(Step(where, "no flow matches: dropped"))
                continue
            packets, size = here.counters.get(hit.key, (None, None))
            why = self._why(here.switch, hit.key, hit.data)
            text = flow_text(hit.key, hit.data)
            drops = here.switch.is_edge and hit.data.goto == Edge.DROPS
            self.steps.append(Step(where, f"{'drops it' if drops else _does(hit.data)}: {why}", text, packets, size))
        return result

    def _answer(self, datapath: int, table: Edge) -> Flow:
        """The controller's answer to a switch that asks whose jobs the two are, which has no flow of that yet."""
        ends = [(self.ends.src_job, self.ends.dst), (self.ends.dst_job, self.ends.src)]
        (own, other), (peer, _) = ends if table is Edge.SLICE_FROM else reversed(ends)
        own_slice = None if own is None else own.decision.slice
        tag = self.desired.tag_at(datapath, own_slice)
        # Behind NAT a job's address is its worker's, which is nobody's.
        together = peer is None or not peer.job.has_pool_address or peer.decision.slice == own_slice
        return answer(table, tag, other.version, int(other), arp=False, allowed=together)

    def _decided(self, here: SwitchTables, result: Result) -> list[Hit]:
        """The hits that decide anything: in the table after them a dropped packet is only counted."""
        return [hit for hit in result.trace if not (here.switch.is_edge and hit.table == Edge.DROPS)]

    def _why(self, switch: Switch, key: FlowKey, data: FlowData) -> str:
        """The origin of a flow, with the line of the rule where it drops and the line is known."""
        why = origin(self.desired, self.desired.slices_at(switch.datapath), data).text
        return f"{why}{flow_line(self.ends, key, data) if switch.is_edge else ''}"

    def _dropped(self, here: SwitchTables, result: Result) -> str:
        last = self._decided(here, result)[-1]
        table = table_name(here.switch.role, last.table)
        if last.key is None or last.data is None:
            return f"{here.switch.name} has no flow for it in table {table}"
        why = self._why(here.switch, last.key, last.data)
        vlans = [each.job.vlan for each in (self.ends.src_job, self.ends.dst_job) if each is not None]
        if here.switch.is_edge and last.table == Edge.FORWARD and len(set(vlans)) > 1:
            why += f"; the jobs are in different VLANs: {' and '.join(str(vlan or 'none') for vlan in vlans)}"
        return f"{here.switch.name} drops it in table {table}: {why}"


def _does(data: FlowData) -> str:
    if data.actions:
        return "acts and goes on" if data.goto is not None else "acts"
    return "goes on" if data.goto is not None else "drops it"
