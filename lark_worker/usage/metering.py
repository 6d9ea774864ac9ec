"""Reads the counters of every job's interface periodically, and reports the use to HTCondor."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from lark_common import hook_answer, log
from lark_common.threads import StoppableThread
from lark_worker.controller_link import Advised, ControllerLink, Headroom
from lark_worker.errors import AwayError, RefusedError, StarterError
from lark_worker.network.job_network import INNER
from lark_worker.records.known_jobs import Key, KnownJobs, key_of
from lark_worker.records.records import Record
from lark_worker.rules.firewall import is_ruled
from lark_worker.settings import Settings
from lark_worker.transfers.book import NOTHING, Sums
from lark_worker.usage import slots
from lark_worker.usage.chirp import set_attributes
from lark_worker.usage.counters import MEGA, JobUse, read

# Seconds between two requests to the controller: for the groups' headroom, and for the WAN part of all jobs; for that
# of young jobs at every reading, since short jobs have ended before the first turn.
HEADROOM_SECONDS: Final = 60.0
WAN_SECONDS: Final = 300.0
YOUNG_SECONDS: Final = 60.0
# Seconds between two requests at one job's end.
LEAST_SECONDS: Final = 1.0
# After so long without a packet a job's flows have the counts of its interface: Open vSwitch takes half a second.
QUIET_SECONDS: Final = 0.7
# Bytes of both directions that a job's end does not wait for: what its network takes by itself, such as DHCP and ARP.
LITTLE: Final = 10_000
# Seconds without requests after the controller has not answered.
AWAY_SECONDS: Final = 30.0
SLOTS: Final = "slots"

SetAttributes = Callable[[int, Mapping[str, float | str]], None]
# Reads the WAN part of a job that is counted here: bytes in and out.
OwnWan = Callable[[Record], tuple[int, int] | None]
# Requests the controller's advice for a job that ends, with the WAN part of its use; True for one that has been quiet.
AskAdvice = Callable[[Record, bool], Advised | None]


def is_metered(record: Record) -> bool:
    """True if a job's use of the network is reported to HTCondor."""
    return record.accounted and record.network_type != "none"


def transferred(sums: Sums) -> dict[str, float | str]:
    """The attributes of a job's ad with what HTCondor has moved for it; none where that is nothing."""
    if sums == NOTHING:
        return {}
    seconds = sums.millis / 1000
    found: dict[str, float | str] = {
        "LarkTransferBytesIn": sums.bytes_in,
        "LarkTransferBytesOut": sums.bytes_out,
        "LarkTransferWanBytesIn": sums.wan_bytes_in,
        "LarkTransferWanBytesOut": sums.wan_bytes_out,
        "LarkTransferSeconds": seconds,
    }
    if seconds:
        found["LarkTransferRateIn"] = sums.bytes_in * 8 / MEGA / seconds
        found["LarkTransferRateOut"] = sums.bytes_out * 8 / MEGA / seconds
    return found


def external_of(record: Record) -> dict[str, float | str]:
    """The attributes of a job's ad with its external addresses; none where it has none."""
    return {**hook_answer.external(map(ip_address, record.external), record.opened, record.external_name)}


