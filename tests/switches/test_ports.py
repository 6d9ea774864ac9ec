"""The ports of a switch in columns: as a dictionary has them, in less memory."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.switches.openflow.ports import Ports
from lark_controller.switches.openflow.replies import PortInfo

NUMBERS = st.integers(0, 0xFFFFFFFF) | st.integers(0, 20)
PORTS = st.builds(
    PortInfo,
    NUMBERS,
    st.text(max_size=16),
    st.binary(min_size=6, max_size=6).map(lambda mac: mac.hex(":")),
    st.booleans(),
    st.booleans(),
    st.integers(0, 0xFFFFFFFF),
    st.booleans(),
)


@given(st.lists(PORTS), NUMBERS)
def test_they_are_those_of_a_dictionary(found: list[PortInfo], other: int) -> None:
    known = {port.number: port for port in found}
    ports = Ports(found)
    assert ports == known
    assert list(ports) == sorted(known)
    assert list(ports.values()) == [known[number] for number in sorted(known)]
    assert ports.keys() == known.keys()
    assert all(hash(ports[number]) == hash(known[number]) for number in known)
    assert (other in ports, ports.get(other)) == (other in known, known.get(other))
    name: object = "a name"
    assert name not in ports
    assert set(ports.names) == {port.name for port in found if known[port.number] is port}
    assert ports.numbers() == {port.name: port.number for port in ports.values()}
    assert ports.speeds() == {port.number: port.speed for port in known.values() if port.speed}
    marks = any(port.live for port in known.values())
    assert ports.down() == {each.number for each in known.values() if not each.up or (marks and not each.live)}
    assert Ports(ports.values()) == known


def test_hundreds_take_a_part_of_the_memory_of_a_dictionary() -> None:
    names = [f"port{number}" for number in range(200)]

    def made() -> list[PortInfo]:
        return [PortInfo(1000 + n, name, f"02:00:00:00:00:{n:02x}", True, False) for n, name in enumerate(names)]

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        known = {port.number: port for port in made()}
        between = tracemalloc.get_traced_memory()[0]
        ports = Ports(made())
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert ports == known
    assert (after - between) * 4 < between - before
