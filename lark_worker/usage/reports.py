"""Reports to the controller the use of bridge and nat jobs, which no switch counts, and that of others at their end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Container, Mapping
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.controller_link import Advised, ControllerLink
from lark_worker.errors import AwayError, NetworkError, RefusedError
from lark_worker.queues.shaping import Seen, Shaping
from lark_worker.records.records import Record
from lark_worker.rules.firewall import Firewall, is_ruled
from lark_worker.transfers.reports import TransferReports
from lark_worker.usage.device_counters import DeviceCounters

# Seconds that a job's end waits for a round of reports that is under way.
PATIENCE: Final = 1.0


class UsageReports:
    """Reads the counters every ``seconds`` (0: never) on a thread of its own, and reports changes, and once that the
    counts of a job have stopped: the controller shows the rate between the last two reports.

    ``records`` returns the worker's jobs; ``write_queues`` writes the counters of their queues.
    """

    def __init__(
        self,
        link: ControllerLink,
        firewall: Firewall,
        shaping: Shaping,
        devices: DeviceCounters,
        records: Callable[[], tuple[Record, ...]],
        seconds: float,
        write_queues: Callable[[], None],
        transfers: TransferReports,
    ) -> None:
        self._link = link
        self._devices = devices
        self._firewall = firewall
        self._shaping = shaping
        self._records = records
        self._seconds = seconds
        self._write_queues = write_queues
        self._transfers = transfers
        self._sent: dict[str, dict[str, int]] = {}
        # When a job's counts were as they were sent, on a clock that only goes on.
        self._same_at: dict[str, float] = {}
        # When a change was sent of a job's counts, of which the controller shows a rate since.
        self._moved_at: dict[str, float] = {}
        # Two posts of one job must not pass each other: counters that fall began anew.
        self._posting = threading.Lock()
        # Nor may two reports of what the queues have delivered, each of which has all queues.
        self._delivering = threading.Lock()
        # Reports that the controller does not have yet, by job.
        self._limited: dict[str, str] = {}
        self._thread = StoppableThread("counters", self._run)

    def start(self) -> None:
        """Start the thread."""
        if self._seconds:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def last(self, record: Record) -> dict[str, int]:
        """The counters of a job that ends; empty where it is not counted here, or cannot be read."""
        if not record.made:
            return {}
        if not is_ruled(record):
            if record.network_type != "ovs_bridge":
                return {}
            self._write_queues()
            return self._devices.last(record)
        try:
            return self._firewall.counters(record).report() | self._shaping.of_jobs().get(record.id, {})
        except NetworkError as error:
            log.failure("the last counters of a job are unknown", error, job=record.id)
            return {}

    def wan(self, record: Record) -> tuple[int, int] | None:
        """Bytes that a job that is counted here has received from the WAN and sent there; None: unknown."""
        try:
            report = self._firewall.counters(record).report()
        except NetworkError as error:
            log.event("a job's WAN part is unknown", level=log.WARNING, job=record.id, reason=error)
            return None
        return report["wan_bytes_in"], report["wan_bytes_out"]

    def advice(self, record: Record, quiet: bool) -> Advised | None:
        """The controller's advice for a live job and the WAN's part of its use, by its counts of now, in one request.

        ``quiet``: it has neither sent nor received for a while, so that its flows have counted everything. Raises
        AwayError, RefusedError.
        """
        if not is_ruled(record):
            if not quiet:
                self._devices.push_statistics()
            return self._link.advice(record.id, fresh=True)
        if self._seconds and self._posting.acquire(timeout=PATIENCE):
            try:
                self._report_counters(self._counted([record]))
            except NetworkError as error:
                log.event("a job's advice is by earlier counts", level=log.WARNING, job=record.id, reason=error)
            finally:
                self._posting.release()
        return self._link.advice(record.id)

    def _counted(self, live: list[Record]) -> dict[str, dict[str, int]]:
        """The counters of bridge and nat jobs, by id. Raises NetworkError."""
        seen = self._shaping.of_jobs()
        return {
            job_id: each.report() | seen.get(job_id, {}) for job_id, each in self._firewall.all_counters(live).items()
        }

    def _run(self) -> None:
        while not self._thread.pause(self._seconds):
            try:
                live = [record for record in self._records() if is_ruled(record) and record.made and not record.over]
                with self._posting:
                    self._forget({record.id for record in live})
                    self._report_counters(self._counted(live))
                self._report_limited({record.id for record in live})
                self._report_delivered(live)
            except (AwayError, NetworkError) as error:
                log.event("counters are not reported; the next report includes them", level=log.WARNING, reason=error)
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("counters are not reported; the next report includes them", error)
            try:
                self._transfers.report()
            except AwayError as error:
                log.event("transfers are not reported; the next report includes them", level=log.WARNING, reason=error)
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("transfers are not reported; the next report includes them", error)

    def _report_limited(self, live: Container[str]) -> None:
        """Report the jobs that have met their limit of connections."""
        self._limited |= self._firewall.take_limited()
        for job_id in list(self._limited):
            if job_id in live:
                try:
                    self._link.limited(job_id, self._limited[job_id])
                except RefusedError as error:
                    log.event("a job's limit is not noted", level=log.WARNING, job=job_id, reason=error)
            del self._limited[job_id]

    def _report_delivered(self, live: list[Record]) -> None:
        """Report each promise and its delivery, so that the controller notices a guarantee that is missed."""
        with self._delivering:
            queues = self._shaping.promises()
            if queues and live:
                self._deliver(live[0].machine, queues)

    def _deliver(self, machine: str, queues: Mapping[tuple[str, str], Seen]) -> None:
        self._link.delivered(machine, time.monotonic(), queues)
        self._shaping.reported(queues)

    def last_flows(self, record: Record) -> None:
        """Report what the reserved flows of a job that is over have delivered, before its end is. Raises AwayError."""
        if not is_ruled(record):
            return
        try:
            with self._delivering:
                queues = self._shaping.promises()
                # A report has all queues: one that lacks some is that of a worker where they are gone.
                if any(job == record.id and "/" in name for job, name in queues):
                    self._deliver(record.machine, queues)
        except (NetworkError, RefusedError) as error:
            log.event("the last counters of a job's flows are unknown", level=log.WARNING, job=record.id, reason=error)

    def _report_counters(self, counted: dict[str, dict[str, int]]) -> None:
        now = time.monotonic()
        for job_id, counts in counted.items():
            same = self._sent.get(job_id) == counts
            if same and not self._has_stopped(job_id, now):
                self._same_at[job_id] = now
                continue
            same_at = self._same_at.get(job_id)
            more = {"interval": math.ceil(1000 * self._seconds)}
            if same_at is not None and not same:
                more["new_within"] = math.ceil(1000 * (now - same_at))
            try:
                self._link.counters(job_id, counts | more)
            except AwayError:
                raise
            except Exception as error:  # an error about one job must not cost the others their reports
                log.failure("a job's counters are not reported; the next report includes them", error, job=job_id)
                continue
            self._sent[job_id] = counts
            self._same_at[job_id] = now
            if same:
                del self._moved_at[job_id]
            elif any(counts.values()):
                self._moved_at[job_id] = now

    def _has_stopped(self, job_id: str, now: float) -> bool:
        """True where the controller shows a rate of a job whose counts have not changed since. Those of a moment, as
        after a job has asked for its advice, show no end."""
        moved_at = self._moved_at.get(job_id)
        return moved_at is not None and now - moved_at >= self._seconds / 2

    def _forget(self, live: Container[str]) -> None:
        """Forget the posts of jobs that are over."""
        for posts in (self._sent, self._same_at, self._moved_at):
            for job_id in [job_id for job_id in posts if job_id not in live]:
                del posts[job_id]
