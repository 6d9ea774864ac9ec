"""The events that a database waits for: the ``ovs`` library's poller, without a poll of its own."""

from __future__ import annotations

import selectors
from typing import Any

from lark_controller.switches.ovsdb.library import timeval


class Waits:
    """The events that the library's ``wait`` methods wait for, in the place of ``ovs.poller.Poller``."""

    def __init__(self) -> None:
        self.events: dict[int, int] = {}
        self.milliseconds: int | None = None

    def fd_wait(self, fd: Any, events: int) -> None:
        """Wake when ``fd`` is ready; POLLIN is 1, and everything else is for writing."""
        number = fd if isinstance(fd, int) else fd.fileno()
        wanted = selectors.EVENT_READ if events & 1 else 0
        wanted |= selectors.EVENT_WRITE if events & ~1 else 0
        self.events[number] = self.events.get(number, 0) | wanted

    def timer_wait(self, milliseconds: int) -> None:
        """Wake after a time."""
        wanted = max(0, milliseconds)
        self.milliseconds = wanted if self.milliseconds is None else min(self.milliseconds, wanted)

    def timer_wait_until(self, at: int) -> None:
        """Wake at a time of ``ovs.timeval``."""
        self.timer_wait(at - timeval.msec())

    def immediate_wake(self) -> None:
        """Wake at once."""
        self.milliseconds = 0
