"""The accounts of transfers without a kernel: its messages, hostile ones too, and whose bytes are whose."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.runs import Address
from lark_worker.records.known_jobs import Key
from lark_worker.transfers import inet_diag
from lark_worker.transfers.book import MOST_OF_STARTER, NOTHING, Book, Missed, Sums
from lark_worker.transfers.inet_diag import Connection

ONE, TWO = (100, 1), (200, 2)
LOCAL = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
NEAR, FAR, FAR6 = ip_address("10.0.0.5"), ip_address("192.0.2.1"), ip_address("3fff::1")


def message(
    remote: Address = NEAR, cookie: int = 7, inode: int = 9, received: int = 0, sent: int = 0, before: bytes = b""
) -> bytes:
    """A message as the kernel has it (linux/inet_diag.h), ``before`` being attributes in front of the counts."""
    family = socket.AF_INET if remote.version == 4 else socket.AF_INET6
    ends = struct.pack(">HH", 40000, 9618) + b"\x7f\0\0\1".ljust(16, b"\0") + remote.packed.ljust(16, b"\0")
    ends += struct.pack("=III", 0, cookie & 0xFFFFFFFF, cookie >> 32)
    info = bytes(120) + struct.pack("=QQ", sent, received) + bytes(40)
    counts = struct.pack("=HH", 4 + len(info), 2) + info
    return struct.pack("=BBBB", family, 1, 0, 0) + ends + struct.pack("=5I", 0, 0, 0, 0, inode) + before + counts


def framed(content: bytes, kind: int = inet_diag.BY_FAMILY) -> bytes:
    whole = struct.pack("=IHHII", 16 + len(content), kind, 0, 5, 0) + content
    return whole + bytes(-len(whole) % 4)


@given(
    st.ip_addresses(), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_a_connection_is_read_as_the_kernel_wrote_it(
    remote: IPv4Address | IPv6Address, cookie: int, inode: int, received: int, sent: int
) -> None:
    other = struct.pack("=HHB3x", 5, 8, 1)
    content = message(remote, cookie, inode, received, sent, before=other)
    expected = remote.ipv4_mapped or remote if isinstance(remote, IPv6Address) else remote
    data = framed(content) + framed(b"", inet_diag.DONE)
    assert [(kind, sequence) for kind, sequence, _ in inet_diag.messages(data)] == [(20, 5), (3, 5)]
    found = [inet_diag.connection(each) for kind, _, each in inet_diag.messages(data) if kind == 20]
    here = IPv4Address("127.0.0.1") if remote.version == 4 else IPv6Address("7f00:1::")
    family = socket.AF_INET if remote.version == 4 else socket.AF_INET6
    assert found == [Connection(cookie, inode, expected, received, sent, here, (40000, 9618), family)]


@given(st.data())
def test_messages_that_are_cut_short_or_lie_about_their_length_are_left_out(data: st.DataObject) -> None:
    content = message(FAR6, received=5, sent=6)
    cut = data.draw(st.integers(0, len(content) - 1))
    found = inet_diag.connection(content[:cut])
    # The numbers behind the counts are later kernels'.
    assert found is None
    whole = bytearray(framed(content) + framed(content))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    assert len([inet_diag.connection(each) for _, _, each in inet_diag.messages(bytes(whole))]) <= 2


@given(st.binary(max_size=600))
def test_any_bytes_are_read_or_left_out(data: bytes) -> None:
    for _, _, content in inet_diag.messages(data):
        inet_diag.connection(content)
    inet_diag.connection(data)
    inet_diag.connection(message()[:72] + data)


class Kernel:
    """Connections by cookie, each with its holder (None: nobody's transfer), and how often holders were asked for."""

    def __init__(self) -> None:
        self.there: dict[int, Connection] = {}
        self.holders: dict[int, Key | None] = {}
        self.gone: list[Connection] = []
        self.asked = 0

    def open(self, cookie: int, holder: Key | None, remote: Address = NEAR) -> None:
        self.there[cookie] = Connection(cookie, cookie + 1000, remote, 0, 0, ports=(40000, 80))
        self.holders[cookie] = holder

    def move(self, cookie: int, received: int, sent: int) -> None:
        old = self.there[cookie]
        self.there[cookie] = replace(old, received=old.received + received, sent=old.sent + sent)

    def end(self, cookie: int) -> None:
        self.gone.append(self.there.pop(cookie))

    def look(self, book: Book, at: float, ends: bool = True) -> None:
        gone, self.gone = self.gone, []
        book.look(at, list(self.there.values()), gone if ends else [], self.owners)

    def owners(self, inodes: Collection[int]) -> Mapping[int, Key]:
        self.asked += len(inodes)
        return {inode: key for inode in inodes if (key := self.holders.get(inode - 1000)) is not None}


def a_book() -> tuple[Book, Kernel]:
    book = Book()
    book.use(LOCAL)
    return book, Kernel()


def test_bytes_are_those_of_the_starter_whose_connection_it_is_to_the_last_of_them() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE)
    kernel.open(2, TWO, FAR)
    kernel.open(3, None)
    kernel.move(1, 1000, 10)
    kernel.look(book, 1.0)
    kernel.move(1, 500, 5)
    kernel.move(2, 70, 7)
    kernel.move(3, 9999, 9999)
    kernel.end(1)
    kernel.look(book, 1.5)
    kernel.end(2)
    kernel.look(book, 2.0)
    assert book.sums(ONE) == Sums(1500, 15, 0, 0, 500)
    assert book.sums(TWO) == Sums(70, 7, 70, 7, 1000)
    assert (len(book), book.missed) == (0, Missed())


