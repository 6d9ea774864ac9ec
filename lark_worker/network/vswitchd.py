"""Questions to the local ovs-vswitchd as ``ovs-appctl`` asks them, without a process for each."""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from typing import Any

# More than the largest table of connections that a worker may track takes as text.
_MOST = 256 << 20


def run_dir(ovs_database: str) -> Path | None:
    """The directory of Open vSwitch's sockets, None where its database is on another machine."""
    path = ovs_database.removeprefix("unix:")
    return Path(path).parent if path != ovs_database else None


def ask(directory: Path, method: str, *params: str, timeout: float = 1.0) -> str:
    """The answer of ovs-vswitchd to a command. Raises OSError, and ValueError where it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(timeout)
        control.connect(str(_control_socket(directory)))
        control.sendall(json.dumps({"id": 0, "method": method, "params": params}).encode("ascii"))
        answer = bytearray()
        while len(answer) < _MOST:
            part = control.recv(1 << 20)
            answer += part
            # An answer may be long, so it is read only where it may be at its end.
            if part and not part.endswith(b"}"):
                continue
            try:
                reply: Any = json.loads(answer)
            except ValueError:
                if not part:
                    raise
                continue
            if reply.get("error") is not None:
                raise ValueError(str(reply["error"]).strip())
            return str(reply.get("result") or "")
        raise ValueError(f"ovs-vswitchd answers {method} by more than {_MOST} bytes")


def _control_socket(directory: Path) -> Path:
    """The control socket of ovs-vswitchd, which has its process id in its name unless somebody chose another."""
    with contextlib.suppress(OSError):
        pid = (directory / "ovs-vswitchd.pid").read_text("ascii").strip()
        return directory / f"ovs-vswitchd.{pid}.ctl"
    return next(iter(directory.glob("*vswitchd*.ctl")), directory / "ovs-vswitchd.ctl")
