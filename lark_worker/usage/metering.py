"""Reads the counters of every job's interface periodically, and reports the use to HTCondor."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, RefusedError, StarterError
from lark_worker.network.job_network import INNER
from lark_worker.records.known_jobs import KnownJobs
from lark_worker.records.records import Record
from lark_worker.rules.firewall import is_ruled
from lark_worker.settings import Settings
from lark_worker.usage import slots
from lark_worker.usage.chirp import set_attributes
from lark_worker.usage.counters import MEGA, JobUse, read

# Seconds between two requests to the controller: for the groups' headroom, and for a job's WAN part; for that of a
# young job at every reading, since short jobs have ended before the first turn.
HEADROOM_SECONDS: Final = 60.0
WAN_SECONDS: Final = 300.0
YOUNG_SECONDS: Final = 60.0
# Seconds between two requests for one job's last WAN part.
LEAST_SECONDS: Final = 1.0
# After so long without a packet a job's flows have the counts of its interface: Open vSwitch takes half a second.
QUIET_SECONDS: Final = 0.7
# Seconds without requests after the controller has not answered.
AWAY_SECONDS: Final = 30.0
SLOTS: Final = "slots"

SetAttributes = Callable[[int, Mapping[str, float]], None]
# Reads the WAN part of a job that ends: bytes in and out; True for a job that has been quiet.
LastWan = Callable[[Record, bool], tuple[int, int] | None]


def is_metered(record: Record) -> bool:
    """True if a job's use of the network is reported to HTCondor."""
    return record.accounted and record.network_type != "none"


class Metering:
    """Meters the jobs of one worker from :meth:`start` to :meth:`stop`; thread-safe.

    ``last`` reads the WAN part of a job that ends; it raises AwayError and RefusedError.
    """

    def __init__(
        self,
        settings: Settings,
        jobs: KnownJobs,
        link: ControllerLink,
        last: LastWan,
        set_attributes: SetAttributes = set_attributes,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._link = link
        self._last = last
        self._set_attributes = set_attributes
        self._path: Path = settings.socket.parent / SLOTS
        self._lock = threading.Lock()
        self._meters: dict[str, JobUse] = {}
        self._slots: set[str] = set()
        self._wan: dict[str, Mapping[str, float]] = {}
        self._wan_at: dict[str, float] = {}
        self._last_part_at: dict[str, float] = {}
        self._away_until = -math.inf
        self._headroom: dict[str, float] = {}
        self._thread = StoppableThread("usage", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def report_now(self, record: Record) -> None:
        """Report a job's counters to its starter now, as ``lark-enter`` requests at the job's end."""
        if not is_metered(record):
            return
        with self._lock:
            before = self._meters.get(record.id)
        meter = self._read(record)
        if meter is None:
            return
        quiet = before is not None and before.counted == meter.counted and meter.at - before.at >= QUIET_SECONDS
        with self._lock:
            due = meter.at - self._last_part_at.get(record.id, -math.inf) >= LEAST_SECONDS
            if due:
                self._last_part_at[record.id] = meter.at
        if due:
            self._read_wan(record, partial(self._last, record, quiet))
        self._hand_on(record, meter)

    def _metered(self) -> list[Record]:
        return [record for record in self._jobs.all() if record.made and not record.over and is_metered(record)]

    def _run(self) -> None:
        headroom_at = -math.inf
        while True:
            now = time.monotonic()
            try:
                if now - headroom_at >= HEADROOM_SECONDS and self._fetch_headroom():
                    headroom_at = now
                self._round(now)
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("jobs' network use is not reported", error)
            if self._thread.pause(self._settings.usage_interval):
                return

    def _round(self, now: float) -> None:
        for record in self._metered():
            try:
                self._meter(record, now)
            except Exception as error:  # an error about one job must not cost the others their reading
                log.failure("a job's network use is not reported", error, job=record.id)
        self._publish()

    def _meter(self, record: Record, now: float) -> None:
        meter = self._read(record)
        if meter is None:
            return
        before = self._wan_at.get(record.id, -math.inf)
        if now - meter.began < YOUNG_SECONDS or now - before >= WAN_SECONDS:
            self._wan_at[record.id] = now
            # The use of a bridge or nat job is counted here.
            here = is_ruled(record)
            self._read_wan(record, partial(self._last, record, True) if here else partial(self._link.wan, record.id))
        self._hand_on(record, meter)

    def _read(self, record: Record) -> JobUse | None:
        counted = read(record.port)
        if counted is None:
            return None
        now = time.monotonic()
        with self._lock:
            # A job that the service finds running has run since its starter did.
            meter = self._meters.get(record.id) or JobUse(min(now, _uptime(record.started)), now)
            self._meters[record.id] = meter = meter.reading(counted, now)
        return meter

    def _hand_on(self, record: Record, meter: JobUse) -> None:
        values = {
            "NetworkInputMb": meter.counted.bytes_in / MEGA,
            "NetworkOutputMb": meter.counted.bytes_out / MEGA,
            "BandwidthUsage": meter.peak,
            "BandwidthAverageUsage": meter.average,
            **self._wan.get(record.id, {}),
        }
        try:
            self._set_attributes(record.starter, values)
        except StarterError as error:
            log.event("a job's ad lacks its network use", level=log.DEBUG, job=record.id, reason=error)

    def _read_wan(self, record: Record, request: Callable[[], tuple[int, int] | None]) -> None:
        """Read the WAN part of a job's use."""
        if not is_ruled(record) and time.monotonic() < self._away_until:
            # A job's end waits for this, and need not wait for a controller that does not answer.
            return
        try:
            wan = request()
        except (AwayError, RefusedError):
            self._away_until = time.monotonic() + AWAY_SECONDS
            return
        if wan is not None:
            with self._lock:
                self._wan[record.id] = {"NetworkWanInputMb": wan[0] / MEGA, "NetworkWanOutputMb": wan[1] / MEGA}

    def _fetch_headroom(self) -> bool:
        try:
            headroom: dict[str, float] | None = self._link.headroom()
        except (AwayError, RefusedError) as error:
            # An old value tells nothing about now.
            log.event("the groups' headroom is unknown", level=log.DEBUG, reason=error)
            headroom = None
        with self._lock:
            self._headroom = headroom or {}
        return headroom is not None

    def _publish(self) -> None:
        linked = [each for each in self._jobs.all() if each.made and not each.over and each.network_type != "none"]
        metered = [record for record in linked if is_metered(record)]
        live = {record.id for record in metered}
        with self._lock:
            for each in (self._meters, self._wan, self._wan_at, self._last_part_at):
                for job_id in [job_id for job_id in each if job_id not in live]:
                    del each[job_id]
            meters = {record.id: self._meters.get(record.id) for record in metered}
            used = {record.slot: slots.Use(meters.get(record.id), record.port, INNER) for record in linked}
            # A slot that had a job once has an ad without one.
            self._slots |= used.keys()
            none = slots.Use()
            ads = slots.text({name: used.get(name, none) for name in self._slots}, self._headroom, int(time.time()))
        try:
            slots.write(self._path, ads)
        except OSError as error:
            log.failure("the slots' use of the network cannot be written", error, path=self._path)


def _uptime(ticks: int) -> float:
    """A start in clock ticks since boot, on the clock that readings are timed by."""
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
