"""The store of one instance, in the form in which the product's services use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lark_controller.api.instances import Identity, Instances, Look, Reached, Why
from lark_controller.jobs.job import Job, JobState, Standing
from lark_controller.qos.reservation import ReservationPage
from tests.cluster.simulation.server import Server
from tests.cluster.simulation.tables import Tables
from tests.cluster.simulation.world import Lock, Process


class PlayedStore:
    """The store of a process: each operation is one question or one write at the server."""

    def __init__(self, server: Server, process: Process) -> None:
        self.server, self.process = server, process
        self.generation: int | None = 0
        self.fenced: Callable[[str], None] = lambda _: None
        self.runs = Runs(self)
        self.reservations = Reservations(self)
        self.external_addresses = ExternalAddresses(self)
        self.instances = Place(self)
        self.trail = Trail()
        self._settling = Lock()

    def guard(self, generation: int, fenced: Callable[[str], None]) -> None:
        self.generation, self.fenced = generation, fenced

    def newest_schema(self) -> str:
        return ""

    def ping(self) -> None:
        self.read(lambda _: None)

    def settle(self) -> None:
        """Wait for all writes that have begun, one after the other as the product's store does."""
        with self._settling:
            self.server.write(self.process, self.generation, self._fenced, lambda _: None, settling=True)

    def read(self, question: Callable[[Tables], Any]) -> Any:
        return self.server.read(self.process, question)

    def write(self, work: Callable[[Tables], Any]) -> Any:
        return self.server.write(self.process, self.generation, self._fenced, work)

    def _fenced(self, reason: str) -> None:
        if self.generation:
            self.fenced(reason)


class _Subject:
    def __init__(self, store: PlayedStore) -> None:
        self._store = store
        self._read, self._write = store.read, store.write


class Runs(_Subject):
    """Runs."""

    def carry_out(self, requests: Any) -> Any:
        return self._write(lambda tables: tables.carry_out(requests))

    def end(self, *arguments: Any) -> Any:
        return self._write(lambda tables: tables.end(*arguments))

    def find(self, job_id: str) -> Job | None:
        found: Job | None = self._read(lambda tables: tables.find(job_id))
        return found

    def expired(self, now: float) -> Any:
        return self._read(lambda tables: tables.expired(now))

    def renew(self, job_id: str, until: float) -> Any:
        return self._write(lambda tables: tables.renew(job_id, until))

    def renew_many(self, renewed: Any) -> Any:
        return self._write(lambda tables: tables.renew_many(renewed)) if renewed else 0

    def begin_leases(self, until: float) -> Any:
        return self._write(lambda tables: tables.begin_leases(until))

    def loaded(self) -> list[tuple[Job, Standing]]:
        found: list[tuple[Job, Standing]] = self._read(
            lambda tables: [(job, Standing(JobState.REGISTERING)) for job in tables.live()]
        )
        return found


class Reservations(_Subject):
    """Reservations."""

    def admit(self, *arguments: Any, **more: Any) -> Any:
        return self._write(lambda tables: tables.admit(*arguments, **more))

    def change(self, *arguments: Any, **more: Any) -> Any:
        return self._write(lambda tables: tables.change(*arguments, **more))

    def release(self, *arguments: Any, **more: Any) -> Any:
        return self._write(lambda tables: tables.release(*arguments, **more))

    def sweep(self, *arguments: Any, **more: Any) -> Any:
        return self._write(lambda tables: tables.sweep(*arguments, **more))

    def reroute(self, *arguments: Any) -> Any:
        return self._write(lambda tables: tables.reroute(*arguments))

    def find(self, reservation_id: str, now: float, _owner: str | None = None) -> Any:
        return self._read(lambda tables: tables.reservation(reservation_id, now))

    def flows(self, now: float) -> Any:
        return self._read(lambda tables: tables.flows(now))

    def page(self, job: str, now: float, _cursor: None, _limit: int, _owner: str | None = None) -> ReservationPage:
        def work(tables: Tables) -> ReservationPage:
            there = (each for each in tables.reservations.values() if each.until is None or each.until > now)
            return ReservationPage(tuple(each for each in there if job in (each.job, each.peer)), None)

        found: ReservationPage = self._read(work)
        return found

    def worker_capacities(self) -> Any:
        return self._read(lambda tables: dict(tables.links))

    def use(self) -> Any:
        return self._read(lambda tables: dict(tables.reserved))

    def set_worker_capacity(self, host: str, megabits: float) -> None:
        self._write(lambda tables: tables.links.__setitem__(host.lower(), megabits))


class ExternalAddresses(_Subject):
    """External addresses."""

    def associate(self, *arguments: Any, **more: Any) -> Any:
        return self._write(lambda tables: tables.associate(*arguments, **more))

    def release(self, *arguments: Any) -> Any:
        return self._write(lambda tables: tables.release_external(*arguments))

    def expire(self, *arguments: Any, **more: Any) -> Any:
        return self._write(lambda tables: tables.expire_external(*arguments, **more))

    def name_pools(self, pools: Any) -> None:
        """Call nothing otherwise: the pools of the policy stay."""

    def held(self, *, job: str | None = None) -> Any:
        return self._read(lambda tables: tables.held(job))

    def find(self, association_id: str) -> Any:
        return self._read(lambda tables: next((a for a in tables.external.values() if a.id == association_id), None))

    def had(self, job_id: str, family: int) -> Any:
        return self._read(
            lambda tables: any((a.job, a.address.version) == (job_id, family) for a in tables.external.values())
        )


class Trail:
    """The audit trail, of which nothing is asked but what the tables write themselves."""

    def record(self, *_: Any) -> None: ...

    def record_all(self, *_: Any) -> None: ...


class Place:
    """The instance's own place in the database."""

    def __init__(self, store: PlayedStore) -> None:
        self._server, self._process = store.server, store.process
        self._session = 0

    def prepare(self) -> str:
        return ""

    def check_schema(self) -> None: ...

    def register(self, me: Identity) -> None:
        self._server.register(me)

    def hold(self, generation: int) -> None:
        self._session = generation

    def meet(self, me: Identity, *_: Any, **__: Any) -> Look:
        return self._server.meet(self._process, me, self._session)

    def take(self, me: Identity, seen: int, why: Why) -> int | None:
        return self._server.take(self._process, me, seen, why)

    def all(self) -> Instances:
        return Instances(self._server.generation, self._server.holder, 0.0, self._server.why, ())

    def reached(self) -> Iterable[Reached]:
        return ()

    def release(self, me: Identity, generation: int, why: Why) -> bool:
        self._server.release(me, generation, why)
        return True

    def leave(self, _me: Identity) -> None: ...
