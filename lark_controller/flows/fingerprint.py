"""Fingerprints of what edges should hold: equal only for equal programs, at a small part of the cost of building one.

A fingerprint is of all that an edge's program is calculated from: the code, the policy's own flows, the switch, its
jobs with their marks, the prefixes of their slices. So it may differ where the programs are equal, never the other way
round but by chance, one in 2 to the power of 64. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from lark_controller.flows.desired import Desired
from lark_controller.flows.placement import Placed, Switch

BITS: Final = 64


class Fingerprints:
    """The fingerprints of the edges of one desired state; ``code`` stands for the program that calculates flows."""

    def __init__(self, desired: Desired, code: bytes) -> None:
        self.desired = desired
        self._code = code
        self._of_policy: dict[bool, bytes] = {}

    def of(self, datapath: int, software: str = "", jobs: Iterable[Placed] | None = None) -> int:
        """The fingerprint of a known edge, with its jobs, or as if they were ``jobs``.

        ``software`` is the version of the switch's own: what it can do may change with it.

        Raises KeyError for an unknown switch.
        """
        desired = self.desired
        switch = desired.switches[datapath]
        found = blake2b(self._policy(switch.tracks), digest_size=BITS // 8)
        found.update(repr((software, *_frame(switch))).encode())
        present = desired.jobs_at(datapath) if jobs is None else jobs
        found.update(repr([_job(placed, desired) for placed in present]).encode())
        for key, tag in sorted(desired.tags_at(datapath).items(), key=lambda item: item[1]):
            found.update(tag.to_bytes(8) + desired.slice_digest(key))
        return int.from_bytes(found.digest())

    def _policy(self, tracks: bool) -> bytes:
        known = self._of_policy.get(tracks)
        if known is None:
            desired = self.desired
            parts = repr((desired.edge_rules(tracks), desired.networks)).encode()
            known = self._of_policy[tracks] = blake2b(self._code + parts).digest()
        return known


def _frame(switch: Switch) -> tuple[object, ...]:
    """The properties of an edge that flows depend on, but for its jobs' ports."""
    return switch.uplinks, switch.local_mac, switch.normal, switch.tracks


def _job(placed: Placed, desired: Desired) -> tuple[object, ...]:
    """The properties of a job that its own flows depend on, and the announcements to it."""
    job, decision = placed.job, placed.decision
    return (
        job.number, placed.port, placed.queue, placed.reserved, job.mac, job.ipv4, job.ipv6, job.vlan, job.address_type,
        decision.isolated, decision.accounted, decision.inbound, decision.outbound, decision.slice is None,
        None if placed.opened is None else placed.opened[:2], *desired.marks(placed),
    )  # fmt: skip
