"""The counts of a job at switches and workers. Frozen values."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class PortReading(NamedTuple):
    """A port's counters; ``rx`` is what the job sent, ``tx`` what was handed to it."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    rx_dropped: int = 0
    tx_dropped: int = 0


class QueueReading(NamedTuple):
    """The drops (packets) of a job's own queues, and the time for which packets waited in them (milliseconds)."""

    dropped_in: int = 0
    dropped_out: int = 0
    waited_in: int = 0
    waited_out: int = 0


class FlowQueue(NamedTuple):
    """The counts of a queue of one reserved flow: bytes that left it, packets that it dropped, and the time for which
    packets waited in it (milliseconds). None where a reading lacks a count."""

    sent: int
    dropped: int | None = 0
    waited: int | None = 0


class CountKind(IntEnum):
    """The traffic that a job's counting flow counts. The number stands in the flow's cookie."""

    WAN_OUT = 0
    WAN_IN = 1
    WAN_IN_IPV6 = 2
    DROP_OUT = 3
    DROP_IN = 4
    DROP_IN_IPV6 = 5


class FlowReading(NamedTuple):
    """A counting flow's counters."""

    kind: int
    packets: int
    bytes: int


class TransferCounts(NamedTuple):
    """The counts of a job's transfers since the job's start, as its worker has them.

    Bytes of payload towards the worker and from it, the WAN's part of them, and the milliseconds in which there was a
    transfer."""

    bytes_in: int
    bytes_out: int
    wan_bytes_in: int
    wan_bytes_out: int
    millis: int


class WorkerCounts(NamedTuple):
    """A worker's counts of a job since the job's start; None where it cannot tell.

    All that is new since its last report came in the last ``new_within`` seconds (None: since that report): a worker
    does not report what is the same. The next report of counts that go on follows in ``interval`` seconds (None: a
    worker of an earlier release does not say).
    """

    port: PortReading
    wan: tuple[int, int, int, int] | None = None  # bytes in, bytes out, packets in, packets out
    policy_drops: tuple[int, int] | None = None  # packets in, packets out
    queues: QueueReading | None = None
    new_within: float | None = None
    interval: float | None = None