def test_flows_that_are_followed_are_announced_once_more() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE)
    kernel.look(book, 1.0)
    (first,) = book.turns().found
    kernel.look(book, 2.0)
    assert book.turns() == ([], [])
    book.announce()
    kernel.open(2, TWO)
    kernel.look(book, 3.0)
    again, other = book.turns().found
    assert again == first
    assert (other.key, other.since) == (TWO, 3.0)


def test_a_connection_without_a_starter_is_asked_about_less_and_less_often() -> None:
    book, kernel = a_book()
    kernel.open(1, None)
    for look in range(1000):
        kernel.look(book, float(look))
        if look == 1:
            # A starter has handed it to its copy.
            kernel.open(2, None)
            kernel.holders[2] = ONE
    assert kernel.asked < 30
    assert len(book) == 1


def test_what_begins_and_ends_between_two_looks_is_counted_in_sum() -> None:
    book, kernel = a_book()
    kernel.look(book, 1.0)
    for cookie in range(500):
        kernel.open(cookie, ONE)
        kernel.move(cookie, 10, 1)
        kernel.end(cookie)
    kernel.look(book, 2.0)
    assert book.missed == Missed(unseen=500, unseen_bytes=5500)
    assert (book.sums(ONE), kernel.asked) == (NOTHING, 0)
    # Of connections while nothing was moved nothing is said.
    book.rest()
    kernel.open(1000, None)
    kernel.end(1000)
    kernel.look(book, 3.0)
    assert book.missed.unseen == 500


def test_more_connections_than_are_followed_are_said_and_cost_nobody_else() -> None:
    book, kernel = a_book()
    for cookie in range(MOST_OF_STARTER + 10):
        kernel.open(cookie, ONE)
    kernel.open(9999, TWO)
    kernel.look(book, 1.0)
    kernel.move(9999, 5, 0)
    kernel.look(book, 2.0)
    assert (len(book), book.missed.beyond) == (MOST_OF_STARTER + 1, 20)
    assert book.sums(TWO).bytes_in == 5


def test_a_connection_whose_end_was_lost_is_given_up_with_what_was_seen() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE)
    kernel.move(1, 10, 0)
    kernel.look(book, 1.0)
    kernel.end(1)
    for look in range(3):
        kernel.look(book, 2.0 + look, ends=False)
    assert (len(book), book.sums(ONE).bytes_in) == (0, 10)


