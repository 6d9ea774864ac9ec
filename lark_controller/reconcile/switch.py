"""The reconcile loop's state of one switch, connected or not."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from lark_common.limits import Bucket
from lark_common.log import INFO, WARNING, event
from lark_common.runs import Address
from lark_controller.api.audit import AuditEntry, Happening
from lark_controller.api.switches import SwitchProblem
from lark_controller.flows import core
from lark_controller.flows.cookies import Category, counted_by, parse
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import PORT_LOCAL, FlowData, FlowKey
from lark_controller.flows.placement import Switch, cut_off, mac_number, place_switch
from lark_controller.flows.tables import Edge
from lark_controller.flows.text import flow_text, key_text
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy
from lark_controller.switches.openflow.applies import FlowError
from lark_controller.switches.openflow.dumps import Held
from lark_controller.switches.openflow.features import SwitchFeatures
from lark_controller.switches.openflow.link import SwitchLink

KEPT_PROBLEMS = 100
# Lines of the log about links of one switch that go down and come up: at once, and a second afterwards.
LINES_AT_ONCE: Final = 128
LINES: Final = 1 / 60
LINK_DOWN: Final = "link down"
LINK_UP: Final = "link up"
LINK_UNWATCHED: Final = "link not watched"
LINK_ACTIONS: Final = (LINK_DOWN, LINK_UP, LINK_UNWATCHED)
# A link's kind and name in a line of the audit trail.
_LINK: Final = re.compile(r"(WAN port|uplink|LAN port|port) (.+?) of ")
_WAN: Final = "WAN port"
# Links by whether they are WAN ports, which have names of the policy, and by name; with the kind in a sentence.
LinksTold = dict[tuple[bool, str], str]
NO_ROLES: Final = (
    "has no roles of controllers (OpenFlow 1.3, section 6.3): it goes on taking what an instance of the controller "
    "sends once another is in charge"
)


def dpid_text(datapath: int) -> str:
    """A datapath id as 16 hexadecimal digits."""
    return f"{datapath:016x}"


def links_told(entries: Iterable[AuditEntry]) -> LinksTold:
    """The links of a switch that are down by its lines in the audit trail, the oldest first."""
    told: LinksTold = {}
    for entry in entries:
        if entry.action in LINK_ACTIONS and (found := _LINK.match(entry.detail)) is not None:
            key = found[1] == _WAN, found[2]
            told.pop(key, None)
            if entry.action == LINK_DOWN:
                told[key] = found[1]
    return told


def links_told_of(entries: Iterable[AuditEntry]) -> dict[int, LinksTold]:
    """The same of all switches, by datapath."""
    by_switch = defaultdict[str, list[AuditEntry]](list)
    for entry in entries:
        by_switch[entry.subject].append(entry)
    return {int(subject, 16): links_told(lines) for subject, lines in by_switch.items()}


class _Port(NamedTuple):
    """An uplink or a LAN port of a switch."""

    kind: str
    number: int
    up: bool


class MissedNow(NamedTuple):
    """A missed guarantee as a problem, and the job's id or the group whose it is."""

    problem: SwitchProblem
    job: str | None
    group: str | None


class Proof(NamedTuple):
    """A full comparison that found no difference: the fingerprint of what the switch should hold, the digest of what it
    held, and when, in seconds of a clock that only goes on."""

    fingerprint: int
    held: Held
    at: float


