"""SciTags: experiment and activity of a job's flows, receivers of reports, and the bits of an IPv6 flow label.

The values follow the SciTags technical specification. Frozen, with the JSON by which a worker gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lark_common.runs import Network

# The port of fireflies (UDP), at a flow's destination and at collectors.
PORT: Final = 10514
# The numbers that fit into a flow label: 9 and 6 bits. 0 is no experiment, and no activity.
MOST_EXPERIMENT: Final = (1 << 9) - 1
MOST_ACTIVITY: Final = (1 << 6) - 1
# The bits of a flow label that are the mark's; the five others belong to the sender's entropy.
LABEL_MASK: Final = 0x3FEFC
_EXPERIMENT_AT: Final = 9
_ACTIVITY_AT: Final = 2


class Scitag(NamedTuple):
    """An experiment (1 to 511) and one of its activities (1 to 63), by their numbers in the registry."""

    experiment: int
    activity: int

    @property
    def label(self) -> int:
        """The mark's bits of an IPv6 flow label; those outside of :data:`LABEL_MASK` are 0.

        The experiment is written with its lowest bit first, so that small numbers leave the label's high bits even.
        """
        reversed_ = int(f"{self.experiment:09b}"[::-1], 2)
        return reversed_ << _EXPERIMENT_AT | self.activity << _ACTIVITY_AT


@dataclass(frozen=True, slots=True)
class Collector:
    """A host (name or address) that collects fireflies, and its UDP port."""

    host: str
    port: int = PORT


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of some jobs of a worker, and the receivers of reports of their flows.

    ``jobs`` has None for a job without a mark, and lacks those that are unknown. ``destinations`` is true where the
    other end of a flow is a receiver. Flows to ``silent`` networks are not reported. ``ongoing`` is the seconds between
    two messages of a flow that goes on, 0 for none. ``labels``: IPv6 packets are marked. ``own``: all this is for
    what jobs send themselves, too. ``revision`` changes with policy and registry.
    """

    revision: str
    collectors: tuple[Collector, ...] = ()
    destinations: bool = False
    silent: tuple[Network, ...] = ()
    ongoing: int = 0
    labels: bool = False
    jobs: Mapping[str, Scitag | None] = field(default_factory=lambda: MappingProxyType({}))
    own: bool = False


def to_json(marks: Marks) -> dict[str, Any]:
    """The marks as a JSON object."""
    return {
        "revision": marks.revision,
        "collectors": [{"host": each.host, "port": each.port} for each in marks.collectors],
        "destinations": marks.destinations,
        "silent": [str(network) for network in marks.silent],
        "ongoing": marks.ongoing,
        "labels": marks.labels,
        "own": marks.own,
        "jobs": [
            {"job": job, "experiment": mark and mark.experiment, "activity": mark and mark.activity}
            for job, mark in marks.jobs.items()
        ],
    }


def from_json(given: Mapping[str, Any]) -> Marks:
    """The marks out of a JSON object. Raises ValueError where it is not one of :func:`to_json`."""
    try:
        return Marks(
            _text(given["revision"]),
            tuple(Collector(_text(each["host"]), _number(each["port"], 1, 65535)) for each in given["collectors"]),
            given["destinations"] is True,
            tuple(map(ip_network, given["silent"])),
            _number(given["ongoing"], 0, 86400),
            given["labels"] is True,
            {_text(each["job"]): _scitag(each) for each in given["jobs"]},
            # An earlier controller does not say it.
            given.get("own") is True,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the marks of jobs: {error!r}") from None


def _scitag(given: Mapping[str, Any]) -> Scitag | None:
    if given["experiment"] is None:
        return None
    return Scitag(_number(given["experiment"], 1, MOST_EXPERIMENT), _number(given["activity"], 1, MOST_ACTIVITY))


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise ValueError(f"{value!r:.99} is no short text")
    return value


def _number(value: object, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r:.99} is no number from {low} to {high}")
    return value
