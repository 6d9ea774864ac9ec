"""External addresses as a policy has them: pools, where they are, and rules. Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from lark_common.runs import Address, Network
from lark_controller.jobs.external import Opening
from lark_controller.jobs.external_names import NameForm


class WithoutExternal(StrEnum):
    """The fate of a job that asks for an external address in its ad and cannot have one: ``hold``, back to ``idle``, or
    ``run`` without."""

    HOLD = "hold"
    IDLE = "idle"
    RUN = "run"


# The pool's name where a job's own IPv6 address is opened.
OWN_POOL: Final = "own"


@dataclass(frozen=True, slots=True)
class ExternalRule:
    """The external addresses of the jobs for which ``when`` is true: from which pool, with which openings, how many for
    each user and each group (None: no limit), for how many seconds (None: as long as the job lives), and with which
    ``names`` in the DNS (None: without).

    With ``more_pools`` it is the first of all that is where the job's traffic leaves. Of ``family`` 6 it is the job's
    own address that is opened, and ``pool`` is :data:`OWN_POOL`.
    """

    position: int
    line: int
    pool: str
    openings: tuple[Opening, ...]
    when: str | None = None
    per_user: int = 1
    per_group: int | None = None
    seconds: float | None = None
    family: int = 4
    more_pools: tuple[str, ...] = ()
    names: NameForm | None = None


class PoolPlace(NamedTuple):
    """The way in to a pool's addresses from outside: a WAN port's name, and a core switch's (None: any)."""

    port: str | None = None
    switch: str | None = None


@dataclass(frozen=True, slots=True)
class ExternalSpec:
    """External addresses: the pools by name, the rules in order, and the seconds that an address rests between two
    jobs. ``places`` has the pools that are not at every WAN port, ``zones`` those of names, with the seconds that
    others keep a name."""

    pools: Mapping[str, tuple[Network, ...]]
    rules: tuple[ExternalRule, ...]
    quarantine: float
    refused: WithoutExternal = WithoutExternal.HOLD
    places: Mapping[str, PoolPlace] = field(default_factory=lambda: MappingProxyType({}))
    zones: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def place(self, address: Address) -> PoolPlace:
        """The place of the pool of an address."""
        for name, place in self.places.items():
            if any(address in network for network in self.pools[name]):
                return place
        return PoolPlace()

    @property
    def opens(self) -> bool:
        """True where a rule opens jobs' own IPv6 addresses."""
        return any(rule.family == 6 for rule in self.rules)