def test_what_comes_after_the_jobs_end_is_said_and_in_no_account() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE)
    kernel.move(1, 10, 0)
    kernel.look(book, 1.0)
    assert book.close(ONE) == Sums(bytes_in=10)
    kernel.move(1, 90, 0)
    kernel.look(book, 2.0)
    assert (book.sums(ONE), book.missed.late_bytes) == (NOTHING, 90)
    kernel.end(1)
    kernel.look(book, 3.0)
    book.keep(())
    assert book.stored()["sums"] == []


def test_the_wan_part_is_known_later_too() -> None:
    book, kernel = Book(), Kernel()
    kernel.open(1, ONE, FAR6)
    kernel.open(2, ONE, ip_address("2001:db8::5"))
    for cookie in (1, 2):
        kernel.move(cookie, 10, 1)
    kernel.look(book, 1.0)
    kernel.end(2)
    kernel.look(book, 2.0)
    again = Book()
    again.restore(json.loads(json.dumps(book.stored())), True)
    for each in (book, again):
        each.use(LOCAL)
        assert each.sums(ONE)[:4] == (20, 2, 10, 1)
    kernel.move(1, 5, 5)
    kernel.look(again, 3.0)
    assert again.sums(ONE)[:4] == (25, 7, 15, 6)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("open"), st.sampled_from([ONE, TWO, None]), st.sampled_from([NEAR, FAR, FAR6])),
            st.tuples(st.just("move"), st.integers(0, 50), st.integers(0, 10**6)),
            st.tuples(st.just("end"), st.integers(0, 50), st.just(0)),
            st.tuples(st.just("look"), st.just(0), st.just(0)),
            st.tuples(st.just("killed"), st.just(0), st.just(0)),
        ),
        max_size=60,
    )
)
def test_nothing_is_counted_twice_or_as_anothers_whatever_happens(steps: list[tuple[str, Any, Any]]) -> None:
    book, kernel = a_book()
    at, cookies = 0.0, 0
    moved: dict[Key | None, list[int]] = {ONE: [0, 0], TWO: [0, 0], None: [0, 0]}
    wan = {ONE: 0, TWO: 0, None: 0}
    for what, one, two in steps:
        if what == "open":
            kernel.open(cookies, one, two)
            cookies += 1
            # Known before it ends: what is not is no account's.
            at += 1
            kernel.look(book, at)
        elif what == "move" and one in kernel.there:
            kernel.move(one, two, two // 2)
            holder = kernel.holders[one]
            moved[holder][0] += two
            moved[holder][1] += two // 2
            wan[holder] += two * (kernel.there[one].remote != NEAR)
        elif what == "end" and one in kernel.there:
            kernel.end(one)
        elif what == "look":
            at += 1
            kernel.look(book, at)
        elif what == "killed":
            # All that was heard of ends is in the book; another service goes on from the disk.
            at += 1
            kernel.look(book, at)
            stored = json.loads(json.dumps(book.stored()))
            book = Book()
            book.restore(stored, True)
    kernel.look(book, at + 1)
    for key in (ONE, TWO):
        sums = book.sums(key)
        assert [sums.bytes_in, sums.bytes_out] == moved[key]
        assert sums.wan_bytes_in == wan[key]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sums": [[1, 2, 3]]}, {"sums": [[1, 2, -1, 0, 0, 0, 0]]}, {"sums": None}, {"followed": [[1, 2]]},
        {"followed": [[1, 2, 3, "nowhere", 0, 0]]}, {"local": ["x"]}, {"unsorted": [[1, 2, "10.0.0.1", True, 0]]},
    ],
)  # fmt: skip
def test_a_damaged_file_is_no_account(wrong: dict[str, object]) -> None:
    whole: dict[str, object] = {"local": None, "unsorted": [], "sums": [], "followed": []}
    with pytest.raises((ValueError, TypeError, KeyError)):
        Book().restore(whole | wrong, True)
    book = Book()
    book.restore({"local": ["10.0.0.0/8"]}, False)
    assert book.stored()["local"] == ["10.0.0.0/8"]
