"""The contents of a switch as it shows them: a dump, and the digest of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from lark_controller.flows import cookies
from lark_controller.flows.cookies import Category
from lark_controller.flows.model import FlowData, FlowKey, Meter, Program
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import MULTIPART_BODY

T = TypeVar("T")

# Where a record of flow statistics (OpenFlow 1.3.5, section 7.3.5.2) has its table, its durations, its priority, its
# counters and its match. The cookie is the last that stands before the counters, and begins with owner and category.
_TABLE: Final = 2
_DURATIONS: Final = 4
_PRIORITY: Final = 12
_COOKIE: Final = 24
_COUNTERS: Final = 32
_MATCH: Final = 48
_SHORTEST: Final = 56
# Cookies of flows that are in no program begin so: answers to PacketIns, learned addresses, markers.
_PASSING: Final = frozenset(
    cookies.cookie(category).to_bytes(8)[:3] for category in (Category.REACTIVE, Category.LEARNED, Category.MARKER)
)
_MARKER: Final = cookies.cookie(Category.MARKER).to_bytes(8)[:3]
_OWNER: Final = cookies.OWNER_TAG.to_bytes(2)


@dataclass(frozen=True, slots=True)
class Dump:
    """All that a switch holds: Lark's own flows and the meters, the flows of others, and packets and bytes of each.

    Meters carry no cookie, so all of them are taken for Lark's. ``whole`` is False where the switch holds more than is
    kept of a dump.
    """

    program: Program = field(default_factory=Program)
    foreign: Mapping[FlowKey, FlowData] = field(default_factory=lambda: MappingProxyType({}))
    counters: Mapping[FlowKey, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    whole: bool = True


class Held(NamedTuple):
    """A digest of a switch's contents; equal for equal flows and meters in whatever order they came, within one process
    and but for chance, one in 2 to the power of 64."""

    flows: int
    digest: int
    meters: frozenset[Meter]


class FlowDigest:
    """Adds up the digest of a dump, part by part: Lark's own flows without counters and durations, and without those
    that are in no program. To decode the same flows takes fifteen times as long. ``marked``: it has a marker."""

    def __init__(self) -> None:
        self.marked = False
        self._flows = 0
        self._sum = 0

    def read(self, message: bytes) -> list[int]:
        """Take one part of an OFPMP_FLOW reply; returns a number for each flow. Raises WireError."""
        found: list[int] = []
        position, size = MULTIPART_BODY, len(message)
        while position < size:
            after = position + int.from_bytes(message[position : position + 2])
            if after > size or after - position < _SHORTEST:
                raise WireError(f"flow statistics record of {after - position} bytes in {size - position}")
            begins = message[position + _COOKIE : position + _COOKIE + 3]
            if begins not in _PASSING and begins.startswith(_OWNER):
                found.append(
                    hash(
                        message[position + _TABLE : position + _DURATIONS]
                        + message[position + _PRIORITY : position + _COUNTERS]
                        + message[position + _MATCH : after]
                    )
                )
            elif begins == _MARKER:
                self.marked = True
            position = after
        self._flows += len(found)
        self._sum += sum(found)
        return found

    def beside(self, decode: Callable[[bytes], list[T]]) -> Callable[[bytes], list[T]]:
        """A decoder that takes each part for the digest, too."""

        def both(message: bytes) -> list[T]:
            records = decode(message)
            self.read(message)
            return records

        return both

    def held(self, meters: Iterable[Meter]) -> Held:
        """The digest, with the meters of the same switch."""
        return Held(self._flows, self._sum, frozenset(meters))