@dataclass(slots=True)
class SwitchState:
    """The loop's state of one switch, connected or not.

    ``compared`` is True once the complete dump was compared, so that changes may follow; ``trusted`` means that a
    marker stands for that until the next full check. ``compared_at`` is when a complete dump was compared last, in
    seconds of a clock that only goes on, and ``proof`` the last comparison that found no difference. While it is away
    ``still`` says that this controller stood still before, if it did, and ``features`` are those by which it was placed
    last. ``to_forget`` are
    addresses of jobs that ended while it was away, whose connections it still tracks. ``links`` is True for each of its
    uplinks and LAN ports that was up when last seen, and ``told`` are the links of which the audit trail has that they
    are down, and no end. ``problems`` have happened; ``lacks`` (by sentence), ``down`` (by the port's name) and
    ``missed`` (guarantees by port and queue, as of the last look) are so now.
    """

    datapath: int
    link: SwitchLink | None = None
    features: SwitchFeatures | None = None
    compared: bool = False
    trusted: bool = False
    compared_at: float = -math.inf
    proof: Proof | None = None
    in_sync: bool = False
    since: float | None = None
    still: str = ""
    reason: str = "has not connected yet"
    address: str = ""
    description: str = ""
    installed: int = 0
    drift: int = 0
    packet_ins: int = 0
    packet_ins_dropped: int = 0
    arrived: set[int] = field(default_factory=set)
    to_forget: set[Address] = field(default_factory=set)
    links: dict[str, bool] | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    told: LinksTold = field(default_factory=dict)
    problems: deque[SwitchProblem] = field(default_factory=lambda: deque(maxlen=KEPT_PROBLEMS))
    lacks: dict[str, SwitchProblem] = field(default_factory=dict)
    down: dict[str, SwitchProblem] = field(default_factory=dict)
    missed: dict[tuple[str, int], MissedNow] = field(default_factory=dict)
    lines: Bucket = field(default_factory=lambda: Bucket(LINES, LINES_AT_ONCE, time.monotonic()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The worker that the bridge's description names, if it does."""
        return (self.description,) if self.description else ()

    def note_shortcomings(self, desired: Desired) -> None:
        """Note each thing of the policy in force that this switch cannot do, in place of another policy's."""
        switch, now = desired.switches[self.datapath], time.time()
        sentences = [*core.remarks(switch, desired.policy)]
        if lost := cut_off(switch, desired.policy):
            sentences.append(lost)
        if desired.closed.remark:
            sentences.append(desired.closed.remark)
        if self.link is not None and not self.link.features.roles:
            sentences.append(NO_ROLES)
        self.lacks = {sentence: self.lacks.get(sentence) or SwitchProblem(now, sentence) for sentence in sentences}
        watched = {port.name for port in switch.wan} | self._watched(switch).keys()
        self.down = {name: problem for name, problem in self.down.items() if name in watched}
        self._renew_down(switch)

    def note_wan(self, before: Switch | None, now: Switch) -> list[Happening]:
        """The events of WAN ports that are down or up again, each once, with the port that takes the traffic now."""
        noted = []
        up = {port.name: port.up for port in now.wan}
        for name in sorted({*up, *(() if before is None else (port.name for port in before.wan))}):
            if up.get(name):
                self.down.pop(name, None)
                noted += self._end(LINK_UP, (True, name), f"WAN port {name} of {now.name} is up again")
                continue
            by = _instead(now, name)
            if (True, name) not in self.told or name not in self.down:
                self.down[name] = SwitchProblem(time.time(), f"WAN port {name} is down; {by}")
            noted += self._begin((True, name), _WAN, f"WAN port {name} of {now.name} is down; {by}", instead=by)
        self._renew_down(now)
        return noted

    def _renew_down(self, now: Switch) -> None:
        """Say of each WAN port that is down which one takes its traffic by now: others may have come and gone since."""
        for port in now.wan:
            said = f"WAN port {port.name} is down; {_instead(now, port.name)}"
            if not port.up and (problem := self.down.get(port.name)) is not None and problem.problem != said:
                self.down[port.name] = replace(problem, problem=said)

    def note_links(self, link: SwitchLink, now: Switch) -> list[Happening]:
        """Note that an uplink or a LAN port is down or up again, each once."""
        noted = []
        ports = self._watched(now)
        there = frozenset(link.features.ports.names)
        # One that the policy calls neither any longer has gone nowhere.
        before = [name for name in self.links or {} if name in ports or name not in there]
        gone = [name for name in before if name not in ports]
        called = {port.number: name for name, port in ports.items()}
        for name in list(gone):
            key, other = (False, name), called.get(self.numbers.get(name, -1))
            if key in self.told and self.links and not self.links[name] and other is not None:
                # The port goes on under another name.
                gone.remove(name)
                self.down.pop(name, None)
                kind = ports[other].kind
                noted += self._end(LINK_UNWATCHED, key, f"{kind} {name} of {now.name} is called {other} now")
        for name, port in ports.items():
            text = f"{port.kind} {name} of {now.name} is"
            if port.up:
                self.down.pop(name, None)
                noted += self._end(LINK_UP, (False, name), f"{text} up again")
            else:
                if name not in self.down:
                    self.down[name] = SwitchProblem(time.time(), f"{text} down")
                noted += self._begin((False, name), port.kind, f"{text} down")
        for name in gone:
            text = f"port {name} of {now.name} is gone"
            if told := self._begin((False, name), "port", text):
                noted += told
                self.down[name] = SwitchProblem(time.time(), text)
        # The switch names its ports, and may give each another name again and again.
        for name in gone[:-KEPT_PROBLEMS]:
            self.down.pop(name, None)
            self.told.pop((False, name), None)
        self.links = {
            **dict.fromkeys(gone[-KEPT_PROBLEMS:], False),
            **{name: port.up for name, port in ports.items()},
        }
        self.numbers = {name: port.number for name, port in ports.items()}
        return noted

    def note_policy(self, desired: Desired) -> list[Happening]:
        """Note which links are down of those that a policy has here, and end what was told of others."""
        if self.link is None:
            return []
        switch, noted = desired.switches[self.datapath], list[Happening]()
        ports, there = self._watched(switch), frozenset(self.link.features.ports.names)
        spec = desired.policy.switches.get(self.datapath)
        wan = {port.name for port in switch.wan} | ({*spec.ports} if spec is not None else set())
        for (is_wan, name), kind in list(self.told.items()):
            if name in wan if is_wan else name in ports or name not in there:
                continue
            text = f"{kind} {name} of {switch.name} is down, and no link of the policy any more"
            noted += self._end(LINK_UNWATCHED, (is_wan, name), text)
        return [*noted, *self.note_wan(None, switch), *self.note_links(self.link, switch)]

    def _begin(self, key: tuple[bool, str], kind: str, text: str, **fields: object) -> list[Happening]:
        """The line that a link is down, where there is none yet."""
        if key in self.told:
            return []
        self.told[key] = kind
        level = WARNING if key[0] else INFO
        self._log("WAN port down" if key[0] else "link down", level=level, port=key[1], **fields)
        return [self._happening(LINK_DOWN, text)]

    def _end(self, action: str, key: tuple[bool, str], text: str) -> list[Happening]:
        """The line that ends another, where a link was told as down."""
        if self.told.pop(key, None) is None:
            return []
        if action == LINK_UP:
            self._log("WAN port up again" if key[0] else "link up again", port=key[1])
        return [self._happening(action, text)]

    def _watched(self, now: Switch) -> dict[str, _Port]:
        """Its uplinks and LAN ports by name."""
        kinds = {**dict.fromkeys(now.uplinks, "uplink"), **dict.fromkeys(now.lan, "LAN port")}
        if self.link is None:
            return {}
        found = [self.link.features.ports.get(number) for number in sorted(kinds)]
        return {port.name: _Port(kinds[port.number], port.number, port.up) for port in found if port is not None}

    @property
    def all_problems(self) -> list[SwitchProblem]:
        """Its problems: those that have happened, and those that are so now, but for missed guarantees."""
        return [*self.problems, *self.lacks.values(), *self.down.values()]

    def _happening(self, action: str, detail: str) -> Happening:
        return Happening(dpid_text(self.datapath), action, detail)

    def _log(self, message: str, *, level: int = INFO, **fields: object) -> None:
        """Log that a link went down or came up, as long as that happens less often than it fills the log."""
        if self.lines.take_whole(time.monotonic()):
            event(message, level=level, datapath=dpid_text(self.datapath), **fields)

    def note_rival(self, before: str, now: str) -> None:
        """Note a connection that took the place of one from another host: a switch that returns has the same host."""
        if before != now:
            one, other = sorted((before, now))
            self._note_once(
                f"connects from {one} and from {other}: two switches have this datapath id, and each takes the other's "
                "place; every bridge needs its own (other_config:datapath-id)"
            )

    def note_flood(self, dropped: int) -> None:
        """Note that the switch sends more PacketIns than are handled; logged once."""
        if dropped and not self.packet_ins_dropped:
            self._note_once(
                "sends more PacketIns than are looked at (LARK_PACKET_IN_RATE), the others are dropped: a job asks for "
                "very many addresses, or the switch is broken"
            )
            event("a switch sends more PacketIns than are looked at", level=WARNING, datapath=dpid_text(self.datapath))
        self.packet_ins_dropped = dropped

    def _note_once(self, sentence: str) -> None:
        if all(problem.problem != sentence for problem in self.problems):
            self.problems.append(SwitchProblem(time.time(), sentence))

    def label(self, desired: Desired) -> str:
        """The switch's name if it has one, else its datapath id."""
        switch = desired.switches.get(self.datapath)
        spec = desired.policy.switches.get(self.datapath)
        return spec.name if spec is not None else switch.name if switch is not None else dpid_text(self.datapath)


def _instead(switch: Switch, name: str) -> str:
    """The port by which traffic for a WAN port that is down leaves, in words."""
    port = switch.instead(name)
    return "nothing takes its place" if port is None else f"{port.name} is used"


def placed_switch(policy: Policy, datapath: int, features: SwitchFeatures) -> Switch:
    """A switch as a policy places it, with what its handshake found out."""
    ports = features.ports
    return place_switch(
        policy,
        datapath,
        ports.numbers(),
        normal=features.normal,
        tracks=features.tracks,
        local_mac=None if (local := ports.get(PORT_LOCAL)) is None else mac_number(local.mac),
        max_meter=features.max_meter if features.meter_drop else 0,
        description=features.description,
        speeds={number: speed / 1000 for number, speed in ports.speeds().items()},
        down=ports.down(),
    )


class Blamed(NamedTuple):
    """The flow or meter of an error in words, and the live job that it belongs to, or that job's external address
    alone."""

    text: str
    job: Job | None = None
    external: bool = False


def blamed(desired: Desired, flows: Mapping[FlowKey, FlowData], error: FlowError) -> Blamed:
    """The flow or meter of an error; ``flows`` are those desired."""
    key = error.subject
    if not isinstance(key, FlowKey):
        return Blamed("" if key is None else f"meter={key}")
    data = flows.get(key)
    if data is None:
        return Blamed(key_text(key))
    parts = parse(data.cookie)
    whose = counted_by(data.cookie)
    of_job = parts.category in (Category.JOB, Category.EXTERNAL)
    number = whose[0] if whose is not None else parts.number if of_job else None
    placed = None if number is None else desired.placed.get(number)
    if placed is None:
        return Blamed(flow_text(key, data))
    # A job's own flows in the table that judges connections are its open IPv6 address.
    opening = parts.category == Category.JOB and key.table == Edge.CONNECT
    return Blamed(flow_text(key, data), placed.job, opening or parts.category == Category.EXTERNAL)
