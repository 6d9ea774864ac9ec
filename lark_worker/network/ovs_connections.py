"""The connections that Open vSwitch tracks for one-way jobs: bounded for all, and no job has them to itself.

All one-way jobs of a worker share a zone, because a packet between two of them must belong to one connection, and Open
vSwitch limits zones alone. So a zone takes so many connections in all, which leaves room for the machine's own; and
while it is more than half full, a job that has more than its part loses all of its own.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_interface
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_worker.errors import AwayError, RefusedError
from lark_worker.network.vswitchd import ask, run_dir
from lark_worker.records.records import Record

# Seconds between looks while there are such jobs; at 10,000 connections a second a zone takes longer to fill.
_SECONDS: Final = 1.0
_TIMEOUT: Final = 10.0
_REPORT_SECONDS: Final = 60.0
# The zone of echo and the like, which are short, has this part of the limit.
_OTHERS: Final = 8
_TCP, _UDP = 6, 17
_LIMIT: Final = re.compile(r"^zone=(\d+),limit=(\d+),count=(\d+)$", re.MULTILINE)
_ORIGIN: Final = re.compile(r"^\w+,orig=\(src=([^,]+),dst=([^,]+),", re.MULTILINE)


class OvsConnections:
    """Looks after the zones on a thread of its own. ``total`` connections are tracked at most (0: any number), and a
    job has ``most`` of them while they are short; ``report`` is called with the id of a job that loses its own."""

    def __init__(
        self,
        ovs_database: str,
        records: Callable[[], tuple[Record, ...]],
        most: int,
        total: int,
        report: Callable[[str, str], None] = lambda job, text: None,
    ) -> None:
        self._directory = run_dir(ovs_database)
        self._records = records
        self._most = most
        self._limits = {CT_ZONE: total, CT_ZONE_OTHERS: max(1, total // _OTHERS)}
        self._report = report
        # When each job's loss was reported last.
        self._reported_at: dict[str, float] = {}
        self._wrong = ""
        self._thread = StoppableThread("ovs connections", self._run)

    def start(self) -> None:
        """Begin."""
        if self._directory is not None and self._limits[CT_ZONE]:
            self._thread.start()

    def stop(self) -> None:
        """Look no more; the limits stay."""
        self._thread.stop()

    def look(self) -> None:
        """Set the limits where they are not set, and let jobs that have too many connections lose theirs.

        Raises OSError, ValueError.
        """
        jobs = {
            ip_interface(address).ip: record.id
            for record in self._records()
            if record.network_type == "ovs_bridge" and not record.over
            for address in record.addresses
        }
        if jobs:
            datapaths = self._ask("dump-dps").split()
            for datapath in datapaths:
                # Open vSwitch 3.1.0 takes the datapath's name for an address to flush, but needs none where it has one.
                named = () if len(datapaths) == 1 else (datapath,)
                self._bound(named, {str(address): job for address, job in jobs.items()})

    def _bound(self, datapath: tuple[str, ...], jobs: dict[str, str]) -> None:
        zones = ",".join(map(str, self._limits))
        shown = _LIMIT.findall(self._ask("ct-get-limits", *datapath, f"zone={zones}"))
        found = {int(zone): (int(limit), int(count)) for zone, limit, count in shown}
        wrong = [zone for zone, limit in self._limits.items() if found.get(zone, (0, 0))[0] != limit]
        if wrong:
            # A switch that starts again has forgotten them.
            self._ask("ct-set-limits", *datapath, *(f"zone={zone},limit={self._limits[zone]}" for zone in wrong))
        if found.get(CT_ZONE_OTHERS, (0, 0))[1] > self._limits[CT_ZONE_OTHERS] // 2:
            self._ask("flush-conntrack", *datapath, f"zone={CT_ZONE_OTHERS}")
        if found.get(CT_ZONE, (0, 0))[1] > self._limits[CT_ZONE] // 2:
            lost: dict[str, int] = {}
            for address, count in too_many(self._ask("dump-conntrack", *datapath, f"zone={CT_ZONE}"), jobs, self._most):
                log.event(
                    "a job has too many connections and loses them",
                    level=log.WARNING,
                    job=jobs[address],
                    address=address,
                    connections=count,
                )
                self._forget(datapath, address)
                lost[jobs[address]] = lost.get(jobs[address], 0) + count
            self._report_losses(lost)

    def _report_losses(self, lost: dict[str, int]) -> None:
        """Report each job's loss, and not again for a while: such a job loses its connections every second."""
        now = time.monotonic()
        self._reported_at = {job: at for job, at in self._reported_at.items() if now - at < _REPORT_SECONDS}
        for job, count in lost.items():
            if job in self._reported_at:
                continue
            self._reported_at[job] = now
            text = f"too many connections at the switch (at most {self._most} while they are short): lost {count}"
            try:
                self._report(job, text)
            except (AwayError, RefusedError) as error:
                log.event("a job's limit is not noted", level=log.WARNING, job=job, reason=error)

    def _forget(self, datapath: tuple[str, ...], address: str) -> None:
        family = "ct_nw" if ip_address(address).version == 4 else "ct_ipv6"
        for end in ("src", "dst"):
            for protocol in (_TCP, _UDP):
                # Open vSwitch 3.1.0 aborts where the protocol is not named and a connection of ICMP is found.
                self._ask(
                    "flush-conntrack", *datapath, f"zone={CT_ZONE}", f"{family}_{end}={address},ct_nw_proto={protocol}"
                )

    def _ask(self, command: str, *params: str) -> str:
        assert self._directory is not None
        return ask(self._directory, f"dpctl/{command}", *params, timeout=_TIMEOUT)

    def _run(self) -> None:
        while not self._thread.pause(_SECONDS):
            try:
                self.look()
                self._wrong = ""
            except Exception as error:  # the next look may do better
                if str(error) != self._wrong:
                    self._wrong = str(error)
                    log.event("Open vSwitch's connections are not bounded", level=log.WARNING, error=error)


def too_many(dumped: str, jobs: Iterable[str], most: int) -> list[tuple[str, int]]:
    """The addresses of jobs with more than ``most`` connections in a dump, and how many, the most first.

    One between two jobs is the one's that opened it.
    """
    known = set(jobs)
    counted: Counter[str] = Counter()
    for source, destination in _ORIGIN.findall(dumped):
        whose = source if source in known else destination
        if whose in known:
            counted[whose] += 1
    return [(address, count) for address, count in counted.most_common() if count > most]
