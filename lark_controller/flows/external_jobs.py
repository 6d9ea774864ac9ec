"""The jobs' external addresses at switches: which have their flows there, and why the others have none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Self

from lark_common.runs import Address
from lark_controller.flows.external import external_flows, pool_ports
from lark_controller.flows.external_room import Moved, Room
from lark_controller.flows.model import Flow, Program
from lark_controller.flows.placed_jobs import PlacedJobs
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.wan_down import DownWays, are_down
from lark_controller.policies.external import leaves_by
from lark_controller.policies.external_spec import PoolPlace
from lark_controller.policies.model import Policy, SwitchRole, SwitchSpec, WanAction


class ExternalJobs(PlacedJobs):
    """Placed jobs under a policy, with their external addresses.

    ``rules`` counts the flows that each known switch should hold. ``moved`` are the jobs of which an external address
    may be open now or closed, unlike before; whoever follows that takes them out.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.policy = policy
        self.rules: dict[int, int] = {}
        self.moved: set[int] = set()
        # By core whose rules are limited.
        self._rooms: dict[int, Room] = {}
        self._dropping = frozenset(rule.position for rule in policy.wans if rule.action is WanAction.DROP)

    def _take_over(self, before: Self) -> None:
        super()._take_over(before)
        self.rules = dict(before.rules)
        self._rooms = {datapath: room.copy() for datapath, room in before._rooms.items()}

    def why_closed(self, number: int) -> dict[Address, str]:
        """The external addresses of a job that a known switch lacks which they need, each with the reason.

        IPv6 needs the job's own edge, IPv4 the cores of :meth:`translating`: what another core lacks closes nothing.
        """
        placed = self.placed.get(number)
        found: dict[Address, str] = {}
        if placed is None or placed.decision.isolated:
            return found
        for each in placed.job.external:
            if each.address.version == 6:
                why = [placed.closed]
            else:
                known = (self.switches.get(datapath) for datapath in self._translating(placed, each.address))
                why = [self._why_closed_at(switch, placed) for switch in known if switch is not None]
            if reason := next(filter(None, why), ""):
                found[each.address] = reason
        return found

    def why_unreached(self, number: int, address: Address) -> str:
        """The reason why nothing comes to a job by its external address though its switches have it, or no answer of
        the job's leaves: the WAN ports for that are down, and nothing takes their place (``""``: they are not)."""
        placed = self.placed.get(number)
        if placed is None or all(port.up for core in self.cores() for port in core.wan):
            return ""
        there = set(self._translating(placed, address))
        spec = self.policy.external
        place = PoolPlace() if spec is None or address.version == 6 else spec.place(address)
        entries = [(core, port) for core in self.cores() if core.datapath in there for port in pool_ports(core, place)]
        if entries and not any(port.up for _, port in entries):
            # The pool's own port, and a backup that is down as well, are both of the core.
            ports = {port.name: None for _, port in entries if place.port in (None, port.name)}
            return are_down(ports, dict.fromkeys(core.name for core, _ in entries))
        way = DownWays(self.policy, self.cores()).of(placed.decision.wan, placed.job.network_type)
        return "" if way is None else str(way)

    def cores(self) -> list[Switch]:
        """The cores that are known; any thread may ask."""
        return [self.switches[datapath] for datapath in self._cores()]

    def unseen_cores(self) -> tuple[SwitchSpec, ...]:
        """The cores that are declared and have not connected since the start; any thread may ask."""
        declared = self.policy.switches.values()
        return tuple(each for each in declared if each.role is SwitchRole.CORE and each.datapath not in self.switches)

    def translating(self, placed: Placed) -> Iterator[int]:
        """The cores, known or not, that a job's external IPv4 addresses need."""
        for each in placed.job.external:
            if each.address.version == 4:
                yield from self._translating(placed, each.address)

    def _translating(self, placed: Placed, address: Address) -> list[int]:
        """The cores of the WAN port by which a job's traffic leaves, or where its pool is; without either every core
        with a WAN port, since a packet from outside may come by any of them."""
        spec = self.policy.external
        place = PoolPlace() if spec is None else spec.place(address)
        port = leaves_by(self.policy, placed.decision) or place.port
        cores = {
            datapath: [name for name in core.ports if name.startswith("wan")]
            for datapath, core in self.policy.switches.items()
            if core.role is SwitchRole.CORE and place.switch in (None, core.name)
        }
        there = [datapath for datapath, ports in cores.items() if port in ports]
        return there or [datapath for datapath, ports in cores.items() if ports]

    def jobs_with_external(self) -> list[int]:
        """The jobs that have an external address."""
        return list(self._external)

    def with_room(self, datapath: int) -> Collection[int]:
        """The jobs whose external addresses have room at a core whose rules are limited."""
        room = self._rooms.get(datapath)
        return () if room is None else room.has

    def _empty_room(self, datapath: int, open_there: Collection[int]) -> None:
        """Let no external address have room at a core; those that have it now get it first."""
        self._rooms[datapath] = Room({*open_there, *self.with_room(datapath)})

    def _fill_room(self, switch: Switch, policys: int) -> None:
        """Share out what the policy's rules leave of an empty room."""
        room = self._rooms[switch.datapath]
        for number in self._external:
            if not self._refusals.why(switch.datapath, self.placed[number].job):
                room.enter(number, self._external_size(switch, self.placed[number]))
        room.settle(switch.max_rules - policys, self._age)
        self.moved |= self._external

    def _move_external(
        self, switch: Switch, old: tuple[Placed | None, bool], new: Placed | None, come: list[Flow], go: list[Flow]
    ) -> None:
        """Add what comes to a core and goes there of external addresses, where a job changes, and with it what is in
        ``come`` and ``go`` already; ``old`` is the job as it was, and True where its own flows stood there."""
        datapath, (was, was_open) = switch.datapath, old
        one = was or new
        own = set() if one is None else {one.job.number}
        moved = Moved()
        if (room := self._rooms.get(datapath)) is not None:
            more = len(Program.of(come).flows) - len(Program.of(go).flows)
            policys = self.rules.get(datapath, 0) - room.used + more
            moved = self._share_out(switch, room, own, new, switch.max_rules - policys)
        if was is not None and was_open:
            go.extend(self._external_flows(was, switch))
        if new is not None and self._opens(datapath, new):
            come.extend(self._external_flows(new, switch))
        for flows, numbers in ((come, moved.opened), (go, moved.closed)):
            for number in set(numbers) - own:
                flows.extend(self._external_flows(self.placed[number], switch))
        self.moved |= {*moved.opened, *moved.closed}
        self.moved |= {each.job.number for each in (was, new) if each is not None and each.job.external}

    def _share_out(self, switch: Switch, room: Room, own: set[int], new: Placed | None, left: int) -> Moved:
        if new is not None and new.job.external and not self._refusals.why(switch.datapath, new.job):
            room.enter(new.job.number, self._external_size(switch, new))
        else:
            for number in own:
                room.leave(number)
        return room.settle(left, self._age)

    def _external_flows(self, placed: Placed, switch: Switch) -> Iterator[Flow]:
        """The flows of a job's external addresses at a core that has room for them."""
        return external_flows(placed, switch, self._dropping, self.policy.external)

    def _external_size(self, switch: Switch, placed: Placed) -> int:
        return sum(1 for _ in self._external_flows(placed, switch))

    def _opens(self, datapath: int, placed: Placed) -> bool:
        """True where a core has the flows of a job's external addresses."""
        room = self._rooms.get(datapath)
        fits = room is None or placed.job.number in room.has
        return bool(placed.job.external) and fits and not self._refusals.why(datapath, placed.job)

    def _why_closed_at(self, switch: Switch, placed: Placed) -> str:
        if refusal := self._refusals.why(switch.datapath, placed.job):
            return refusal
        if self._opens(switch.datapath, placed) or not self._external_size(switch, placed):
            return ""
        return no_room(switch)

    def _age(self, number: int) -> int:
        """Smaller for a job whose external address was given earlier."""
        return min((each.number for each in self.placed[number].job.external), default=0)

    def _count_rules(self, datapath: int, more: int) -> None:
        # One that was never counted is counted as a whole.
        if datapath in self.rules:
            self.rules[datapath] += more

    def _cores(self) -> Iterator[int]:
        # Declared switches are few, whatever the number of workers.
        for datapath in self.policy.switches:
            switch = self.switches.get(datapath)
            if switch is not None and switch.is_core:
                yield datapath


def no_room(switch: Switch) -> str:
    """The reason where a switch's rules are limited."""
    return f"switch {switch.name} takes {switch.max_rules} rules and has no room for it"
