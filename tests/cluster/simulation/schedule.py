"""One schedule: a site with some instances, workers and switches, what goes wrong, and then a calm in which all is to
be as it was promised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Final

from lark_controller.policies.file import load
from tests.cluster.simulation.instance import HOSTS, Instance
from tests.cluster.simulation.promises import Promises
from tests.cluster.simulation.server import Fate, Server, Transaction
from tests.cluster.simulation.switches import PlayedSwitch, Wire
from tests.cluster.simulation.workers import Known, Worker
from tests.cluster.simulation.world import ALL, Guards, Process, World

POLICY: Final = load(
    """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
edge: {uplinks: [uplink]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}}
policies:
  - slice: {by: Owner}
topology:
  links:
    internet: {between: [core1, wan], capacity: 100}
  hosts:
    default: {switch: core1}
external:
  pools: {public: [198.51.100.64/30]}
  quarantine: 5
  rules:
    - {pool: public, open: [tcp], per_user: 3}
"""
)
# Seconds with faults, and those after them in which all comes to rest.
FAULTS: Final = 22.0
CALM: Final = 20.0
_WHOLE: Final = (Fate.ANSWERED,)


class Kind(Enum):
    """The faults of one moment."""

    KILLED = auto()
    STOPPED = auto()
    PAUSED = auto()
    SESSIONS = auto()
    DATABASE = auto()
    STANDS_STILL = auto()
    LINKS = auto()
    SWITCH = auto()


@dataclass(frozen=True)
class Faults:
    """The faults that there may be: the kinds and how many a second; lost statements and interrupted commits of a
    hundred; what becomes of commits; seconds of a statement at most; messages of a hundred that are on their way for
    long."""

    instances: int
    kinds: tuple[Kind, ...]
    rate: float = 0.35
    losses: int = 0
    interrupts: int = 0
    fates: tuple[Fate, ...] = _WHOLE
    latency: float = 0.02
    stalls: int = 0


_ANY: Final = (*Kind, Kind.PAUSED, Kind.PAUSED, Kind.STANDS_STILL)


def drawn(random: Random) -> Faults:
    """The faults of a schedule of any kind."""
    return Faults(
        instances=random.choice((1, 2, 2, 3)),
        kinds=_ANY,
        rate=random.choice((0.1, 0.2, 0.4)),
        losses=random.choice((0, 0, 3, 15)),
        interrupts=random.choice((0, 0, 10, 25)),
        fates=random.choice(
            (
                _WHOLE,
                (*_WHOLE * 8, Fate.UNANSWERED),
                (*_WHOLE * 4, Fate.UNANSWERED, Fate.LATE),
                (*_WHOLE * 6, Fate.UNANSWERED, Fate.LATE, Fate.LOST),
            )
        ),
        latency=random.choice((0.002, 0.02, 0.3)),
        stalls=random.choice((0, 0, 2, 10)),
    )


class Site:
    """All of one schedule; ``faults`` are drawn where none are given."""

    def __init__(self, seed: int, guards: Guards = ALL, faults: Faults | None = None) -> None:
        self.world = world = World(seed, guards)
        self.random = random = world.random
        self.known = Known()
        self.server = Server(world)
        self.promises = Promises(world, self.server, self.known, POLICY)
        self.server.changed = self.promises.written
        self.server.commits = self._commits
        self._faults = faults = drawn(random) if faults is None else faults
        self.server.losses, self.server.latency, self.server.fates = faults.losses, faults.latency, faults.fates
        self.calm = False
        self._wires: dict[tuple[str, int], Wire] = {}
        self.instances: dict[str, Instance] = {}
        self.switches = [PlayedSwitch(world, each, self.promises.done) for each in HOSTS]
        self._names = "abc"[: faults.instances]
        for name in self._names:
            world.at(random.random() * 2, lambda name=name: self._start(name))  # type: ignore[misc]
        self.workers = [Worker(world, self.known, self.instances, host, slot) for host in HOSTS for slot in (1, 2)]

    def _start(self, name: str) -> None:
        instance = self.instances[name] = Instance(self.world, self.server, name, POLICY, self._ended)
        for switch in self.switches:
            self._connect(instance, switch)

    def _ended(self, instance: Instance) -> None:
        name = instance.name
        self.world.at(self.random.uniform(0.3, 3.0), lambda: self._start(name))

    # -- switches ------------------------------------------------------------------------------------------------------

    def _connect(self, instance: Instance, switch: PlayedSwitch) -> None:
        def now() -> None:
            if not instance.alive or switch.datapath in instance.links:
                return
            # A switch has one connection to each of its controllers: it connects anew once the one before has ended,
            # or it gives that up, with what is still on its way there.
            before = self._wires.get((instance.name, switch.datapath))
            if before is not None and before.open and random.randrange(16):
                self.world.at(0.5, now)
            else:
                if before is not None:
                    before.drop()
                instance.connected(switch, self._stall, lambda switch: self._connect(instance, switch))
                self._wires[instance.name, switch.datapath] = instance.links[switch.datapath].wire

        random = self.random
        self.world.at(self.random.uniform(0.1, 1.0), now)

    def _stall(self) -> float:
        """The time for which a message to or from a switch is on its way."""
        if not self.calm and self.random.randrange(100) < self._faults.stalls:
            return self.random.uniform(0.5, 12.0)
        return self.random.random() * 0.01

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Something goes wrong, and soon something else."""
        random = self.random
        if self.calm:
            return
        self.world.at(random.expovariate(self._faults.rate), self._fault)
        active = [each for each in self.instances.values() if each.alive and each.term is not None]
        living = [each for each in self.instances.values() if each.alive]
        if not living:
            return
        instance = random.choice(active or living if random.randrange(4) else living)
        match random.choice(self._faults.kinds or (None,)):
            case Kind.KILLED:
                instance.end()
            case Kind.STOPPED:
                instance.stop()
            case Kind.PAUSED:
                self._pause(instance, random.choice((0.5, 3.0, 9.0, 9.0, 14.0, 22.0)))
            case Kind.SESSIONS:
                self.server.end_sessions()
            case Kind.DATABASE:
                self.server.restart()
                self.world.at(random.choice((0.5, 6.0)), self._back)
            case Kind.STANDS_STILL:
                self._stand_still(instance)
            case Kind.LINKS:
                for link in list(instance.links.values()):
                    link.close("the network has lost it", lost=True)
            case Kind.SWITCH:
                random.choice(self.switches).start_anew()

    def _pause(self, process: Process, seconds: float) -> None:
        """Pause a process as a whole, until soon after the last fault at most."""
        until = min(self.world.now + seconds, FAULTS + 1.0)
        process.paused_until = max(process.paused_until, until)

    def _commits(self, process: Process, transaction: Transaction) -> None:
        """Let a process be paused, or die, as the commit of a post or an end is on its way."""
        if self.calm or not isinstance(process, Instance) or not any(each[0] == "run" for each in transaction.keys):
            return
        if self.random.randrange(100) >= self._faults.interrupts:
            return
        if self.random.randrange(3):
            self._pause(process, self.random.uniform(5.0, 14.0))
        else:
            self.world.at(0.0, process.end)

    def _stand_still(self, instance: Instance) -> None:
        """Let what an instance and its switches send each other be on its way for long, and the instance be gone."""
        until = self.world.now + self.random.uniform(5.0, 14.0)
        for link in instance.links.values():
            link.wire.still_until = until
        soon = self.random.uniform(0.0, 4.0)
        if self.random.randrange(2):
            self.world.at(soon, instance.end)
        else:
            self.world.at(soon, lambda: self._pause(instance, self.random.uniform(9.0, 14.0)))

    def _back(self) -> None:
        self.server.away = False

    def played(self) -> Promises:
        """Play the schedule to its end. The promises are looked at all the time, and at the end."""
        with self.world.clocks():
            self.world.at(3.0, self._fault)
            if len(self._names) == 1 and self.random.randrange(3) == 0:
                # Nobody takes over from the only one.
                self.world.at(5.0, lambda: self._pause(next(iter(self.instances.values())), FAULTS))
            self.world.run(FAULTS)
            self.calm = True
            self.server.losses, self.server.latency, self.server.fates = 0, 0.02, _WHOLE
            self._back()
            for worker in self.workers:
                worker.at_work = False
            self.world.run(FAULTS + CALM)
            self.promises.at_rest(list(self.instances.values()), self.switches)
            for process in (*self.instances.values(), *self.workers):
                process.kill()
        return self.promises


def played(seed: int, guards: Guards = ALL, faults: Faults | None = None) -> Promises:
    """Play the schedule of a seed."""
    return Site(seed, guards, faults).played()
