"""The controller put together: store, services, reconcile loop and OpenFlow, wired, started and stopped.

Operations are on its subjects (``jobs``, ``switches``, …), as :class:`lark_controller.api.controls.Controls` has them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from lark_common.errors import SwitchError
from lark_common.log import WARNING, event
from lark_common.runs import Address
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.pairs import PairLedger
from lark_controller.api.instances import Term
from lark_controller.api.metrics import Metrics
from lark_controller.api.policy import PolicyVersion
from lark_controller.htcondor.watch import PoolOptions, PoolWatch
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider, needed_attributes
from lark_controller.qos.reservation import Reservation
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.core_drops import CoreDrops
from lark_controller.reconcile.deliveries import FlowDeliveries
from lark_controller.reconcile.guarantees import Guarantees
from lark_controller.reconcile.missed_guarantees import ACTIONS, TELL_SECONDS
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import LINK_ACTIONS, links_told_of
from lark_controller.services.account_writer import KEPT, AccountWriter, Keeping
from lark_controller.services.background import Upkeep
from lark_controller.services.counter_orders import CounterOrders
from lark_controller.services.described_job import Names
from lark_controller.services.directory_copy import TakenDirectory
from lark_controller.services.dns_updates import DnsUpdates
from lark_controller.services.drops import Drops
from lark_controller.services.external import ExternalAddresses
from lark_controller.services.external_names import ExternalNames
from lark_controller.services.external_translations import Translations
from lark_controller.services.feed import Feed
from lark_controller.services.flow_deliveries import DeliveryWatch
from lark_controller.services.handed_on_switches import MissedSwitches
from lark_controller.services.health import Health
from lark_controller.services.job_facts import refresh_facts
from lark_controller.services.jobs import Jobs
from lark_controller.services.journal import Journal
from lark_controller.services.pairs import Pairs
from lark_controller.services.policy import PolicyInForce
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.services.scitags import RegistryFile, Scitags
from lark_controller.services.stored_policy import load_stored
from lark_controller.services.switch_check import SwitchCheck
from lark_controller.services.switches import Switches
from lark_controller.services.usage import Accounts
from lark_controller.services.workers import Workers
from lark_controller.store import Store
from lark_controller.switches.fence import Fence
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.openflow.loop_thread import KeptSwitches, OpenFlow
from lark_controller.switches.ovsdb.driver import Ovsdb, OvsdbOptions
from lark_controller.switches.ovsdb.reports import LatestReports, Report


class Controller:
    """One controller. ``start`` before anything else, ``stop`` at the end. Once the ``fence`` is shut it writes to no
    switch. ``taken`` and ``kept`` are what it has held while it stood by."""

    def __init__(
        self,
        store: Store,
        policy: PolicyVersion,
        options: OpenFlowOptions,
        metrics: Metrics,
        *,
        lease_seconds: float = 900.0,
        check_seconds: float = 60.0,
        retention_days: float = 90.0,
        pool: PoolOptions | None = None,
        ovsdb: OvsdbOptions | None = None,
        keeping: Keeping = KEPT,
        fence: Fence | None = None,
        scitags_registry: Path | None = None,
        dns: DnsUpdates | None = None,
        taken: TakenDirectory | None = None,
        kept: KeptSwitches | None = None,
    ) -> None:
        self._store, self._taken = store, taken
        self.audit = store.trail
        self._lease, self._read_seconds = lease_seconds, keeping.read_seconds
        self._compares = bool(check_seconds)
        in_force = load_stored(policy) if taken is None else taken.prepared.decider.policy
        ovsdb = ovsdb or OvsdbOptions()
        self._ovsdb = Ovsdb(ovsdb, self._queues_reported, fence)
        ledger, pairs = Ledger(), PairLedger()
        self._journal = Journal(store.trail)
        self._reconciler = Reconciler(
            in_force,
            self._state_changed,
            metrics,
            self._ovsdb,
            ovsdb,
            ledger,
            pairs,
            self._journal.note,
            compares=self._compares,
            prepared=None if taken is None else taken.prepared,
        )
        self._account_writer = AccountWriter(store, ledger, pairs, keeping)
        self._guarantees = Guarantees(self._reconciler, metrics)
        self._core_drops = CoreDrops(self._reconciler)
        self._openflow = OpenFlow(options, self._reconciler.events, fence, kept)
        self._queue_reports = LatestReports(self._openflow.hand_over, self._reconciler.queues_reported)
        self._loop = LoopCalls(self._openflow)
        put = partial(self._openflow.hand_over, self._reconciler.put)
        gone = partial(self._openflow.hand_over, self._reconciler.end)
        self._feed = Feed(self._reconciler.directory, put, gone)
        self.reservations = Reservations(store, self._feed, self._holds)
        gateways = self._reconciler.gateways
        translations = Translations(
            partial(self._openflow.hand_over, gateways.served), partial(self._openflow.hand_over, gateways.confirmed)
        )
        self.external = ExternalAddresses(
            store,
            self._feed,
            translations,
            self._why_unreached,
        )
        self._names = ExternalNames(store, dns or DnsUpdates(None, None), fence, self.external)
        self._registration = Registration(store, lease_seconds, self._feed, self.reservations, self._why_kept)
        self._pool = None if pool is None else PoolWatch(pool, self._registration, metrics)
        registry = RegistryFile(scitags_registry)
        self.policy = PolicyInForce(
            policy,
            in_force,
            store,
            self._openflow,
            self._reconciler,
            self._registration,
            metrics,
            registry,
            follow=self.external.use,
        )
        self._checks = checks = SwitchCheck(
            self._openflow, self._reconciler, self._guarantees, self._core_drops, self._journal.note
        )
        self._upkeep: Upkeep = Upkeep(
            store,
            self._registration,
            self.reservations,
            self.external,
            metrics,
            lease_seconds=lease_seconds,
            check_seconds=check_seconds,
            retention=retention_days * 86400,
            datapaths=checks.datapaths,
            check=checks.check,
            note_late=self._note_late,
            look_again=self._look_again,
            clock=self._feed.clock,
        )
        self.jobs = Jobs(
            store,
            self._registration,
            self._openflow,
            self._reconciler,
            self._upkeep.unwritten,
            self._account_writer,
            self.policy,
            self.external,
        )
        self.switches = Switches(self._openflow, self._reconciler, self.jobs.treatments.state)
        scitags = Scitags(registry, lambda: self.policy.policy, self.jobs.live)
        deliveries = FlowDeliveries(self._reconciler)
        self._deliveries = DeliveryWatch(self._loop, deliveries)
        self.workers = Workers(self._loop, self._reconciler, self._guarantees, deliveries, self._journal.note, scitags)
        self.usage = Accounts(
            store,
            ledger,
            self._account_writer,
            self.jobs,
            self._loop,
            self._reconciler,
            self._core_drops,
            self.reservations,
            scitags=scitags,
            deliveries=self._deliveries,
            pairs=Pairs(store, pairs, self.jobs, self.reservations),
        )
        self.counters = CounterOrders(self._openflow, self._reconciler, metrics)
        self.missed_switches = MissedSwitches(
            partial(self._loop.call, self._openflow.present),
            self._openflow.listeners,
            lambda some: self._loop.call(lambda: frozenset(filter(self._reconciler.events.expects, some))),
        )
        self.drops = Drops(ledger, self._core_drops, self._reconciler)
        self.health = Health(store, self._openflow)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, takeover: str = "", term: Term | None = None) -> None:
        """Load the live jobs, if they were not ``taken`` over, then listen for switches; ``takeover`` is the audit
        trail's line of how this controller became the active one. Raises StoreError, SettingError."""
        names = needed_attributes(self.policy.policy)
        if self._taken is None:
            refresh_facts(self._store, names)
        else:
            self._feed.loaded()
            refresh_facts(self._store, names, self._registration.set_facts)
        until = self._feed.clock() + self._lease
        # The database writes 200,000 leases for seconds; the directory is loaded meanwhile.
        with ThreadPoolExecutor(1, "begin-leases") as aside:
            begun = aside.submit(self._store.runs.begin_leases, until)
            self._load(names, until)
            self._journal.start(takeover, term)
            self._ovsdb.start()
            # Switches may come while the leases begin; nothing is to end by one before they all have.
            self._openflow.start()
            self._openflow.call(self._reconciler.start(self._read_seconds)).result()
            if self._compares or self._read_seconds:
                self._openflow.call(self._core_drops.start(self._read_seconds)).result()
            begun.result()
        self._upkeep.start()
        if self._pool is not None:
            self._pool.start()
        self._account_writer.start()
        self._names.start()
        self.health.needs(self._ovsdb.thread)
        for service in (self._openflow, self._upkeep, self._account_writer, self._journal, self._names):
            self.health.needs(*service.threads)
        if self._pool is not None:
            self.health.needs(*self._pool.threads)
        self.health.start()

    def _load(self, names: Names, lease_until: float) -> None:
        """Take in the live jobs of the store, with what they have and have used."""
        decider = self._reconciler.decider
        if self._taken is None:
            found = ((_sharing(decider, job), standing) for job, standing in self._store.runs.loaded(lease_until))
            self._registration.use(self.policy.policy, names, found)
        else:
            self._reconciler.directory.leases_until = lease_until
            self._registration.use(self.policy.policy, names, held=self._taken.holdings)
        self.external.load()
        self.external.use(self.policy.policy)
        jobs = self._feed.open()
        self._reconciler.load(jobs)
        if risk := self._store.replication_risk():
            event(risk, level=WARNING)
        self._account_writer.load(
            (job, decision.group) for job in jobs if (decision := decider.decide(job.facts)).accounted
        )
        self.usage.expect_reports()
        self._guarantees.load(self._store.trail.lately(ACTIONS, 2 * TELL_SECONDS))
        self._reconciler.links_told = links_told_of(self._store.trail.lately(LINK_ACTIONS))
        event("directory loaded", jobs=len(jobs))

    def release(self) -> None:
        """Answer those who wait for changes, before the REST server stops."""
        self.reservations.stop_waiting()
        self._deliveries.close()
        self.external.stop_waiting()
        with suppress(SwitchError):
            self.workers.release()

    def stop(self) -> None:
        """Stop listening; switches keep what they hold, the store what is known."""
        self.health.stop()
        self._names.stop()
        self._journal.close()
        self._ovsdb.stop()
        if self._pool is not None:
            self._pool.stop()
        self._upkeep.stop_watching()
        if self._openflow.running:
            self._openflow.call(self._reconciler.markers.finish()).result()
        self._openflow.stop()
        self._upkeep.stop()
        self._account_writer.stop()
        self._journal.stop()

    @property
    def openflow_addresses(self) -> tuple[tuple[str, int], ...]:
        """The addresses where switches connect over TCP."""
        return self._openflow.addresses

    @property
    def openflow_tls_addresses(self) -> tuple[tuple[str, int], ...]:
        """The addresses where switches connect over TLS."""
        return self._openflow.tls_addresses

    def _holds(self, reservation: Reservation) -> bool:
        try:
            return self._loop.call(lambda: self._reconciler.holds(reservation))
        except SwitchError:
            return True

    # -- between threads -----------------------------------------------------------------------------------------------

    def _note_late(self) -> None:
        self.usage.end_overdue()
        self._checks.note_late()

    def _look_again(self) -> None:
        self._registration.look_again()
        self.policy.look_again()

    def _why_unreached(self, number: int, address: Address) -> str:
        # Of the policy in force, whichever that is by now.
        return self._reconciler.desired.why_unreached(number, address)

    def _why_kept(self, job: Job) -> str:
        return "" if self._pool is None else self._pool.why_kept(job)

    def _state_changed(self, job: Job) -> None:
        self._upkeep.state_changed(job)
        if job.reserved:
            self.reservations.state_changed()

    def _queues_reported(self, report: Report) -> None:
        self._queue_reports.put(report)


def _sharing(decider: Decider, job: Job) -> Job:
    facts = decider.shared(job.facts)
    return job if facts is job.facts else replace(job, facts=facts)
