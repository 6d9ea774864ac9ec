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


@dataclass(frozen=True, slots=True)
class TransferTerms:
    """The terms of a job's transfers: the group that they are in (``""``: none), and the rest as in
    :class:`TransferRule`."""

    group: str = ""
    rate: float | None = None
    block: bool = False
    group_rate: float | None = None
    access_point_rate: float | None = None
    port: str | None = None

    @property
    def words(self) -> str:
        """The terms in words, for plans and tables: ``at most 100 Mb/s, group cms, WAN port wan-fast``."""
        if self.block:
            return "blocked"
        shares = (("its group", self.group_rate), ("its access point", self.access_point_rate))
        limits = [] if self.rate is None else [f"at most {self.rate:g} Mb/s"]
        limits += [f"at most {rate:g} Mb/s with {other} on the worker" for other, rate in shares if rate is not None]
        group = [f"group {self.group}"] if self.group else []
        port = [f"WAN port {self.port}"] if self.port else []
        return ", ".join([*(limits or ["no limit"]), *group, *port])


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
