"""Lost frames: what cables and connections count of them, inside the lab. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.run import run

DROPPED = re.compile(r"qdisc netem .*?dropped (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Losses:
    """Frames that cables ``dropped``, segments that connections sent ``again``, and ``timeouts`` for which they waited
    until they did."""

    dropped: int = 0
    again: int = 0
    timeouts: int = 0

    def since(self, before: Losses) -> Losses:
        """The losses since an earlier count."""
        return Losses(self.dropped - before.dropped, self.again - before.again, self.timeouts - before.timeouts)


NOTHING = Losses()


def lost(cables: Iterable[str], insides: Iterable[Sequence[str]]) -> Losses:
    """The counts of cables' schedulers, by device, and of namespaces' connections, by the command that enters one."""
    dropped = sum(dropped_by(run(["tc", "-s", "qdisc", "show", "dev", device]).stdout) for device in cables)
    counted = [counts(run([*inside, "cat", "/proc/net/snmp", "/proc/net/netstat"]).stdout) for inside in insides]
    return Losses(
        dropped,
        sum(each.get("Tcp.RetransSegs", 0) for each in counted),
        sum(each.get("TcpExt.TCPTimeouts", 0) for each in counted),
    )


def dropped_by(shown: str) -> int:
    """The packets that netem has dropped, of the output of ``tc -s qdisc show``."""
    found = DROPPED.search(shown)
    return int(found[1]) if found else 0


def counts(text: str) -> dict[str, int]:
    """The counters of ``/proc/net/snmp`` and ``/proc/net/netstat``: a line of names above each line of numbers."""
    found: dict[str, int] = {}
    lines = [line.split() for line in text.splitlines() if line]
    for names, numbers in zip(lines[::2], lines[1::2], strict=False):
        kind = names[0].rstrip(":")
        found |= {f"{kind}.{name}": int(number) for name, number in zip(names[1:], numbers[1:], strict=True)}
    return found
