"""What the reconcile loop knows of one switch, connected or not."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lark_controller.flows.pool import Pool
from lark_controller.jobs import Address
from lark_controller.openflow.link import SwitchLink
from lark_controller.status import SwitchProblem

KEPT_PROBLEMS = 100


def dpid_text(datapath: int) -> str:
    """A datapath id as 16 hexadecimal digits."""
    return f"{datapath:016x}"


@dataclass(slots=True)
class SwitchState:
    """What the loop knows of one switch, connected or not.

    ``told`` is True once the complete dump was compared, so that changes may follow. ``to_forget`` are addresses of
    jobs that ended while it was away, whose connections it still tracks.
    """

    datapath: int
    link: SwitchLink | None = None
    told: bool = False
    in_sync: bool = False
    since: float | None = None
    reason: str = "has not connected yet"
    address: str = ""
    description: str = ""
    installed: int = 0
    drift: int = 0
    packet_ins: int = 0
    to_forget: set[Address] = field(default_factory=set)
    problems: deque[SwitchProblem] = field(default_factory=lambda: deque(maxlen=KEPT_PROBLEMS))

    def label(self, pool: Pool) -> str:
        """The switch's name if it has one, else its datapath id."""
        switch = pool.switches.get(self.datapath)
        spec = pool.policy.switches.get(self.datapath)
        return spec.name if spec is not None else switch.name if switch is not None else dpid_text(self.datapath)
