"""The ports of a switch by number, in little memory: thousands of switches have hundreds each."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from dataclasses import fields, make_dataclass
from operator import attrgetter
from typing import Any, Final

from lark_controller.switches.openflow.replies import PortInfo

_MAC: Final = 6
_UP: Final = 1
_NO_FLOOD: Final = 2
_LIVE: Final = 4
# The values of a port before it is one: a frozen value sets each of its own by a call.
_Column: Final = make_dataclass("_Column", [each.name for each in fields(PortInfo)], slots=True)


class Ports(Mapping[int, PortInfo]):
    """The ports of a switch by number, in this order.

    They are kept in columns, at 25 bytes a port, where a dictionary of values takes nine times as much. Each is made
    when it is asked for; what is needed of all, again and again, comes from the columns.
    """

    __slots__ = ("_flags", "_macs", "_names", "_numbers", "_speeds")

    def __init__(self, ports: Iterable[PortInfo] = ()) -> None:
        # Of two with one number the last one counts.
        found = sorted({port.number: port for port in ports}.values(), key=attrgetter("number"))
        self._numbers = array("I", [port.number for port in found])
        self._names = tuple(port.name for port in found)
        self._macs = bytes.fromhex("".join(port.mac for port in found).replace(":", ""))
        self._flags = bytes([port.up | port.no_flood << 1 | port.live << 2 for port in found])
        self._speeds = array("I", [port.speed for port in found])

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._place(number) is not None

    def __getitem__(self, number: int) -> PortInfo:
        place = self._place(number)
        if place is None:
            raise KeyError(number)
        return next(self._from(place, place + 1))

    def values(self) -> ValuesView[PortInfo]:
        """All ports."""
        return _Values(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all ports."""
        return self._names

    def numbers(self) -> dict[str, int]:
        """The number of each name."""
        return dict(zip(self._names, self._numbers, strict=True))

    def speeds(self) -> dict[int, int]:
        """The speeds that are known, by number."""
        return {number: speed for number, speed in zip(self._numbers, self._speeds, strict=True) if speed}

    def down(self) -> set[int]:
        """The numbers of the ports that are not up. Where a switch marks live ports as such, a port without the mark is
        not live."""
        needed = _UP | _LIVE if any(each & _LIVE for each in self._flags) else _UP
        found = zip(self._numbers, self._flags, strict=True)
        return {number for number, flags in found if flags & needed != needed}

    def _place(self, number: int) -> int | None:
        place = bisect_left(self._numbers, number)
        return place if place < len(self._numbers) and self._numbers[place] == number else None

    def _from(self, first: int, end: int) -> Iterator[PortInfo]:
        for place in range(first, end):
            flags, mac = self._flags[place], self._macs[place * _MAC : place * _MAC + _MAC].hex(":")
            up, no_flood, live = bool(flags & _UP), bool(flags & _NO_FLOOD), bool(flags & _LIVE)
            yield _port_of(self._numbers[place], self._names[place], mac, up, no_flood, self._speeds[place], live)


def _port_of(*values: Any) -> PortInfo:
    port = _Column(*values)
    port.__class__ = PortInfo
    assert isinstance(port, PortInfo)
    return port


class _Values(ValuesView[PortInfo]):
    """All ports of a switch, made in one go."""

    _mapping: Ports

    def __iter__(self) -> Iterator[PortInfo]:
        return self._mapping._from(0, len(self._mapping))
