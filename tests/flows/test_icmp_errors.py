"""ICMP errors through the translation: quoted addresses and checksums, both ways; hostile bytes do nothing."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.flows.icmp_errors import MOST_BYTES, inward, outward
from lark_controller.flows.placement import mac_number
from lark_controller.jobs.external import External, listed
from tests.fixtures import frames

OWN, OUT, PEER, ROUTER = IPv4Address("10.64.0.7"), IPv4Address("198.51.100.65"), "192.0.2.7", "203.0.113.1"
JOB_MAC, HOP = "02:00:00:00:00:07", "02:00:00:00:ff:02"


def opened(text: str) -> External:
    return External(ip_address(str(OUT)), listed(text))


def quoted(src: str, dst: str, protocol: str, sport: int, dport: int, *, fragment: int = 0) -> bytes:
    """A packet as an error quotes it."""
    if protocol == "icmp":
        return frames.icmp(HOP, HOP, src, dst, 8, rest=b"\0\7\0\1" + b"x" * 24)[14:]
    made = frames.tcp_payload(src, dst, sport, dport, frames.SYN, b"data" * 9)
    if protocol == "udp":
        made = frames.udp_payload(src, dst, sport, dport, b"odd")
    return frames.ip(src, dst, 6 if protocol == "tcp" else 17, made, fragment=fragment)[1]


def error(src: str, dst: str, about: bytes, kind: int = 3, code: int = 4, *, vlan: int | None = None) -> bytes:
    frame = frames.icmp(HOP, HOP, src, dst, kind, code, rest=b"\0\0\x05\0" + about)
    return frame if vlan is None else frame[:12] + b"\x81\0" + vlan.to_bytes(2) + frame[12:]


def right(frame: bytes, start: int = 14) -> bool:
    """True where every checksum of the error and of what it quotes is right."""
    packet = frame[start:]
    body, about = packet[20:], packet[28:]
    if frames.checksum(packet[:20]) or frames.checksum(body) or frames.checksum(about[:20]):
        return False
    if about[9] == 1:
        return not frames.checksum(about[20:])
    src, dst = (str(IPv4Address(about[at : at + 4])) for at in (12, 16))
    return not frames.checksum(frames.pseudo(src, dst, about[9], len(about) - 20) + about[20:])


@pytest.mark.parametrize("vlan", [None, 7])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
@pytest.mark.parametrize(("kind", "code"), [(3, 4), (3, 3), (11, 0), (12, 0)])
def test_an_error_from_outside_names_the_jobs_own_address(
    kind: int, code: int, protocol: str, vlan: int | None
) -> None:
    about = quoted(str(OUT), PEER, protocol, 80, 40000)
    frame = error(ROUTER, str(OUT), about, kind, code, vlan=vlan)
    made = inward(frame, opened("tcp/80 udp/80 icmp"), OWN, mac_number(JOB_MAC))
    assert made is not None
    start = 14 if vlan is None else 18
    assert right(made, start)
    assert (made[:6], len(made)) == (mac_number(JOB_MAC).to_bytes(6), len(frame))
    assert IPv4Address(made[start + 16 : start + 20]) == OWN == IPv4Address(made[start + 40 : start + 44])
    assert made[start + 20 : start + 22] == bytes([kind, code])


@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_a_jobs_error_names_its_external_address(protocol: str) -> None:
    frame = error(str(OWN), PEER, quoted(PEER, str(OWN), protocol, 40000, 80), 3, 3)
    made = outward(frame, opened("any"), OWN)
    assert made is not None
    assert right(made)
    assert IPv4Address(made[26:30]) == OUT == IPv4Address(made[58:62])


@pytest.mark.parametrize(
    ("openings", "frame"),
    [
        ("tcp/81", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 81))),
        ("udp", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 80))),
        ("tcp/80", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "icmp", 0, 0))),
        # Of another's packet, of none, of a later fragment where ports are limited.
        ("any", error(ROUTER, str(OUT), quoted("198.51.100.66", PEER, "tcp", 80, 80))),
        ("any", error(ROUTER, str(OUT), b"")),
        ("tcp/80", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 80, fragment=5))),
        ("any", error(ROUTER, "198.51.100.66", quoted(str(OUT), PEER, "tcp", 80, 80))),
        # No error at all: an echo, a redirect.
        ("any", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 80), 8)),
        ("any", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 80), 5)),
        ("any", error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 80) + bytes(MOST_BYTES))),
    ],
)
def test_what_is_no_error_about_an_opening_is_not_given_back(openings: str, frame: bytes) -> None:
    assert inward(frame, opened(openings), OWN, mac_number(JOB_MAC)) is None


def test_a_wrong_checksum_stays_wrong_and_none_stays_none() -> None:
    frame = bytearray(error(ROUTER, str(OUT), quoted(str(OUT), PEER, "udp", 80, 9)))
    frame[14 + 28 + 26 : 14 + 28 + 28] = b"\0\0"
    made = inward(bytes(frame), opened("any"), OWN, mac_number(JOB_MAC))
    assert made is not None
    assert made[68:70] == b"\0\0"
    # Without the quoted one the error's own does not hold any more, before and after.
    assert frames.checksum(bytes(frame[34:])) == frames.checksum(made[34:]) != 0


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_do_more_than_change_these_addresses(data: st.DataObject) -> None:
    frame = bytearray(
        error(ROUTER, str(OUT), quoted(str(OUT), PEER, data.draw(st.sampled_from(["tcp", "udp"])), 80, 9))
    )
    for at, value in data.draw(st.lists(st.tuples(st.integers(12, len(frame) - 1), st.integers(0, 255)), max_size=6)):
        frame[at] = value
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    for made in (inward(cut, opened("any"), OWN, 7), outward(cut, opened("any"), OWN)):
        assert made is None or len(made) == len(cut)


def with_options(packet: bytes, words: int) -> bytes:
    """An IPv4 packet with so many words of options (no operation) in its header."""
    length = int.from_bytes(packet[2:4]) + 4 * words
    head = bytes([0x45 + words]) + packet[1:2] + length.to_bytes(2) + packet[4:10] + b"\0\0" + packet[12:20]
    head += b"\1" * 4 * words
    return head[:10] + frames.checksum(head).to_bytes(2) + head[12:] + packet[20:]


def came(about: bytes, openings: str, *, outer: int = 0) -> bytes | None:
    """The error about this packet as it comes in to the job, where this is open."""
    frame = error(ROUTER, str(OUT), about)
    return inward(frame[:14] + with_options(frame[14:], outer), opened(openings), OWN, mac_number(JOB_MAC))


@pytest.mark.parametrize("outer", [0, 1, 10])
@pytest.mark.parametrize("inner", [0, 1, 10])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "icmp"])
def test_headers_may_have_options(protocol: str, outer: int, inner: int) -> None:
    about = with_options(quoted(str(OUT), PEER, protocol, 80, 81), inner)
    made = came(about, "tcp/80 udp/80 icmp", outer=outer)
    assert made is not None
    body = made[14 + 20 + 4 * outer :]
    packet = body[8:]
    transport = packet[20 + 4 * inner :]
    assert not frames.checksum(made[14 : 14 + 20 + 4 * outer])
    assert not frames.checksum(body)
    assert not frames.checksum(packet[: 20 + 4 * inner])
    assert (made[30:34], packet[12:16]) == (OWN.packed, OWN.packed)
    number = {"tcp": 6, "udp": 17, "icmp": 1}[protocol]
    head = b"" if number == 1 else frames.pseudo(str(OWN), PEER, number, len(transport))
    assert not frames.checksum(head + transport)
    assert came(about, "tcp/81 udp/81", outer=outer) is None


@pytest.mark.parametrize(
    ("openings", "protocol", "fragment", "expected"),
    [
        # Of a later fragment no port is known: it is open where all ports are.
        ("tcp", "tcp", 5, True),
        ("tcp/1-65534", "tcp", 5, False),
        ("tcp/2-65535", "tcp", 5, False),
        ("udp", "udp", 0x2005, True),
        ("any", "tcp", 5, True),
        ("icmp", "icmp", 0, True),
        ("icmp", "tcp", 0, False),
        # The first fragment has them.
        ("tcp/80", "tcp", 0x2000, True),
        ("tcp/80-90", "tcp", 0x4000, True),
        ("tcp/70-80", "tcp", 0, True),
        ("tcp/81-90", "tcp", 0, False),
        ("tcp/70-79", "tcp", 0, False),
    ],
)
def test_ports_are_those_of_a_first_fragment(openings: str, protocol: str, fragment: int, expected: bool) -> None:
    about = (
        quoted(str(OUT), PEER, protocol, 80, 9, fragment=fragment)
        if protocol != "icmp"
        else quoted(str(OUT), PEER, protocol, 80, 9)
    )
    made = came(about, openings)
    assert (made is not None) is expected
    if made is not None and fragment & 0x1FFF:
        # What stands where a header would is no checksum of one.
        assert made[14 + 28 + 20 :] == about[20:]


@pytest.mark.parametrize(
    ("bytes_quoted", "openings", "expected"),
    [
        (19, "any", False),
        (20, "any", True),
        (20, "tcp/80", False),
        (20, "tcp", True),
        (23, "tcp/80", False),
        (24, "tcp/80", True),
        (28, "tcp/80", True),
    ],
)
def test_an_error_quotes_as_little_as_it_may(bytes_quoted: int, openings: str, expected: bool) -> None:
    about = quoted(str(OUT), PEER, "tcp", 80, 9)[:bytes_quoted]
    made = came(about, openings)
    assert (made is not None) is expected
    if made is not None:
        assert not frames.checksum(made[34:])
        assert made[42 + 20 :] == about[20:]


@pytest.mark.parametrize(("quoted_bytes", "changed"), [(37, False), (38, True), (39, True)])
def test_a_checksum_that_is_quoted_whole_is_translated(quoted_bytes: int, changed: bool) -> None:
    about = quoted(str(OUT), PEER, "tcp", 80, 9)[:quoted_bytes]
    made = came(about, "tcp/80")
    assert made is not None
    assert (made[42 + 36 :] != about[36:]) is changed
    assert not frames.checksum(made[34:])


def test_an_error_is_as_long_as_it_may_be() -> None:
    about = quoted(str(OUT), PEER, "tcp", 80, 9)
    most = MOST_BYTES - 14 - 28 - len(about)
    whole = came(about + bytes(most), "any")
    assert whole is not None
    assert len(whole) == MOST_BYTES == 1600
    assert came(about + bytes(most + 1), "any") is None


@pytest.mark.parametrize(
    ("at", "value"),
    [
        # No IPv4; another version in its header; a fragment of the error itself; longer than the frame; too short.
        (12, b"\x86\xdd"),
        (14, b"\x65"),
        (20, b"\x20\0"),
        (20, b"\0\1"),
        (16, b"\xff\xff"),
        (16, b"\0\x1b"),
        # Neither ICMP, nor about IPv4.
        (23, b"\x11"),
        (42, b"\x65"),
    ],
)
def test_what_is_no_whole_error_is_not_given_back(at: int, value: bytes) -> None:
    frame = bytearray(error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 9)))
    assert inward(bytes(frame), opened("any"), OWN, 7) is not None
    frame[at : at + len(value)] = value
    assert inward(bytes(frame), opened("any"), OWN, 7) is None


@pytest.mark.parametrize("kind", range(20))
def test_three_types_of_icmp_are_errors(kind: int) -> None:
    frame = error(ROUTER, str(OUT), quoted(str(OUT), PEER, "tcp", 80, 9), kind)
    assert (inward(frame, opened("any"), OWN, 7) is not None) is (kind in (3, 11, 12))


@pytest.mark.parametrize(("openings", "expected"), [("tcp/9", False), ("tcp/80", True)])
def test_a_jobs_error_is_about_its_own_port(openings: str, expected: bool) -> None:
    frame = error(str(OWN), PEER, quoted(PEER, str(OWN), "tcp", 9, 80), 3, 3)
    assert (outward(frame, opened(openings), OWN) is not None) is expected
    # The error goes to whoever sent what it is about.
    other = error(str(OWN), PEER, quoted(PEER, "10.64.0.8", "tcp", 9, 80), 3, 3)
    assert outward(other, opened("any"), OWN) is None
    assert outward(error("10.64.0.8", PEER, quoted(PEER, str(OWN), "tcp", 9, 80)), opened("any"), OWN) is None


@given(st.integers(0, 255), st.integers(0, 255))
def test_an_odd_last_byte_is_no_matter(one: int, other: int) -> None:
    for size in (0, 1):
        about = quoted(str(OUT), PEER, "udp", 80, 9)[:28] + bytes([one, other])[: 2 - size]
        made = came(about, "udp")
        assert made is not None
        assert not frames.checksum(made[34:])
