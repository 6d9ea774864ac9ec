"""The jobs of this worker, from the starter's first request to the end's delivery to the controller.

A job is identified by its starter (process id and start), which is found by the caller's ancestry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from lark_common import log
from lark_common.deliveries import Delivered
from lark_common.runs import EndedBy
from lark_worker.controller_link import ControllerLink
from lark_worker.dhcp.jobs import DhcpJobs, has_dhcp
from lark_worker.errors import CallerError, NetworkError
from lark_worker.identity.process_watch import ProcessWatch
from lark_worker.identity.processes import Process
from lark_worker.identity.startd import StartdView
from lark_worker.identity.wrapper_check import WrapperCheck
from lark_worker.life.admission import Admission
from lark_worker.life.answers import lines, repeated
from lark_worker.life.ending import Endings
from lark_worker.life.leases import LeaseRenewal
from lark_worker.life.own_external import OwnExternalAddresses
from lark_worker.life.own_paths import OwnPaths
from lark_worker.life.registration import Registrations
from lark_worker.life.shares import Requests
from lark_worker.life.site_script import SiteScript
from lark_worker.life.spool import Spool
from lark_worker.network.job_network import JobNetworks
from lark_worker.network.ovs_connections import OvsConnections
from lark_worker.queues.fair_queues import FairQueues
from lark_worker.queues.shaping import Shaping
from lark_worker.records.known_jobs import Key, KnownJobs, key_of
from lark_worker.records.records import Record
from lark_worker.records.state_lock import StateLock
from lark_worker.rules.feed import RulesFeed
from lark_worker.rules.firewall import Counters, Firewall
from lark_worker.settings import Settings
from lark_worker.transfers.fireflies import Fireflies
from lark_worker.transfers.following import Transfers
from lark_worker.transfers.reports import TransferReports
from lark_worker.usage.device_counters import DeviceCounters
from lark_worker.usage.metering import Metering
from lark_worker.usage.reports import UsageReports


class Worker:
    """Registers, renews and ends the jobs of one worker; thread-safe.

    Raises SettingError where the state directory cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        link: ControllerLink,
        startd: StartdView,
        networks: JobNetworks,
        fair_queues: FairQueues,
    ) -> None:
        self._state_lock = StateLock(settings.state_dir)
        # Reservations by the jobs themselves.
        self.reservations = Requests(link, fair_queues.write_now, settings.state_dir / "shares", self._is_live)
        self.paths = OwnPaths(link, self._delivered)
        self.external = OwnExternalAddresses(link)
        self._settings = settings
        self._fair_queues = fair_queues
        self._networks = networks
        self._jobs = KnownJobs(settings.state_dir / "jobs")
        self._spool = Spool(self._deliver)
        self._watch = ProcessWatch()
        self._dhcp = DhcpJobs(settings, self._jobs, self._again)
        self._firewall = Firewall(settings)
        self._shaping = Shaping(settings.external_interface, settings.prefix)
        self._rules = RulesFeed(link, self._firewall, self._shaping, self._jobs.all)
        self._connections = OvsConnections(
            settings.ovs_database, self._jobs.all, settings.connections, settings.ovs_connections, link.limited
        )
        self.fireflies = Fireflies(link, self._jobs.all, settings.prefix, settings.state_dir / "labelled")
        self.transfers = Transfers(settings, self._moving_keys, self.fireflies.note)
        self._transfer_reports = TransferReports(
            link, self.transfers, self._jobs.all, self.fireflies, settings.counter_seconds
        )
        devices = DeviceCounters(settings.ovs_database)
        self._reports = UsageReports(
            link,
            self._firewall,
            self._shaping,
            devices,
            self._jobs.all,
            settings.counter_seconds,
            fair_queues.write_now,
            self._transfer_reports,
        )
        script = SiteScript(settings.namespace_script)
        self._endings = Endings(
            self._jobs,
            link,
            networks,
            self._spool,
            self._watch,
            self._dhcp,
            self._rules,
            self._reports,
            transfers=self.transfers,
            transfer_reports=self._transfer_reports,
            script=script,
            reservations=self.reservations,
        )
        self._admission = Admission(settings, self._jobs, link, startd, networks, self._endings)
        self._registrations = Registrations(
            settings,
            self._jobs,
            link,
            networks,
            self._spool,
            self._endings,
            self._dhcp,
            self._rules,
            script=script,
        )
        self._metering = Metering(
            settings, self._jobs, link, self._reports.wan, self._reports.advice, self.transfers.sums
        )
        self._wrapper_check = WrapperCheck(startd)
        self._leases = LeaseRenewal(self._jobs, link, self._registrations, self.reservations)

    def start(self) -> None:
        """Take up the jobs that still run, end those that do not, remove what belongs to none. Raises NetworkError."""
        known = self._jobs.load()
        self.transfers.start()
        self.fireflies.start(self.transfers.flows, self.transfers.announce)
        self._watch.start()
        live = [record for record in known if not record.over and self._jobs.lives(record)]
        self._networks.sweep(live)
        self.reservations.resume({record.id for record in live})
        self._dhcp.start()
        for record in known:
            key = key_of(record)
            if not record.over and not self._endings.watch(record):
                self._endings.finish(key)
                continue
            if record.made and not record.over:
                self._release(record)
            if record.made and not record.over and has_dhcp(record):
                self._dhcp.resume(record)
            if record.made and "register" in record.pending:
                self._registrations.post_later(key, record)
            elif record.made and record.state == "registering" and not record.pending and not record.over:
                # The answer was not put on the job's interface before the service ended.
                self._registrations.post_later(key, self._jobs.change(key, then="register"))
            elif record.pending:
                self._spool.add(record.slot, record.id)
            elif record.over:
                self._jobs.forget(record)
        self._shaping.start()
        self._rules.start()
        self._reports.start()
        self._transfer_reports.start()
        self._connections.start()
        log.event("jobs resumed", live=len(live), known=len(known))
        self._leases.start()
        self._metering.start()
        self._wrapper_check.start()

    def stop(self) -> None:
        """Stop; jobs that run keep their networks."""
        self.paths.stop()
        self._wrapper_check.stop()
        self._leases.stop()
        self._metering.stop()
        self._rules.stop()
        self._shaping.stop()
        self._reports.stop()
        self._transfer_reports.stop()
        self.transfers.stop()
        self.fireflies.stop()
        self._connections.stop()
        self._dhcp.stop()
        self._spool.stop()
        self._watch.stop()
        self._endings.stop()
        self._state_lock.release()

    def _release(self, record: Record) -> None:
        """Let a job send that may run by now: its start has failed, or the service before has ended in its midst."""
        try:
            self._networks.release(record)
        except NetworkError as error:
            log.failure("a job's interface sends nothing", error, job=record.id)

    def register(self, starter: Process, body: bytes, wait: float) -> str:
        """Make a job's network and register it; returns the answer as ClassAd lines. Idempotent.

        Raises CallerError, ForgedError, AdError, RefusedError, StartdError, NetworkError.
        """
        key = (starter.pid, starter.started)
        with self._jobs.locked(key):
            record = self._jobs.of(key)
            if record is None:
                record = self._admission.admit(starter, body)
            elif body:
                self._admission.check_again(record, body)
            if record.over:
                return repeated(record, self._settings)
            is_posted = "register" not in record.pending and record.state not in ("registering", "pending")
            if record.made and (is_posted or (record.state == "pending" and "register" in record.pending)):
                # The start before may have failed at that.
                self._networks.release(record)
                return lines(record)
            try:
                return self._registrations.bring_up(key, record, min(wait, self._settings.wait))
            except Exception:
                # The hook may let the job start all the same (LARK_ON_FAILURE), in the network as far as it is made.
                record = self._jobs.of(key)
                if record is not None and record.made and not record.over:
                    self._release(record)
                raise

    def renew(self, starter: Process, job_id: str) -> str:
        """A running job as ClassAd lines; the service itself renews the lease. Raises CallerError for another job."""
        return lines(self._own(starter, job_id))

    def end(self, starter: Process, job_id: str, exit_ad: str) -> str:
        """Remove a job's network soon, and report its end to the controller. Raises CallerError."""
        record = self._own(starter, job_id)
        key = key_of(record)
        self._endings.note_end(key, exit_ad, EndedBy.HOOK)
        # HTCondor waits for the exit hook, and need not wait for the kernel to take the network down.
        threading.Thread(target=self._endings.finish, args=(key,), name=f"end {job_id}", daemon=True).start()
        return lines(replace(record, state="ended", reason=""))

    def namespace(self, starter: Process) -> Record:
        """The job of a starter, for entering its namespace. Raises CallerError where it has none."""
        record = self._jobs.of((starter.pid, starter.started))
        if record is None or record.over:
            raise CallerError("this job has no network here: its start was not registered")
        return record

    def own(self, starter: Process) -> Record:
        """The live job of a starter. Raises CallerError where it has none."""
        record = self._jobs.of((starter.pid, starter.started))
        if record is None or record.over:
            raise CallerError("this job is not registered")
        return record

    def usage(self, starter: Process) -> str:
        """Report a job's use to HTCondor now, before its starter notices its end. Raises CallerError."""
        self._metering.report_now(self.namespace(starter))
        return ""

    def _is_live(self, job_id: str) -> bool:
        record = self._jobs.by_id(job_id)
        return record is not None and not record.over

    def records(self) -> tuple[Record, ...]:
        """All jobs, in the order of their admission."""
        return self._jobs.all()

    def problems(self) -> tuple[str, ...]:
        """Problems that need an operator, in sentences."""
        return (problem,) if (problem := self._wrapper_check.problem) else ()

    def counters(self, record: Record) -> Counters:
        """The counters of a live bridge or nat job since its start. Raises NetworkError."""
        return self._firewall.counters(record)

    def _delivered(self, record: Record, number: int, others: Iterable[int]) -> Delivered | None:
        """The delivery of a job's reserved flow: by Open vSwitch's queues, or by the worker's own."""
        if record.network_type == "ovs_bridge":
            return self._fair_queues.delivered(number, others)
        return self._shaping.delivered(record.id, number)

    def _own(self, starter: Process, job_id: str) -> Record:
        record = self._jobs.of((starter.pid, starter.started))
        if record is None:
            raise CallerError("this job is not registered")
        if record.id != job_id:
            raise CallerError(f"{job_id} is not this job")
        return record

    def _moving_keys(self) -> list[Key]:
        """The starters whose transfers are accounted until their job's end is noted."""
        return [key_of(record) for record in self._jobs.all() if not record.over]

    def _again(self, key: Key, record: Record) -> None:
        self._registrations.post_later(key, record)

    def _deliver(self, job_id: str) -> None:
        """Deliver a job's pending operations to the controller, in order. Raises AwayError."""
        while True:
            record = self._jobs.by_id(job_id)
            if record is None or not record.pending:
                return
            if record.pending[0] == "register":
                self._registrations.deliver(record)
            else:
                self._registrations.forget(job_id)
                self._endings.deliver(record)
