"""Ends jobs: notices the end, removes the network, reports it to the controller."""

from __future__ import annotations

import contextlib

from lark_common import log
from lark_common.runs import EndedBy
from lark_worker.controller_link import ControllerLink
from lark_worker.dhcp.jobs import DhcpJobs
from lark_worker.errors import NetworkError, RefusedError
from lark_worker.identity.process_watch import ProcessWatch
from lark_worker.life.removal_retry import RemovalRetry
from lark_worker.life.shares import Requests
from lark_worker.life.site_script import SiteScript
from lark_worker.life.spool import Spool
from lark_worker.network.job_network import JobNetworks
from lark_worker.records.known_jobs import Key, KnownJobs, key_of
from lark_worker.records.records import Record
from lark_worker.rules.feed import RulesFeed
from lark_worker.rules.firewall import is_ruled
from lark_worker.transfers.book import NOTHING
from lark_worker.transfers.following import Transfers
from lark_worker.transfers.reports import TransferReports
from lark_worker.usage.reports import UsageReports


class Endings:
    """Ends the jobs of one worker; thread-safe."""

    def __init__(
        self,
        jobs: KnownJobs,
        link: ControllerLink,
        networks: JobNetworks,
        spool: Spool,
        watch: ProcessWatch,
        dhcp: DhcpJobs,
        rules: RulesFeed,
        reports: UsageReports,
        *,
        transfers: Transfers,
        transfer_reports: TransferReports,
        script: SiteScript,
        reservations: Requests,
    ) -> None:
        self._jobs = jobs
        self._link = link
        self._networks = networks
        self._spool = spool
        self._watch = watch
        self._dhcp = dhcp
        self._rules = rules
        self._reports = reports
        self._transfers = transfers
        self._transfer_reports = transfer_reports
        self._removal_retry = RemovalRetry(networks.remove, self._has_network)
        self._script = script
        self._reservations = reservations

    def stop(self) -> None:
        """Stop removing networks."""
        self._removal_retry.stop()

    def watch(self, record: Record) -> bool:
        """End the job when its starter ends; False where it has ended already."""
        key = key_of(record)
        return record.boot == self._jobs.boot and self._watch.add(*key, lambda: self.finish(key))

    def note_end(self, key: Key, exit_ad: str, by: EndedBy) -> Record | None:
        """Record a job's end, which is then reported to the controller. Idempotent."""
        with self._jobs.locked(key):
            record = self._jobs.of(key)
            if record is None or record.over:
                return record
            counted = self._reports.last(record)
            moved = self._transfers.last(key)
            record = self._jobs.change(
                key,
                over=True,
                state="ended",
                exit_ad=exit_ad,
                ended_by=by.value,
                counted=counted,
                moved={} if moved == NOTHING else moved._asdict(),
                then="end",
            )
            self._spool.add(record.slot, record.id)
            self._reservations.forget(record.id)
            log.event("job ends", job=record.id, slot=record.slot, by=by)
            return record

    def finish(self, key: Key) -> None:
        """End a job, whether or not its exit hook was called, and remove its network."""
        with self._jobs.locked(key):
            before = self._jobs.of(key)
            here = before is not None and before.boot == self._jobs.boot
            record = self.note_end(key, "", EndedBy.STARTER if here else EndedBy.WORKER)
            if record is None:
                return
            try:
                self._remove(record)
            except NetworkError as error:
                log.failure("a job's network is not removed; it is tried again", error, job=record.id)
        self._jobs.forget_starter(record)

    def give_up(self, key: Key, state: str, reason: str) -> Record:
        """End a job that does not start here. It may have been registered, so its end is reported all the same."""
        with self._jobs.locked(key):
            record = self._jobs.change(
                key, over=True, state=state, reason=reason, ended_by=EndedBy.START.value, pending=("end",)
            )
            self._spool.add(record.slot, record.id)
            self._remove(record)
            return record

    def supersede(self, job_id: str) -> None:
        """Drop an earlier starter of the same run, with its network."""
        old = self._jobs.by_id(job_id)
        if old is not None:
            self._jobs.change(key_of(old), over=True, pending=())
            self._remove(old)

    def _remove(self, record: Record) -> None:
        if record.scripted:
            # Noted before it is run, so that it is not run twice; a record may be forgotten by now.
            with contextlib.suppress(KeyError):
                self._jobs.change(key_of(record), scripted=False)
            self._script.end(record)
        self._dhcp.end(record)
        try:
            self._networks.remove(record)
        except NetworkError:
            self._removal_retry.add(record)
            raise
        finally:
            if is_ruled(record):
                self._rules.jobs_changed()

    def _has_network(self, job_id: str) -> bool:
        record = self._jobs.by_id(job_id)
        return record is not None and not record.over

    def deliver(self, record: Record) -> None:
        """Report a job's end to the controller. Raises AwayError."""
        self._transfer_reports.last(record)
        self._reports.last_flows(record)
        if record.counted:
            # Refused counters must not keep the end from being reported.
            with contextlib.suppress(RefusedError):
                self._link.counters(record.id, record.counted, final=True)
        self._link.end(record.id, record.exit_ad, EndedBy(record.ended_by))
        self._jobs.delivered(key_of(record), "end")
        self._jobs.forget(record)
