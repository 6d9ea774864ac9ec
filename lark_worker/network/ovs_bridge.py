"""The worker's Open vSwitch bridge: its ports, datapath id and datapath type, by ``ovs-vsctl``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lark_worker.errors import NetworkError
from lark_worker.network.commands import run


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge of an Open vSwitch, by name and the database's address (``unix:/run/openvswitch/db.sock``)."""

    name: str
    database: str

    def datapath_id(self) -> str:
        """Its OpenFlow datapath id, 16 hexadecimal digits. Raises NetworkError."""
        get = ("get", "bridge", self.name, "datapath_id")
        shown = self._vsctl("wait-until", "bridge", self.name, "datapath_id!=[]", "--", *get).strip().strip('"')
        if len(shown) != 16:
            raise NetworkError(f"bridge {self.name} has no datapath id: is ovs-vswitchd running?")
        return shown

    def is_userspace(self) -> bool:
        """True if the bridge has OVS's userspace datapath, which does not complete checksums left to a device."""
        return "netdev" in self._vsctl("get", "bridge", self.name, "datapath_type")

    def add_port(self, port: str, job_id: str) -> str:
        """Attach a device, without VLAN tag (the controller's flows tag); returns the bridge's datapath id.

        The database keeps the port over a restart; the sweep at the service's start removes leftovers. Raises
        NetworkError where OVS cannot use the device.
        """
        # ovs-vsctl waits for Open vSwitch, and prints on standard error where a device could not be used.
        # One process, as each costs some milliseconds of the job's start.
        output = self._vsctl(
            "--may-exist", "add-port", self.name, port, "--",
            "set", "interface", port, f"external_ids:lark-job={job_id}", "--",
            "get", "bridge", self.name, "datapath_id",
            complaints=True,
        )  # fmt: skip
        if port in output:
            raise NetworkError(f"port {port} of {self.name}: Open vSwitch cannot use this device")
        return output.strip().strip('"')

    def del_ports(self, ports: list[str]) -> None:
        """Detach devices, as far as they are there."""
        command: list[str] = []
        for port in ports:
            command += ["--", "--if-exists", "del-port", self.name, port]
        if command:
            self._vsctl(*command[1:])

    def job_ports(self, prefix: str) -> list[str]:
        """Names of the ports of this bridge that were made for jobs and begin with ``prefix``."""
        mine = set(self._vsctl("list-ports", self.name).split())
        shown: dict[str, Any] = json.loads(
            self._vsctl("--format=json", "--columns=name,external_ids", "list", "interface")
        )
        return [
            name
            for name, (_, ids) in shown["data"]
            if name in mine and name.startswith(prefix) and any(key == "lark-job" for key, _ in ids)
        ]

    def _vsctl(self, *arguments: str, complaints: bool = False) -> str:
        return run(["ovs-vsctl", "--timeout=15", f"--db={self.database}", *arguments], complaints=complaints)
