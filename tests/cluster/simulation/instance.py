"""One instance: the product's member, services and upkeep on a played store, and a thin loop for its reconciler.

As ``lark_controller/controller.py`` puts them together. Not the product's is the loop: it calculates by the product's
desired flows and differences, sends each connected switch what changes, and compares it when it connects.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

from lark_common.errors import LarkError, StandbyError, StoreError, SwitchError
from lark_controller.api.instances import Identity, Term, Why
from lark_controller.api.metrics import Metrics
from lark_controller.cluster.member import Member
from lark_controller.flows.desired import Desired
from lark_controller.flows.diff import diff
from lark_controller.jobs.job import Directory, Job
from lark_controller.policies.decide import Decider, needed_attributes
from lark_controller.policies.model import Policy
from lark_controller.services.background import Upkeep
from lark_controller.services.external import ExternalAddresses
from lark_controller.services.feed import Feed
from lark_controller.services.lease_clock import LeaseClock
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.store import Store
from lark_controller.switches.fence import Fence
from tests.cluster.simulation.server import Server
from tests.cluster.simulation.store import PlayedStore
from tests.cluster.simulation.switches import Link, PlayedSwitch, placed
from tests.cluster.simulation.world import Process, RLock, World

# Seconds of a lease, short beside a schedule.
LEASE: Final = 12.0


class _Pauses:
    """The pauses of a thread of the product, as those of a task."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def pause(self, seconds: float) -> bool:
        self._process.sleep(seconds)
        return False


def _do_nothing(of: object, name: str) -> None:
    setattr(of, name, lambda *_: None)


class Services:
    """All that an active instance has, from the store."""

    def __init__(self, instance: Instance, policy: Policy) -> None:
        world = instance.world
        store = cast(Store, instance.store)
        self.decider = Decider(policy)
        self.desired = Desired(policy)
        self.feed = Feed(Directory(), instance.put, instance.gone, LeaseClock(world.time, world.monotonic))
        self.feed.lock = RLock()  # type: ignore[assignment]
        self.reservations = Reservations(store, self.feed)
        self.external = ExternalAddresses(store, self.feed)
        self.registration = Registration(store, LEASE, self.feed, self.reservations)
        if not world.guards.doubts_are_noted:
            _do_nothing(self.registration._unanswered, "note")
            _do_nothing(self.reservations._unanswered, "look_again")
            _do_nothing(self.external, "_find_out")
        if not world.guards.doubts_are_waited_for:
            _do_nothing(self.registration._unanswered, "check")
        self.registration.use(policy, needed_attributes(policy), instance.store.runs.loaded())
        self.external.load()
        self.external.use(policy)
        instance.store.runs.begin_leases(self.feed.clock() + LEASE)
        self.upkeep = Upkeep(
            store,
            self.registration,
            self.reservations,
            self.external,
            cast(Metrics, SimpleNamespace(leases_expired=SimpleNamespace(inc=lambda _: None))),
            lease_seconds=LEASE if world.guards.sleep_is_noticed else 1e9,
            check_seconds=0,
            retention=0,
            datapaths=dict,
            check=lambda _: None,
            note_late=lambda: None,
            look_again=self.registration.look_again,
            clock=self.feed.clock,
        )
        self.upkeep._leasing = _Pauses(instance)  # type: ignore[assignment]
        self.desired.load((job, self.decider.of(job)) for job in self.feed.open())


