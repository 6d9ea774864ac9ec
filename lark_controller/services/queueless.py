"""The jobs that hold bandwidth of a link and have no queue: who is refused for want of it is told.

Such a job is pending and keeps what it was promised: once its switch makes queues, it has it, and nobody else does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from lark_common.errors import AdmissionError, CapacityError
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy
from lark_controller.qos.booking import promise
from lark_controller.qos.topology import Topology
from lark_controller.services.feed import Feed

# Seconds that a count holds: where the network is full, job after job may be refused.
_SECONDS: Final = 10.0
# Jobs that are counted.
_MOST: Final = 1_000


class Queueless:
    """The live jobs without the queues that they were promised, by what they hold."""

    def __init__(self, feed: Feed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self._until = 0.0
        # By a channel's key and the reason, without the names of switches.
        self._counts: dict[str, Counter[str]] = {}

    def explained(self, error: AdmissionError, policy: Policy | None, topology: Topology | None) -> AdmissionError:
        """The error, one for want of room with a sentence on such jobs at the links that are short."""
        if policy is None or topology is None or not isinstance(error, CapacityError):
            return error
        self._count(policy, topology)
        said = []
        for short in error.shortages:
            for why, count in self._counts.get(short.channel, Counter()).most_common(1):
                jobs = "1 pending job has" if count == 1 else f"{count} pending jobs have"
                said.append(f"of link {short.link} {jobs} a part reserved, and no queue: {why}")
        return CapacityError(error.what, error.shortages, tuple(dict.fromkeys(said)))

    def _count(self, policy: Policy, topology: Topology) -> None:
        directory, now = self._feed.directory, self._clock()
        if not directory.queueless:
            self._counts = {}
            return
        if now < self._until:
            return
        self._until = now + _SECONDS
        counts: dict[str, Counter[str]] = {}
        decide, left = Decider(policy).decide, _MOST
        for job in self._feed.live():
            if (why := directory.queueless.get(job.number)) is None:
                continue
            booking = promise(job, policy, topology, decide)
            for channel, _ in () if booking is None else booking.demand:
                counts.setdefault(channel.key, Counter())[why] += 1
            left -= 1
            if not left:
                break
        self._counts = counts
