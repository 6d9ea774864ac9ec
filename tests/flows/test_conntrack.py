"""Connection tracking packet by packet: what opens a connection, what belongs to one, and which bytes decide it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from lark_controller.flows.model import CT_EST, CT_INV, CT_NEW, CT_REL, CT_RPL, CT_TRK
from lark_controller.flows.simulation.conntrack import Connection, ConnectionTable
from tests.fixtures import frames
from tests.flows.test_packet_edges import BODY, DST6, SRC6, four, six

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
ZONE, OTHER_ZONE = 7, 8
FOUR_ENDS = (0x11121314, 0x21222324)
SIX_ENDS = (int.from_bytes(SRC6), int.from_bytes(DST6))
MAKERS = [(four, FOUR_ENDS), (six, SIX_ENDS)]


def back4(protocol: int, body: bytes) -> bytes:
    frame = four(protocol, body)
    return frame[:26] + frame[30:34] + frame[26:30] + frame[34:]


def back6(protocol: int, body: bytes) -> bytes:
    frame = six(protocol, body)
    return frame[:22] + frame[38:54] + frame[22:38] + frame[54:]


def swapped(body: bytes) -> bytes:
    return body[2:4] + body[:2] + body[4:]


def state(ct: ConnectionTable, frame: bytes, zone: int = ZONE, *, commit: bool = True) -> int:
    found = ct.track(zone, frame, commit=commit)
    assert found & CT_TRK
    return found & ~CT_TRK


@pytest.mark.parametrize(("make", "ends"), MAKERS)
@pytest.mark.parametrize(("protocol", "ports"), [(6, (0x5051, 0x5253)), (17, (0x5051, 0x5253)), (132, (0, 0))])
def test_a_connection_is_its_five_tuple(
    make: Callable[..., bytes], ends: tuple[int, int], protocol: int, ports: tuple[int, int]
) -> None:
    ct = ConnectionTable()
    assert state(ct, make(protocol, BODY[:13])) == CT_NEW
    assert list(ct) == [(ZONE, Connection(protocol, ends[0], ports[0], ends[1], ports[1]))]


@pytest.mark.parametrize(("make", "back"), [(four, back4), (six, back6)])
@pytest.mark.parametrize("protocol", [6, 17])
def test_any_other_part_of_the_five_tuple_is_another_connection(
    make: Callable[..., bytes], back: Callable[..., bytes], protocol: int
) -> None:
    body = BODY[:12]
    ct = ConnectionTable()
    assert state(ct, make(protocol, body)) == CT_NEW
    for place in range(4):
        other = body[:place] + bytes((body[place] ^ 1,)) + body[place + 1 :]
        assert state(ct, back(protocol, swapped(other)), commit=False) == CT_NEW
    assert state(ct, back(23 - protocol, swapped(body)), commit=False) == CT_NEW
    assert state(ct, back(protocol, swapped(body)), OTHER_ZONE, commit=False) == CT_NEW
    assert state(ct, back(protocol, swapped(body)), commit=False) == CT_EST | CT_RPL
    assert state(ct, make(protocol, body)) == CT_EST
    assert len(ct) == 1


@pytest.mark.parametrize("flags", range(32))
def test_flags_that_open_a_connection(flags: int) -> None:
    """Open vSwitch takes a connection up in its middle; a SYN with ACK, FIN or RST opens none."""
    syn_and_more = bool(flags & frames.SYN) and bool(flags & (frames.ACK | frames.FIN | frames.RST))
    segment = BODY[:13] + bytes((flags,)) + BODY[14:20]
    for make in (four, six):
        ct = ConnectionTable()
        assert state(ct, make(6, segment)) == (CT_INV if syn_and_more else CT_NEW)
        assert len(ct) == (0 if syn_and_more else 1)


def test_marks_are_the_connections_and_not_the_directions() -> None:
    ct = ConnectionTable()
    body = BODY[:12]
    there, back = four(17, body), back4(17, swapped(body))
    connection = Connection(17, FOUR_ENDS[0], 0x5051, FOUR_ENDS[1], 0x5253)
    ct.track(ZONE, there, commit=False, mark=3)
    assert (ct.marks, ct.mark(ZONE, there)) == ({}, 0)
    ct.track(ZONE, there, commit=True, mark=4)
    assert ct.marks == {(ZONE, connection): 4}
    ct.track(ZONE, back, commit=True, mark=5)
    assert ct.marks == {(ZONE, connection): 5}
    ct.track(ZONE, there, commit=True)
    assert (ct.mark(ZONE, there), ct.mark(ZONE, back), ct.mark(OTHER_ZONE, there)) == (5, 5, 0)
    assert ct.mark(ZONE, four(17, BODY[1:12])) == 0
    assert ct.mark(ZONE, frames.arp(A, A, "10.0.0.1", B, "10.0.0.2")) == 0
    copy = ct.copy()
    ct.flush(OTHER_ZONE)
    assert (len(ct), len(ct.marks)) == (1, 1)
    ct.flush(ZONE)
    assert (len(ct), len(ct.marks)) == (0, 0)
    assert (len(copy), copy.marks) == (1, {(ZONE, connection): 5})
    copy.forget(ZONE, 17, FOUR_ENDS[0], source=True)
    assert (len(copy), copy.marks) == (0, {})


def test_all_zones_are_flushed_where_none_is_named() -> None:
    ct = ConnectionTable()
    for zone in (ZONE, OTHER_ZONE):
        ct.track(zone, four(17, BODY[:8]), commit=True, mark=zone)
    kept = ct.copy()
    kept.flush(ZONE)
    assert [zone for zone, _ in kept] == [OTHER_ZONE]
    assert list(kept.marks.values()) == [OTHER_ZONE]
    ct.flush()
    assert (len(ct), ct.marks) == (0, {})


ECHO = [(four, back4, 1, 8, 0), (six, back6, 58, 128, 129)]


@pytest.mark.parametrize(("make", "back", "protocol", "request_kind", "reply_kind"), ECHO)
def test_an_echo_is_known_by_its_identifier(
    make: Callable[..., bytes], back: Callable[..., bytes], protocol: int, request_kind: int, reply_kind: int
) -> None:
    def ping(kind: int, identifier: bytes = b"\x12\x34") -> bytes:
        return bytes((kind, 0, 1, 2)) + identifier + b"\0\1"

    ct = ConnectionTable()
    assert state(ct, back(protocol, ping(reply_kind))) == CT_INV
    assert state(ct, make(protocol, ping(request_kind))) == CT_NEW
    ((_, connection),) = ct
    assert (connection.protocol, connection.src_port, connection.dst_port) == (protocol, 0x1234, 0x1234)
    for other in (b"\x12\x35", b"\x13\x34"):
        assert state(ct, back(protocol, ping(reply_kind, other))) == CT_INV
    assert state(ct, back(protocol, ping(reply_kind))) == CT_EST | CT_RPL
    assert state(ct, make(protocol, ping(request_kind))) == CT_EST
    # Other kinds of ICMP are no connection, and no echo is shorter than its header.
    for kind in {5, 7, 9, 10, 13, 14, 127, 130, 135} - {request_kind, reply_kind}:
        assert state(ConnectionTable(), make(protocol, ping(kind))) == CT_INV
    for length in range(8):
        assert state(ConnectionTable(), make(protocol, ping(request_kind)[:length])) == CT_INV
    # One of the other version's numbers is not ICMP here.
    for kind in (8, 128):
        assert state(ConnectionTable(), make(59 - protocol, ping(kind))) == CT_INV


@pytest.mark.parametrize(
    ("make", "back", "protocol", "kinds", "head"),
    [(four, back4, 1, {3, 4, 5, 11, 12}, 20), (six, back6, 58, {1, 2, 3, 4}, 40)],
)
def test_errors_are_related_to_the_packet_inside(
    make: Callable[..., bytes], back: Callable[..., bytes], protocol: int, kinds: set[int], head: int
) -> None:
    there, reply = make(17, BODY[:12]), back(17, swapped(BODY[:12]))

    def error(kind: int, about: bytes, outer: Callable[..., bytes] = back) -> bytes:
        return outer(protocol, bytes((kind, 1)) + bytes(6) + about[14:])

    ct = ConnectionTable()
    assert state(ct, error(3, there)) == CT_INV
    assert state(ct, there) == CT_NEW
    for kind in set(range(16)) - {8}:
        assert state(ct, error(kind, there)) == (CT_REL | CT_RPL if kind in kinds else CT_INV), kind
        assert state(ct, error(kind, reply, make)) == (CT_REL if kind in kinds else CT_INV), kind
    assert state(ct, error(3, there), OTHER_ZONE) == CT_INV
    assert len(ct) == 1
    # An error opens nothing and answers nothing.
    assert state(ct, there) == CT_NEW
    # RFC 792: the header and eight bytes are there; one less is none.
    for length in range(head, head + 12):
        found = state(ct, error(3, there[: 14 + length]))
        assert found == (CT_REL | CT_RPL if length >= head + 8 else CT_INV), length


def test_the_packet_inside_an_error_may_have_options() -> None:
    ct = ConnectionTable()
    there = four(17, BODY[:12])
    assert state(ct, there) == CT_NEW
    with_options = four(17, BODY[:12], options=bytes(range(8)))
    assert state(ct, back4(1, b"\3\1" + bytes(6) + with_options[14:])) == CT_REL | CT_RPL


@pytest.mark.parametrize(("make", "protocol"), [(four, 1), (six, 58)])
def test_errors_about_an_echo_are_related_to_it(make: Callable[..., bytes], protocol: int) -> None:
    ping = make(protocol, bytes((8 if protocol == 1 else 128, 0, 1, 2, 0x12, 0x34, 0, 1)))
    ct = ConnectionTable()
    assert state(ct, ping) == CT_NEW
    outer = back4 if protocol == 1 else back6
    for identifier, found in ((b"\x12\x34", CT_REL | CT_RPL), (b"\x12\x35", CT_INV)):
        about = ping[14:-4] + identifier + ping[-2:]
        assert state(ct, outer(protocol, b"\3\0" + bytes(6) + about)) == found


def test_an_error_may_end_within_the_packet_inside() -> None:
    """Options may take the place of the eight bytes behind the header."""
    ping = four(1, bytes((8, 0, 1, 2, 0x12, 0x34, 0, 1)), options=bytes(12))
    ct = ConnectionTable()
    assert state(ct, ping) == CT_NEW
    for length in range(len(ping) - 14 + 1):
        about = ping[14 : 14 + length]
        found = state(ct, back4(1, b"\3\0" + bytes(6) + about))
        assert found == (CT_REL | CT_RPL if length >= 32 + 6 else CT_INV), length


def test_forgetting_takes_one_end_of_one_protocol_in_one_zone() -> None:
    ends = [FOUR_ENDS[0], FOUR_ENDS[1], 5]
    for zone, protocol, address, source in itertools.product((ZONE, OTHER_ZONE), (6, 17, 132), ends, (False, True)):
        ct = ConnectionTable()
        for each in (6, 17):
            ct.track(ZONE, four(each, BODY[:12]), commit=True, mark=9)
        ct.forget(zone, protocol, address, source=source)
        gone = zone == ZONE and protocol in (6, 17) and address == FOUR_ENDS[0 if source else 1]
        assert len(ct) == (1 if gone else 2)
        assert len(ct.marks) == len(ct)
        assert all(one.protocol != protocol for _, one in ct) or not gone


def test_frames_without_a_transport_header_are_invalid() -> None:
    ct = ConnectionTable()
    for frame in (four(17, BODY[:12], word=0x2000), four(17, BODY[:3]), six(6, BODY[:3]), four(17, BODY[:8])[:13], b""):
        assert state(ct, frame) == CT_INV
        assert ct.mark(ZONE, frame) == 0
    assert len(ct) == 0
