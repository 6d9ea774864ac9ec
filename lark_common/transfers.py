"""The treatment of a job's transfers, as the controller hands it to the job's worker, and the worker's word on it.

Frozen values, and the JSON that stands for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# 100 Gb/s: what the policy takes, and what the kernel's limits can hold.
MOST_BITS: Final = 100_000_000_000
# The characters of a shared limit's name, and the shared limits of one job: its group's and its access point's.
MOST_NAME: Final = 1024
MOST_SHARED: Final = 2


@dataclass(frozen=True, slots=True, order=True)
class SharedRate:
    """A limit that all transfers of a worker with the same ``name`` and ``rate`` (bits a second, in each direction)
    share."""

    name: str
    rate: int

    def to_json(self) -> dict[str, Any]:
        """The limit as a JSON object."""
        return {"name": self.name, "rate": self.rate}


@dataclass(frozen=True, slots=True)
class Treatment:
    """The treatment of what HTCondor moves for a job, in the worker's own network.

    ``rate`` is the most of all its connections together in each direction, in bits a second of IP packets (None: no
    limit). ``dscp`` marks what leaves the worker (None: the packets keep their own). With ``block`` nothing passes.
    ``shared`` are limits that hold beside ``rate``, each together with other jobs of the worker.
    """

    rate: int | None = None
    dscp: int | None = None
    block: bool = False
    shared: tuple[SharedRate, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The treatment as a JSON object."""
        shared = [each.to_json() for each in self.shared]
        return {"rate": self.rate, "dscp": self.dscp, "block": self.block, "shared": shared}


UNTREATED: Final = Treatment()


def treatment_of(given: Mapping[str, Any]) -> Treatment:
    """The treatment out of a JSON object. Raises ValueError where it is not one of :meth:`Treatment.to_json`."""
    try:
        rate, dscp, block = given["rate"], given["dscp"], given["block"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a treatment of transfers: {error!r}") from None
    if not isinstance(block, bool):
        raise ValueError(f"block is {block!r}, and neither true nor false")
    # A release before this one has none.
    return Treatment(_number(rate, 1, MOST_BITS), _number(dscp, 0, 63), block, _shared(given.get("shared", [])))


def _shared(given: object) -> tuple[SharedRate, ...]:
    if not isinstance(given, list) or len(given) > MOST_SHARED:
        raise ValueError(f"{given!r:.99} is no list of at most {MOST_SHARED} shared limits")
    found = []
    for each in given:
        name, rate = (each.get("name"), each.get("rate")) if isinstance(each, dict) else (None, None)
        if not isinstance(name, str) or len(name) > MOST_NAME or (bits := _number(rate, 1, MOST_BITS)) is None:
            raise ValueError(f"{each!r:.99} is no shared limit, with its name and rate")
        found.append(SharedRate(name, bits))
    return tuple(found)


def _number(value: object, least: int, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{value!r} is not a number from {least} to {most}")
    return value
