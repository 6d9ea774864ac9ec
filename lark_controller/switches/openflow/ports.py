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
_FLAGS: Final = tuple((bool(each & _UP), bool(each & _NO_FLOOD), bool(each & _LIVE)) for each in range(8))
# The values of a port before it is one: a frozen value sets each of its own by a call, and each look at a switch makes
# all of its ports.
_Column: Final = make_dataclass("_Column", [each.name for each in fields(PortInfo)], slots=True)


class Ports(Mapping[int, PortInfo]):
    """The ports of a switch by number, in this order.

    They are kept in columns, at 23 bytes a port, where a dictionary of values takes ten times as much. Each is made
    when it is asked for, so whoever needs all asks for :meth:`values` once.
    """

    __slots__ = ("_flags", "_macs", "_names", "_numbers", "_speeds")

    def __init__(self, ports: Iterable[PortInfo] = ()) -> None:
        # Of two with one number the last one counts.
        found = sorted({port.number: port for port in ports}.values(), key=attrgetter("number"))
        self._numbers = array("I", [port.number for port in found])
        self._names = tuple(port.name for port in found)
        self._macs = bytes.fromhex("".join(port.mac for port in found).replace(":", ""))
        self._flags = bytes(_UP * port.up | _NO_FLOOD * port.no_flood | _LIVE * port.live for port in found)
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

    def _place(self, number: int) -> int | None:
        place = bisect_left(self._numbers, number)
        return place if place < len(self._numbers) and self._numbers[place] == number else None

    def _from(self, first: int, end: int) -> Iterator[PortInfo]:
        numbers, names, macs, speeds = self._numbers, self._names, self._macs, self._speeds
        for place in range(first, end):
            up, no_flood, live = _FLAGS[self._flags[place]]
            mac = macs[place * _MAC : place * _MAC + _MAC].hex(":")
            yield _port_of(numbers[place], names[place], mac, up, no_flood, speeds[place], live)


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
