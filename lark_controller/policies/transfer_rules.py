"""The values of the policy about transfers: its rules, and the section ``transfer_capacity``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True)
class TransferRule:
    """The treatment of what HTCondor moves for a job on its worker, outside of the job's network.

    ``group`` is the one whose mark the packets have (None: the job's own), ``rate`` the most of all connections
    together in each direction, Mb/s of IP packets (None: no limit). With ``block`` nothing passes. ``group_rate`` and
    ``access_point_rate`` are the most of all transfers of that group, and of that access point, on one worker.
    ``port`` is the WAN port by which they leave the site (None: as everything else does).
    """

    position: int
    line: int
    when: str | None = None
    group: str | None = None
    rate: float | None = None
    block: bool = False
    group_rate: float | None = None
    access_point_rate: float | None = None
    port: str | None = None


class TransferMark(NamedTuple):
    """The DSCP that stands for both the group and the WAN port of transfers: a core sees no more of them. ``group`` is
    ``""`` for transfers in none; ``line`` is that of the first rule that has the port."""

    group: str
    port: str
    dscp: int
    line: int


@dataclass(frozen=True, slots=True)
class TransferCapacity:
    """The rate, in Mb/s, that the site has for what HTCondor moves, for jobs of groups of the policy and of access
    points (names in lower case)."""

    groups: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    access_points: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


NO_CAPACITY: Final = TransferCapacity()
