"""The kinds of counting flows."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The traffic that a job's counting flow counts. The number is part of the flow's cookie."""

    WAN_OUT = 0
    WAN_IN = 1
    WAN_IN_IPV6 = 2
    DROP_OUT = 3
    DROP_IN = 4
    DROP_IN_IPV6 = 5