class Metering:
    """Meters the jobs of one worker from :meth:`start` to :meth:`stop`; thread-safe.

    ``own_wan`` reads the WAN part of a job that is counted here, ``advice`` requests advice, and raises AwayError and
    RefusedError. ``transfers`` returns the counts of a starter's transfers.
    """

    def __init__(
        self,
        settings: Settings,
        jobs: KnownJobs,
        link: ControllerLink,
        own_wan: OwnWan,
        advice: AskAdvice,
        transfers: Callable[[Key], Sums],
        set_attributes: SetAttributes = set_attributes,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._link = link
        self._own_wan = own_wan
        self._ask_advice = advice
        self._transfers = transfers
        self._set_attributes = set_attributes
        self._path: Path = settings.socket.parent / SLOTS
        self._lock = threading.Lock()
        self._meters: dict[str, JobUse] = {}
        self._slots: set[str] = set()
        self._wan: dict[str, Mapping[str, float]] = {}
        self._advice: dict[str, Mapping[str, float | str]] = {}
        self._pairs: dict[str, Mapping[str, float | str]] = {}
        self._wan_at = -math.inf
        self._last_part_at: dict[str, float] = {}
        self._away_until = -math.inf
        self._headroom: dict[str, float] = {}
        self._external: dict[str, int] = {}
        self._thread = StoppableThread("usage", self._run)

    def start(self) -> None:
        """Start the thread. Slots of which an earlier service has written go on to have an ad."""
        try:
            self._slots |= slots.names(self._path)
        except OSError as error:
            log.failure("the slots of an earlier service are unknown", error, path=self._path)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()

    def report_now(self, record: Record) -> None:
        """Report a job's counters to its starter now, as ``lark-enter`` requests at the job's end."""
        if not is_metered(record):
            self._set(record, self._unmetered(record))
            return
        with self._lock:
            before = self._meters.get(record.id)
        meter = self._read(record)
        if meter is None:
            return
        quiet = before is not None and before.counted == meter.counted and meter.at - before.at >= QUIET_SECONDS
        quiet |= meter.counted.bytes_in + meter.counted.bytes_out < LITTLE
        with self._lock:
            due = meter.at - self._last_part_at.get(record.id, -math.inf) >= LEAST_SECONDS
            if due:
                self._last_part_at[record.id] = meter.at
        if due:
            if is_ruled(record):
                self._note_wan(record.id, self._own_wan(record))
            self._read_advice(record, quiet)
        self._hand_on(record, meter)

    def _reported(self) -> list[Record]:
        found = (record for record in self._jobs.all() if record.made and not record.over)
        return [record for record in found if record.accounted or record.external]

    def _unmetered(self, record: Record) -> dict[str, float | str]:
        """The attributes of a job that is not metered: an external address is in its ad without accounting, too."""
        moved = transferred(self._transfers(key_of(record))) if record.accounted else {}
        return {**moved, **external_of(record)}

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
        read: list[tuple[Record, JobUse]] = []
        for record in self._reported():
            try:
                if not is_metered(record):
                    self._set(record, self._unmetered(record))
                elif (meter := self._read(record)) is not None:
                    read.append((record, meter))
            except Exception as error:  # an error about one job must not cost the others their reading
                log.failure("a job's network use is not reported", error, job=record.id)
        every = now - self._wan_at >= WAN_SECONDS
        if every:
            self._wan_at = now
        self._read_wan([record for record, meter in read if every or now - meter.began < YOUNG_SECONDS])
        for record, meter in read:
            try:
                self._hand_on(record, meter)
            except Exception as error:  # nor its report
                log.failure("a job's network use is not reported", error, job=record.id)
        self._publish()

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
        whole = {"Input": meter.counted.bytes_in / MEGA, "Output": meter.counted.bytes_out / MEGA}
        values: dict[str, float | str] = {
            **{f"Network{way}Mb": amount for way, amount in whole.items()},
            "BandwidthUsage": meter.peak,
            "BandwidthAverageUsage": meter.average,
            # It was read at another moment, and in front of the job's queue: a part is never more than its whole.
            **{f"NetworkWan{way}Mb": min(part, whole[way]) for way, part in self._wan.get(record.id, {}).items()},
            **self._advice.get(record.id, {}),
            # The last ones, since an access point that was configured for an earlier version refuses them.
            **transferred(self._transfers(key_of(record))),
            **external_of(record),
            **self._pairs.get(record.id, {}),
        }
        self._set(record, values)

    def _set(self, record: Record, values: Mapping[str, float | str]) -> None:
        if not values:
            return
        try:
            self._set_attributes(record.starter, values)
        except StarterError as error:
            log.event("a job's ad lacks its network use", level=log.DEBUG, job=record.id, reason=error)

    def _read_wan(self, records: list[Record]) -> None:
        """Read the WAN part of jobs' use: here where it is counted here, of all others by one request."""
        elsewhere: dict[str, list[str]] = {}
        for record in records:
            if not is_ruled(record):
                elsewhere.setdefault(record.machine, []).append(record.id)
                continue
            try:
                self._note_wan(record.id, self._own_wan(record))
            except Exception as error:  # nor its WAN part
                log.failure("a job's WAN part is unknown", error, job=record.id)
        for machine, job_ids in elsewhere.items():
            if time.monotonic() < self._away_until:
                return
            try:
                found = self._link.wan(machine, job_ids)
            except (AwayError, RefusedError):
                self._away_until = time.monotonic() + AWAY_SECONDS
                return
            for job_id in job_ids:
                self._note_wan(job_id, found.get(job_id))

    def _note_wan(self, job_id: str, wan: tuple[int, int] | None) -> None:
        if wan is not None:
            with self._lock:
                self._wan[job_id] = {"Input": wan[0] / MEGA, "Output": wan[1] / MEGA}

    def _read_advice(self, record: Record, quiet: bool) -> None:
        """Request advice on what a job asks for, and with it the WAN part of its use, at its end alone: a request for
        each live job again and again would keep the controller of a large pool busy."""
        if time.monotonic() < self._away_until:
            # A job's end waits for this, and need not wait for a controller that does not answer.
            return
        try:
            found = self._ask_advice(record, quiet)
        except (AwayError, RefusedError):
            self._away_until = time.monotonic() + AWAY_SECONDS
            return
        if found is not None:
            if not is_ruled(record):
                self._note_wan(record.id, found.wan)
            figure = {} if found.megabits is None else {"LarkAdvisedBandwidth": found.megabits}
            pairs: dict[str, float | str] = {"LarkMpiAdvice": found.pairs} if found.pairs else {}
            if found.pairs_megabits is not None:
                pairs["LarkAdvisedMpiBandwidth"] = found.pairs_megabits
            with self._lock:
                self._advice[record.id] = {"LarkAdvice": found.sentence, **figure}
                self._pairs[record.id] = pairs

    def _fetch_headroom(self) -> bool:
        try:
            headroom: Headroom | None = self._link.headroom()
            external = self._link.external_headroom()
        except (AwayError, RefusedError) as error:
            # An old value is no present one.
            log.event("the groups' headroom is unknown", level=log.DEBUG, reason=error)
            headroom, external = None, {}
        with self._lock:
            self._headroom = {} if headroom is None else _attributes(headroom)
            self._external = external
        return headroom is not None

    def _publish(self) -> None:
        linked = [each for each in self._jobs.all() if each.made and not each.over and each.network_type != "none"]
        metered = [record for record in linked if is_metered(record)]
        live = {record.id for record in metered}
        with self._lock:
            for each in (self._meters, self._wan, self._advice, self._pairs, self._last_part_at):
                for job_id in [job_id for job_id in each if job_id not in live]:
                    del each[job_id]
            meters = {record.id: self._meters.get(record.id) for record in metered}
            used = {record.slot: slots.Use(meters.get(record.id), record.port, INNER) for record in linked}
            # A slot that had a job once has an ad without one: the startd keeps what it was given last.
            self._slots |= used.keys()
            none = slots.Use()
            here = {name: used.get(name, none) for name in self._slots}
            ads = slots.text(here, self._headroom, int(time.time()), self._external)
        try:
            slots.write(self._path, ads)
        except OSError as error:
            log.failure("the slots' use of the network cannot be written", error, path=self._path)


def _attributes(headroom: Headroom) -> dict[str, float]:
    """The attributes of slots' ads that have the headroom."""
    kinds = (
        (slots.WAN, headroom.wan),
        (slots.TRANSFERS, headroom.transfers),
        (slots.TRANSFERS_AT, headroom.access_points),
    )
    return {slots.attribute(name, of): value for of, found in kinds for name, value in found.items()}


def _uptime(ticks: int) -> float:
    """A start in clock ticks since boot, on the clock that readings are timed by."""
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
