"""Workers: each slot posts runs, renews and ends them, reserves and asks for addresses, at whichever instance answers.

They know what was acknowledged to them, and by what right a run may be over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from greenlet import getcurrent

from lark_common.classads.ads import JobAd, MachineAd, parse_post
from lark_common.errors import LarkError, StandbyError, StoreError
from lark_common.runs import RunKey
from lark_controller.api.external import ExternalWish
from lark_controller.api.jobs import Registered
from lark_controller.api.reservations import Wish
from tests.cluster.simulation.instance import LEASE, Instance, Services
from tests.cluster.simulation.world import Process, World

# Seconds between two renewals, and those that an answer is waited for.
RENEWED_EVERY: Final = LEASE / 4
PATIENCE: Final = 2.0
ACTOR: Final = "hook"
Ads = tuple[JobAd, MachineAd]


@dataclass
class Run:
    """A run as its worker knows it."""

    id: str
    slot: str
    started: int
    # The time at which the post was acknowledged, and if it then lived; that at which a renewal was acknowledged last.
    acknowledged: bool = False
    renewed_at: float = -1.0
    # Its worker is there, and renews it.
    tended: bool = False
    # An end was asked for, or acknowledged; a later run of its slot was posted.
    end_asked: bool = False
    end_acknowledged: bool = False
    followed: bool = False
    address: str = ""


@dataclass
class Known:
    """The knowledge of all workers, by the id of the run, and of reservations and addresses by theirs."""

    runs: dict[str, Run] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    external: dict[str, str] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


class _GivenUpError(Exception):
    """A worker asks no more for what had no answer: it was started anew, or its hook was ended."""


class Worker(Process):
    """One slot of a worker."""

    def __init__(self, world: World, known: Known, instances: Mapping[str, Instance], host: int, slot: int) -> None:
        super().__init__(world)
        self._known, self._instances = known, instances
        self.host, self.slot = host, slot
        self.at_work = True
        self._started, self._last = 0, ""
        self.begin(self._work, world.random.uniform(0.0, 4.0))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _ask(self, call: Callable[[Services], Any]) -> Any:
        """Ask one instance after the other until one answers. The answer may be lost, and then it is asked again."""
        random = self.world.random
        pause = 0.1
        while True:
            # First the one that has answered last.
            for name in sorted(self._instances, key=lambda each: (each != self._last, each)):
                found = self._asked(self._instances[name], call)
                if isinstance(found, StoreError) and self.at_work and random.randrange(2):
                    raise _GivenUpError
                if not isinstance(found, StandbyError | StoreError | TimeoutError):
                    self._last = name
                    return found
            self.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2.0, 2 * pause)

    def _asked(self, instance: Instance, call: Callable[[Services], Any]) -> Any:
        me, answers = getcurrent(), list[Any]()

        def answered(found: Any) -> None:
            if not answers:
                answers.append(found)
                self.wake(me)

        random = self.world.random
        if not instance.alive or random.randrange(50) == 0:
            return TimeoutError()
        instance.at(random.random() * 0.01, lambda: instance.ask(call, answered if random.randrange(30) else _lost))
        self.at(PATIENCE, lambda: answered(TimeoutError()))
        self.park()
        return answers[0]

    # -- a slot --------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        random = self.world.random
        while self.at_work:
            self._started += 1
            run = None
            try:
                run = self._posted()
                if run is not None:
                    run.tended = True
                    self._lives(run)
            except _GivenUpError:
                if random.randrange(8) == 0:
                    return
            finally:
                if run is not None:
                    run.tended = False
            if random.randrange(3):
                self.sleep(random.uniform(0.0, 1.5))

    def _posted(self) -> Run | None:
        random = self.world.random
        wish = random.choice(("", "bandwidth", "static"))
        # Most have a port of their own; the slots of a host have one port in common.
        port = f"p{random.choice((self.slot, 3))}"
        ads = _ads(self.host, self.slot, self._started, wish, port)
        key = RunKey(ads[0].global_job_id, ads[0].started, ads[1].slot)
        run = self._known.runs[key.id] = Run(key.id, key.slot, self._started)
        for other in self._known.runs.values():
            if other.slot == run.slot and other.started < run.started:
                other.followed = True
        found = self._ask(lambda services: services.registration.register(*ads, ACTOR))
        if not isinstance(found, Registered):
            self._count(found)
            return None
        run.acknowledged = found.job.live
        run.renewed_at = self.world.now
        run.address = str(found.job.ipv4)
        return run if found.job.live else None

    def _lives(self, run: Run) -> None:
        """Renew a run, and ask for something meanwhile, until it ends."""
        random = self.world.random
        end = self.world.now + random.uniform(1.0, 10.0)
        reserved: list[str] = []
        given: list[str] = []
        if self.at_work:
            self._wishes(run, reserved, given)
        while self.world.now < end or not self.at_work:
            self.sleep(min(RENEWED_EVERY, max(0.1, end - self.world.now)) if self.at_work else RENEWED_EVERY)
            found = self._ask(lambda services: services.registration.renew(run.id))
            if isinstance(found, LarkError):
                # A worker posts its ads again; here that is the next run.
                self._count(found)
                return
            run.renewed_at = self.world.now
            if self.at_work:
                self._wishes(run, reserved, given)
        if random.randrange(4) == 0:
            # The worker was started anew, and tells nobody.
            return
        run.end_asked = True
        found = self._ask(lambda services: services.registration.end(run.id, ACTOR, "over"))
        if isinstance(found, LarkError):
            self._count(found)
        else:
            run.end_acknowledged = True

    def _wishes(self, run: Run, reserved: list[str], given: list[str]) -> None:
        random, known = self.world.random, self._known
        match random.randrange(4):
            case 0 if not reserved:
                seconds = random.choice((None, 4.0))
                wish = Wish(source=run.id, destination="wan", rate=random.choice((30.0, 60.0)), duration=seconds)
                found = self._ask(lambda services: services.reservations.reserve(wish, ACTOR, of_job=True))
                if isinstance(found, LarkError):
                    self._count(found)
                else:
                    reserved.append(found.id)
                    if seconds is None:
                        known.reserved[found.id] = run.id
            case 1 if reserved:
                flow = reserved.pop()
                known.released.add(flow)
                self._count(self._ask(lambda services: services.reservations.release(flow, ACTOR, of_job=True)))
            case 2 if not given:
                wanted = ExternalWish(run.id)
                found = self._ask(lambda services: services.external.associate(wanted, ACTOR))
                if isinstance(found, LarkError):
                    self._count(found)
                else:
                    given.append(found.association.id)
                    known.external[found.association.id] = run.id
            case 3 if given:
                association = given.pop()
                known.released.add(association)
                self._count(self._ask(lambda services: services.external.release(association, ACTOR)))

    def _count(self, found: Any) -> None:
        if isinstance(found, Exception):
            name = type(found).__name__
            self._known.errors[name] = self._known.errors.get(name, 0) + 1


def _lost(_found: Any) -> None:
    """Does nothing with an answer that is lost."""


@lru_cache(maxsize=65_536)
def _ads(host: int, slot: int, started: int, wish: str, port: str) -> Ads:
    owner = "alice" if slot == 1 else "bob"
    given = f'LarkInnerAddressIPv4 = "10.64.9.{host}"' if wish == "static" else 'LarkAddressType = "controller"'
    lines = [
        f'Owner = "{owner}"', f'GlobalJobId = "s#{host}{slot}{started}.0#1"', f"JobCurrentStartDate = {started}",
        "RequestBandwidth = 600" if wish == "bandwidth" else "", "------",
        f'Machine = "worker{host}"', f'Name = "slot{slot}@worker{host}"', f'LarkDatapathId = "{host:016x}"',
        'LarkNetworkType = "ovs_bridge"', f'LarkInnerMacAddress = "02:00:00:00:{host:02x}:{slot:02x}"',
        f'LarkExternalInterface = "{port}"', "AvailBandwidth = 1000", given,
    ]  # fmt: skip
    return parse_post("\n".join(lines).encode(), "text/plain")
