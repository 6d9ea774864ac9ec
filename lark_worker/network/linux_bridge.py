"""The outer end of a bridge job: a port of a Linux bridge, by ``ip`` and ``bridge`` (iproute2)."""

from __future__ import annotations

from pathlib import Path

from lark_worker.errors import NetworkError
from lark_worker.network.commands import ip_batch, run
from lark_worker.records.records import Record


def bridge_of(interface: str) -> str:
    """The Linux bridge that an interface has joined, or the interface itself where it has joined none: so a slot's ad
    may name the network card (BridgeInterface of the paper's Table II) as well as the bridge."""
    master = Path("/sys/class/net", interface, "master")
    if (master / "bridge").is_dir():
        return master.resolve().name
    return interface


def check(bridge: str, vlan: int | None) -> None:
    """Check that a job can be put on a bridge, in a VLAN of it. Raises NetworkError."""
    folder = Path("/sys/class/net", bridge, "bridge")
    if not folder.exists():
        raise NetworkError(f"{bridge} is no Linux bridge of this worker")
    filtering = folder / "vlan_filtering"
    if vlan is not None and (not filtering.exists() or filtering.read_text("ascii").strip() != "1"):
        raise NetworkError(f"VLAN {vlan}: bridge {bridge} does not filter VLANs (vlan_filtering)")


def attach(record: Record) -> None:
    """Make the job's device a port. The device is there and down. Raises NetworkError.

    The bridge learns no addresses from the port and floods no unicast to it; the job's own address is a static entry
    that no other port can take over. Of other flooded frames the packet filter passes those for the job.
    """
    check(record.bridge, record.vlan)
    port, vlan = record.port, record.vlan
    ip_batch([f"link set {port} master {record.bridge}"])
    run(["bridge", "link", "set", "dev", port, "learning", "off", "flood", "off"])
    here: list[str] = []
    if vlan is not None:
        # The port is in no VLAN but the job's.
        for number in _vlans(port):
            run(["bridge", "vlan", "del", "dev", port, "vid", str(number)])
        run(["bridge", "vlan", "add", "dev", port, "vid", str(vlan), "pvid", "untagged"])
        here = ["vlan", str(vlan)]
    run(["bridge", "fdb", "replace", record.mac, "dev", port, "master", "static", "sticky", *here])
    ip_batch([f"link set {port} up"])


def _vlans(port: str) -> list[int]:
    """The VLANs that a new port is in by the bridge's default (``vlan_default_pvid``)."""
    number = Path("/sys/class/net", port, "brport/bridge/bridge/default_pvid").read_text("ascii").strip()
    return [int(number)] if number not in ("", "0") else []
