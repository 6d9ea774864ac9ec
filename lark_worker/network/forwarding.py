"""Forwarding of IPv4 on the external interface: turned on while there are jobs behind NAT, where it was off."""

from __future__ import annotations

from pathlib import Path

from lark_common.systemd import boot_id


class Forwarding:
    """One interface's setting (``net.ipv4.conf.*.forwarding``), and a note on disk that Lark turned it on."""

    def __init__(self, state_dir: Path, interface: str) -> None:
        self._switch = Path("/proc/sys/net/ipv4/conf", interface, "forwarding")
        self._note = state_dir / "forwarding"
        self._mine = f"{boot_id()} {interface}"

    def take(self) -> None:
        """Turn it on; noted first where it was off."""
        if self._switch.exists() and self._switch.read_text("ascii").strip() == "0":
            self._note.write_text(self._mine, "utf-8")
            self._switch.write_text("1", "ascii")

    @property
    def taken(self) -> bool:
        """True where Lark turned it on, so that packets which are not jobs' are not to be forwarded."""
        return self._note.exists() and self._note.read_text("utf-8") == self._mine

    def give_back(self) -> None:
        """Turn it off where Lark turned it on."""
        if self.taken and self._switch.exists():
            self._switch.write_text("0", "ascii")
        self._note.unlink(missing_ok=True)
