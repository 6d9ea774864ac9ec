"""Brings a job from admitted to confirmed: network, registration, addresses, the switches' confirmation."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

from lark_common import log
from lark_worker.controller_link import Answer, ControllerLink
from lark_worker.dhcp.jobs import NO_ANSWER, DhcpJobs, has_dhcp, leased_address
from lark_worker.errors import AwayError, CallerError, NetworkError, RefusedError
from lark_worker.life.answers import (
    AWAY,
    NO_LEASE,
    TURNED_AWAY,
    lines,
    repeated,
)
from lark_worker.life.ending import Endings
from lark_worker.life.site_script import SiteScript
from lark_worker.life.spool import Spool
from lark_worker.network.job_network import JobNetworks
from lark_worker.records.known_jobs import Key, KnownJobs, key_of
from lark_worker.records.records import Record
from lark_worker.rules.feed import RulesFeed
from lark_worker.rules.firewall import is_ruled
from lark_worker.settings import Settings


class Registrations:
    """Registers the jobs of one worker; thread-safe."""

    def __init__(
        self,
        settings: Settings,
        jobs: KnownJobs,
        link: ControllerLink,
        networks: JobNetworks,
        spool: Spool,
        endings: Endings,
        dhcp: DhcpJobs,
        rules: RulesFeed,
        *,
        script: SiteScript,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._link = link
        self._networks = networks
        self._spool = spool
        self._endings = endings
        self._dhcp = dhcp
        self._rules = rules
        self._script = script
        self._lock = threading.Lock()
        self._registering: dict[str, Future[Answer]] = {}
        # Of many simultaneous starts some finish in time while others wait; all side by side, none would.
        self._places = threading.BoundedSemaphore(max(2, os.cpu_count() or 1))

    def bring_up(self, key: Key, record: Record, wait: float) -> str:
        """Make the network while the job is registered; then wait for the switches. The caller holds the job's lock.

        Returns the job as ClassAd lines. Raises RefusedError, NetworkError, and what :func:`answers.repeated` raises.
        """
        if record.state == "registering" and "register" not in record.pending:
            # The job was posted, and the answer is on no interface: making the network had failed, or the
            # service was killed.
            record = self._jobs.change(key, then="register")
        future = self._post_soon(record) if "register" in record.pending else None
        if not record.made:
            self._rules.prepare(record)
            with self._places:
                # HTCondor may have given up a job that waited long for its turn.
                if not self._jobs.lives(record):
                    raise CallerError("the job's starter has ended")
                self._networks.make(record)
            self._begin_script(key, record)
            record = self._jobs.change(key, made=True)
            if is_ruled(record):
                self._rules.jobs_changed()
        if future is not None:
            try:
                answer = future.result(self._settings.timeout)
            except FutureTimeoutError:
                return self._without_controller(key, record, future)
            except RefusedError as error:
                self._endings.give_up(key, TURNED_AWAY if error.idle else "refused", str(error))
                raise
            record = self._configure(key, answer)
        if has_dhcp(record):
            return self._lease(key, record, wait)
        if record.network_type != "none" and wait > 0:
            record = self._confirm(key, record, wait)
        self._networks.release(record)
        return lines(record)

    def _begin_script(self, key: Key, record: Record) -> None:
        """Run the site's program at the start of a namespace. Raises RefusedError.

        Its end is noted before: a start in whose midst this service is killed is run again, since the network counts as
        made afterwards alone, and has its end also where it is not.
        """
        if not self._script:
            return
        self._jobs.change(key, scripted=True)
        try:
            self._script.start(record)
        except RefusedError as error:
            self._jobs.change(key, scripted=False)
            self._endings.give_up(key, "refused", str(error))
            raise

    def _lease(self, key: Key, record: Record, wait: float) -> str:
        """With DHCP: get the lease once the job's port is open for DHCP, and post the job again with it."""
        if not leased_address(record):
            record = self._confirm(key, record, self._settings.wait)
            self._networks.release(record)
            given = self._dhcp.obtain(key, record)
            if given is None:
                return self._without_lease(key)
            # On disk before it is posted, so that it is posted after a crash as well.
            record = self._jobs.change(key, then="register")
        try:
            answer = self._link.register(record.body, wait)
        except AwayError as error:
            record = self._jobs.change(key, state="pending", reason=str(error))
            self.post_later(key, record)
            return lines(record)
        except RefusedError as error:
            self._endings.give_up(key, TURNED_AWAY if error.idle else "refused", str(error))
            raise
        self._jobs.delivered(key, "register")
        return lines(self._jobs.change(key, **answer.changes))

    def _without_lease(self, key: Key) -> str:
        """Do what the site chose for jobs without an address from a DHCP server."""
        choice = self._settings.dhcp_on_failure
        if choice == "start":
            record = self._jobs.change(key, state="pending", reason=NO_ANSWER)
            log.event("job starts without an address", level=log.WARNING, job=record.id)
            return lines(record)
        record = self._endings.give_up(key, NO_LEASE, NO_ANSWER)
        log.event("job does not start", level=log.WARNING, job=record.id, reason=NO_ANSWER, choice=choice)
        return repeated(record, self._settings)

    def post_later(self, key: Key, record: Record) -> None:
        """Post a job while it runs already."""
        self._post_soon(record).add_done_callback(lambda done: self._answered_late(key, done))

    def deliver(self, record: Record) -> None:
        """Post a job, and set the answer of a start that waits for it. Raises AwayError."""
        answer: Answer | RefusedError
        try:
            # A start leaves its job "registering" until it has an answer; whatever else is posted runs.
            answer = self._link.register(record.body, running=record.state != "registering")
        except RefusedError as error:
            log.event("the controller refused a job", level=log.WARNING, job=record.id, reason=error)
            answer = error
        self._jobs.delivered(key_of(record), "register")
        with self._lock:
            future = self._registering.pop(record.id, None)
        if future is None:
            return
        if isinstance(answer, RefusedError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def forget(self, job_id: str) -> None:
        """Drop the pending answer of a job that has ended."""
        with self._lock:
            self._registering.pop(job_id, None)

    def _post_soon(self, record: Record) -> Future[Answer]:
        with self._lock:
            future = self._registering.get(record.id)
            if future is not None:
                return future
            future = self._registering[record.id] = Future()
        self._spool.add(record.slot, record.id)
        return future

    def _confirm(self, key: Key, record: Record, wait: float) -> Record:
        """Wait until the switches hold the job's flows; its port is there by now."""
        try:
            answer = self._link.register(record.body, wait)
        except AwayError as error:
            return self._jobs.change(key, state="pending", reason=str(error))
        except RefusedError as error:
            self._endings.give_up(key, TURNED_AWAY if error.idle else "refused", str(error))
            raise
        return self._jobs.change(key, **answer.changes)

    def _configure(self, key: Key, answer: Answer) -> Record:
        """Put the addresses that the controller gave on the job's interface."""
        record = self._jobs.of(key)
        assert record is not None  # the caller holds its lock
        addresses = record.addresses
        if has_dhcp(record):
            # Its IPv4 address is the lease's alone.
            fixed = tuple(text for text in addresses if ":" in text)
            self._networks.configure(replace(record, addresses=fixed))
        elif record.network_type == "nat":
            self._networks.configure(record)
        elif record.network_type != "none":
            for taken in {*self._settings.gateways, *self._settings.nameservers}.intersection(answer.addresses):
                raise NetworkError(
                    f"the controller gave the job {taken}, which is a gateway's or name server's here: the policy's"
                    " networks.hosts must name it"
                )
            addresses = self._networks.interfaces(answer.addresses)
            self._networks.configure(replace(record, addresses=addresses), record.addresses)
        return self._jobs.change(key, addresses=addresses, **answer.changes)

    def _without_controller(self, key: Key, record: Record, future: Future[Answer]) -> str:
        """Do what the site chose for jobs that start while the controller is away."""
        choice = self._settings.on_failure
        reason = "the controller cannot be asked"
        log.event("job starts without the controller", level=log.WARNING, job=record.id, choice=choice)
        if choice == "start":
            record = self._jobs.change(key, state="pending", reason=reason)
            try:
                if record.addresses and not has_dhcp(record):
                    self._networks.configure(record)
                self._networks.release(record)
            finally:
                # The job may start all the same.
                future.add_done_callback(lambda done: self._answered_late(key, done))
            return lines(record)
        return repeated(self._endings.give_up(key, AWAY, reason), self._settings)

    def _answered_late(self, key: Key, done: Future[Answer]) -> None:
        """Apply an answer that came after the job's start."""
        with self._jobs.locked(key):
            record = self._jobs.of(key)
            if record is None or record.over:
                return
            try:
                record = self._configure(key, done.result())
                self._networks.release(record)
                if has_dhcp(record):
                    self._dhcp.begin(record)
                log.event("job registered late", job=record.id, state=record.state)
            except RefusedError as error:
                # It runs without a network: its port passes nothing as long as the controller does not know it.
                self._jobs.change(key, state="refused", reason=str(error))
            except NetworkError as error:
                self._jobs.change(key, state="pending", reason=str(error))
                log.failure("a late job's network is incomplete", error, job=record.id)
