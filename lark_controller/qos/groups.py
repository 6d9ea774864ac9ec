"""How a core switch treats each accounting group: by a queue that an administrator made, or by a meter. Pure.

Rates are Mb/s of L2 frame bytes, as queues and meters count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lark_controller.policies.model import GroupSpec, Policy

# Share of a second's worth of the rate that a meter lets through at once. Open vSwitch's own advice; with a tenth of
# a second's worth a single TCP stream reaches half of the rate.
METER_BURST: Final = 0.8


@dataclass(frozen=True, slots=True)
class Treatment:
    """A group on one switch: its packets' DSCP, and the queue or the meter (rate in kb/s, burst in kb) for them."""

    dscp: int
    queue: int | None = None
    rate: int | None = None
    burst: int = 0


def is_policed(group: GroupSpec) -> bool:
    """True for a group that needs a meter: it has a ceiling, and no queue that an administrator made."""
    return group.queue is None and group.ceiling is not None


def treatments(policy: Policy, max_meter: int) -> Iterator[Treatment]:
    """What a switch with ``max_meter`` meters (0: none) does for each group that it can do something for.

    Meters are numbered by DSCP. A group's burst is its own, or :data:`METER_BURST` of a second's worth.
    """
    for group in policy.groups:
        if group.queue is not None:
            yield Treatment(group.dscp, queue=group.queue)
        elif group.ceiling is not None and group.dscp <= max_meter:
            rate = round(group.ceiling * 1000)
            burst = rate * METER_BURST if group.burst is None else group.burst * 1000
            yield Treatment(group.dscp, rate=rate, burst=max(1, round(burst)))


def shortcomings(policy: Policy, max_meter: int) -> Iterator[str]:
    """The ceilings that a switch cannot enforce, in sentences for the operator."""
    for group in policy.groups:
        if is_policed(group) and group.dscp > max_meter:
            has = "no meters" if max_meter == 0 else f"only {max_meter} meters"
            yield (
                f"group {group.name}: ceiling {group.ceiling:g} Mb/s is not enforced, because this switch has {has}; "
                f"give the group a queue"
            )
