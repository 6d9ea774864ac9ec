"""A job's counters, read where the kernel counts: at the outer end of the job's veth pair."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lark_common import log
from lark_worker.network.vswitchd import ask, run_dir
from lark_worker.records.records import Record

_DEVICES: Final = Path("/sys/class/net")
# The outer end receives the packets that the job sends.
_NAMES: Final = {
    "bytes_in": "tx_bytes",
    "bytes_out": "rx_bytes",
    "packets_in": "tx_packets",
    "packets_out": "rx_packets",
    "rate_drops_in": "tx_dropped",
    "rate_drops_out": "rx_dropped",
}


class DeviceCounters:
    """Reads the devices of jobs on the bridge. ``ovs_database`` is the address of the local Open vSwitch's."""

    def __init__(self, ovs_database: str) -> None:
        self._run_dir = run_dir(ovs_database)

    def last(self, record: Record) -> dict[str, int]:
        """A job's counters since its start, by the controller's names, once nothing runs in it any more; empty where
        its device cannot be read. The controller's last reading of its flows is complete then, too."""
        folder = _DEVICES / record.port / "statistics"
        try:
            found = {name: int((folder / file).read_text("ascii")) for name, file in _NAMES.items()}
        except (OSError, ValueError) as error:
            log.event("the last counters of a job are unknown", level=log.WARNING, job=record.id, error=error)
            return {}
        self.push_statistics()
        return found

    def push_statistics(self) -> None:
        """Wait until Open vSwitch's flows have the datapath's counts of now.

        Open vSwitch brings them up to date twice a second; its answer comes after the next time.
        """
        if self._run_dir is None:
            return
        try:
            ask(self._run_dir, "revalidator/wait")
        except (OSError, ValueError) as error:
            log.event("Open vSwitch did not bring its flows up to date", level=log.WARNING, error=error)