class Instance(Process):
    """A process of the controller. ``ended`` is called when it has ended by itself."""

    def __init__(
        self, world: World, server: Server, name: str, policy: Policy, ended: Callable[[Instance], None]
    ) -> None:
        super().__init__(world)
        self.name, self.policy, self._server, self._ended = name, policy, server, ended
        self.me = Identity(f"{name}{next(world.numbers)}", name, f"http://{name}", "1", name)
        self.store = PlayedStore(server, self)
        self.member = Member(
            cast(Store, self.store), self.me, won=self._won, lost=self._lost, drained=self.stop, clock=world.monotonic
        )
        self.fence = Fence(shown=lambda _: None)
        self.links: dict[int, Link] = {}
        self.term: Term | None = None
        self.services: Services | None = None
        self.begin(self._membership)

    # -- the term ------------------------------------------------------------------------------------------------------

    def _membership(self) -> None:
        while not self.member._fenced:
            try:
                self.member._turn()
            except StoreError as error:
                self.member._failed(str(error))
            self.sleep(self.member._pause())

    def _won(self, term: Term) -> None:
        self.term = term
        for link in list(self.links.values()):
            self.begin(lambda link=link: self._lead(link))  # type: ignore[misc]
        self.begin(self._start)

    def _start(self) -> None:
        """Load what the store has, and serve."""
        while self.services is None:
            try:
                found = Services(self, self.policy)
            except StoreError:
                self.sleep(0.5)
            else:
                self.services = found
        self.member.serves()
        self.begin(self.services.upkeep._watch_leases)
        for link in list(self.links.values()):
            if link.mastered:
                self._compare(link)

    def _lost(self, sentence: str) -> None:
        self.fence.shut(sentence)
        # It goes on for a moment: it is not asked to stop, what it writes is refused.
        self.at(self.world.random.random(), self.end)

    def stop(self) -> None:
        """A clean end: the term is let go."""
        self.store.guard(0, self.member.fence)
        if self.term is not None and not self.member._fenced:
            self._server.release(self.me, self.term.generation, Why.RELEASED)
        self.end()

    def end(self) -> None:
        """The end of the process; the server and the switches notice."""
        if not self.alive:
            return
        self.kill()
        self._server.left(self.me.id)
        for link in list(self.links.values()):
            link.close("the process has ended")
        self._ended(self)

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, call: Callable[[Services], Any], answered: Callable[[Any], None]) -> None:
        """Answer a request; what it raises is its answer."""

        def task() -> None:
            found: Any
            try:
                if self.services is None or self.member._fenced:
                    raise StandbyError("stands by", "")
                found = call(self.services)
            except LarkError as error:
                found = error
            answered(found)

        self.begin(task)

    # -- switches ------------------------------------------------------------------------------------------------------

    def connected(self, switch: PlayedSwitch, stall: Callable[[], float], gone: Callable[[PlayedSwitch], None]) -> None:
        """Take the connection of a switch, in the place of the one before."""
        if (before := self.links.pop(switch.datapath, None)) is not None:
            before.close("superseded")

        def over(link: Link) -> None:
            if self.links.get(switch.datapath) is link:
                del self.links[switch.datapath]
            gone(switch)

        link = self.links[switch.datapath] = Link(self, switch, self.fence, over, stall)
        self.begin(lambda: self._lead(link))

    def _lead(self, link: Link) -> None:
        """Be a switch's master, or its slave while another has the term."""
        try:
            if self.term is None:
                generation = self.member._look.generation
                if generation:
                    link.lead(generation, slave=True)
                return
            link.lead(self.term.generation)
        except SwitchError as error:
            link.close(str(error))
            return
        link.mastered = True
        if self.services is not None:
            self._compare(link)

    def _compare(self, link: Link) -> None:
        """Compare a switch with what it should hold, and send the difference."""
        try:
            there = link.dump()
        except SwitchError as error:
            link.close(str(error))
            return
        if link.closed_because:
            return
        assert self.services is not None
        desired = self.services.desired
        desired.place_switch(placed(self.policy, link.datapath), HOSTS.get(link.datapath, ()))
        changes = diff(desired.program(link.datapath), there)
        link.ready = True
        if self.world.guards.switches_are_compared:
            link.apply(changes)

    def put(self, job: Job) -> None:
        """Take in a job that is new or changed."""
        self.at(0.0, lambda: self._put(job))

    def _put(self, job: Job) -> None:
        assert self.services is not None
        changes = self.services.desired.put(job, self.services.decider.of(job))
        for datapath, change in changes.items():
            if (link := self.links.get(datapath)) is not None and link.ready:
                link.apply(change)

    def gone(self, number: int) -> None:
        """Take a job out, and have its switch forget the connections of its addresses."""
        self.at(0.0, lambda: self._gone(number))

    def _gone(self, number: int) -> None:
        assert self.services is not None
        before = self.services.desired.placed.get(number)
        for datapath, change in self.services.desired.remove(number).items():
            if (link := self.links.get(datapath)) is not None and link.ready:
                link.apply(change)
        if before is not None and before.datapath is not None:
            link = self.links.get(before.datapath)
            if link is not None and link.ready:
                link.forget_connections(frozenset(before.job.addresses))


# The worker at each edge.
HOSTS: Final = {1: ("worker1",), 2: ("worker2",)}
