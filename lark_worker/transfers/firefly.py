"""Fireflies: the datagrams by which science networks learn whose a flow is (SciTags technical specification).

Pure. A datagram is a syslog message (RFC 5424) with a JSON object. It has addresses and ports, bytes, times, experiment
and activity, and nothing else: neither job, user, file nor host name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from lark_common.scitags import Scitag
from lark_worker.transfers.inet_diag import Connection

# Facility local0, severity informational; no host name, process or structured data.
_HEADER: Final = "<134>1 {time} - lark - firefly-json - "
_APPLICATION: Final = "lark"


class State(StrEnum):
    """A flow's state in a firefly."""

    START = "start"
    ONGOING = "ongoing"
    END = "end"


@dataclass(frozen=True, slots=True)
class Times:
    """A flow's begin, the present, and its end (None: it goes on): seconds since 1970."""

    start: float
    now: float
    end: float | None = None


def datagram(state: State, mark: Scitag, connection: Connection, times: Times) -> bytes:
    """A firefly: a flow with its bytes so far, as the worker sends and receives them."""
    lifecycle = {"state": state, "start-time": _time(times.start), "current-time": _time(times.now)}
    if state is State.END:
        lifecycle["end-time"] = _time(times.now if times.end is None else times.end)
    content = {
        "version": 1,
        "flow-lifecycle": lifecycle,
        "flow-id": {
            "afi": f"ipv{connection.remote.version}",
            "src-ip": str(connection.local),
            "dst-ip": str(connection.remote),
            "protocol": "tcp",
            "src-port": connection.ports[0],
            "dst-port": connection.ports[1],
        },
        "usage": {"received": connection.received, "sent": connection.sent},
        "context": {
            "experiment-id": mark.experiment,
            "activity-id": mark.activity,
            "application": _APPLICATION,
        },
    }
    return (_HEADER.format(time=_time(times.now)) + json.dumps(content)).encode("ascii")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
