"""A job's counters, read where the kernel counts: at the outer end of the job's veth pair."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Final

from lark_common import log
from lark_worker.records.records import Record

_DEVICES: Final = Path("/sys/class/net")
# What the outer end receives, the job has sent.
_NAMES: Final = {
    "bytes_in": "tx_bytes",
    "bytes_out": "rx_bytes",
    "packets_in": "tx_packets",
    "packets_out": "rx_packets",
    "rate_drops_in": "tx_dropped",
    "rate_drops_out": "rx_dropped",
}
_WAIT: Final = 1.0


class DeviceCounters:
    """Reads the devices of jobs on the bridge. ``ovs_database`` is the address of the local Open vSwitch's."""

    def __init__(self, ovs_database: str) -> None:
        path = ovs_database.removeprefix("unix:")
        self._run_dir = Path(path).parent if path != ovs_database else None

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
            _push_statistics(self._run_dir)
        except (OSError, ValueError) as error:
            log.event("Open vSwitch did not bring its flows up to date", level=log.WARNING, error=error)


def _control_socket(run_dir: Path) -> Path:
    """The control socket of ovs-vswitchd, which has its process id in its name unless somebody chose another."""
    with contextlib.suppress(OSError):
        pid = (run_dir / "ovs-vswitchd.pid").read_text("ascii").strip()
        return run_dir / f"ovs-vswitchd.{pid}.ctl"
    return next(iter(run_dir.glob("*vswitchd*.ctl")), run_dir / "ovs-vswitchd.ctl")


def _push_statistics(run_dir: Path) -> None:
    """``ovs-appctl revalidator/wait`` (ovs-vswitchd(8)), without a process for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(_WAIT)
        control.connect(str(_control_socket(run_dir)))
        control.sendall(json.dumps({"id": 0, "method": "revalidator/wait", "params": []}).encode("ascii"))
        answer = b""
        while True:
            part = control.recv(4096)
            answer += part
            try:
                said = json.loads(answer)
            except ValueError:
                if not part:
                    raise
                continue
            if said.get("error") is not None:
                raise ValueError(str(said["error"]).strip())
            return
