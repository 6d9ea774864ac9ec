"""The switches that the active instance misses: by whom, for how long, and where it takes them."""

from __future__ import annotations

import json

import pytest

from lark_controller.api.missed_switches import MOST
from lark_controller.services.handed_on_switches import (
    AT_ONCE,
    FEW,
    LATER,
    MANY_MISSED_SECONDS,
    MISSED_SECONDS,
    SECONDS,
    HandingOn,
    MissedSwitches,
    datapaths_of,
    question_of,
    ways_of,
)
from lark_controller.switches.openflow.relays import Way

TCP, TLS = ("0.0.0.0", 6653), ("::", 6654)


class Active:
    """An active instance with a clock of its own."""

    def __init__(self) -> None:
        self.present: frozenset[int] = frozenset()
        self.expected: set[int] = set()
        self.now = 100.0
        self.missed = MissedSwitches(
            lambda: self.present, lambda: ((TCP,), (TLS,)), self.expected.intersection, lambda: self.now
        )

    def wanted(self, *kept: int, reader: str = "b") -> list[int]:
        found = json.loads(self.missed.exchange(reader, question_of(kept)))
        assert bool(found["switches"]) == bool(found["tcp"] and found["tls"])
        return list(found["switches"])


def test_a_switch_is_handed_on_once_it_has_been_missed_for_a_while() -> None:
    active = Active()
    active.present = frozenset({1})
    assert active.wanted(1, 2) == []
    active.now += MISSED_SECONDS / 2
    assert active.wanted(1, 2) == []
    # It came by itself for a moment: counting begins anew.
    active.present = frozenset({1, 2})
    assert active.wanted(1, 2) == []
    active.present = frozenset({1})
    active.now += MISSED_SECONDS / 2
    assert active.wanted(1, 2) == []
    active.now += MISSED_SECONDS
    assert active.wanted(1, 2) == [2]
    # Of each asker by itself.
    assert active.wanted(2, reader="c") == []


def test_many_that_are_missed_are_waited_for_longer_and_taken_in_parts() -> None:
    active = Active()
    kept = range(1, MOST + 1)
    assert active.wanted(*kept) == []
    active.now += MISSED_SECONDS
    assert active.wanted(*kept) == []
    active.now += MANY_MISSED_SECONDS
    assert active.wanted(*kept) == list(range(1, AT_ONCE + 1))
    active.present = frozenset(range(FEW + 1, MOST + 1))
    active.now += MISSED_SECONDS
    assert active.wanted(*kept) == list(range(1, FEW + 1))


def test_those_that_have_had_their_turn_and_have_not_come_leave_the_next_to_others() -> None:
    active = Active()
    kept = range(1, 2 * AT_ONCE + 1)
    active.wanted(*kept)
    active.now += MANY_MISSED_SECONDS
    assert active.wanted(*kept) == list(range(1, AT_ONCE + 1))
    active.now += SECONDS
    assert active.wanted(*kept) == list(range(AT_ONCE + 1, 2 * AT_ONCE + 1))
    active.now += MANY_MISSED_SECONDS
    assert active.wanted(*kept) == list(range(1, AT_ONCE + 1))


def test_those_that_are_expected_have_their_turn_before_any_number_of_strangers() -> None:
    active = Active()
    active.expected.update({1000, 900})
    kept = range(1, 1001)
    active.wanted(*kept)
    active.now += MANY_MISSED_SECONDS
    assert active.wanted(*kept) == [900, 1000, *range(1, AT_ONCE - 1)]


def test_the_memory_of_askers_is_bounded() -> None:
    active = Active()
    for number in range(1000):
        active.wanted(1, reader=str(number))
    assert len(active.missed._missed) <= 64


@pytest.mark.parametrize("body", [b"1234567", bytes(8 * MOST + 8)])
def test_what_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="no list"):
        datapaths_of(body)


def test_a_question_is_read_as_it_was_written_and_has_an_end() -> None:
    assert datapaths_of(question_of([1, 2**64 - 1])) == (1, 2**64 - 1)
    assert len(datapaths_of(question_of(range(MOST + 5)))) == MOST


@pytest.mark.parametrize(
    ("tcp", "tls", "url", "ways"),
    [
        ([TCP], [TLS], "https://a.example:8443", [Way("a.example", 6654, "a.example"), Way("a.example", 6653)]),
        ([["192.0.2.1", 6653]], [], "http://lark1.example:8080", [Way("192.0.2.1", 6653)]),
        ([], [["192.0.2.1", 6654]], "https://lark1.example", [Way("192.0.2.1", 6654, "lark1.example")]),
        ([TCP], [], "http://[2001:db8::1]:8080", [Way("2001:db8::1", 6653)]),
        # Nobody else reaches it.
        ([TCP], [TLS], "unix:/run/lark/rest.sock", []),
        ([["127.0.0.1", 6653]], [], "unix:/run/lark/rest.sock", [Way("127.0.0.1", 6653)]),
        # By the machine's own address the one that stands by would reach itself.
        ([["127.0.0.1", 6653], ["192.0.2.1", 6653]], [["::1", 6654]], "http://lark1.example", [Way("192.0.2.1", 6653)]),
        ([["127.0.0.1", 6653]], [], "http://localhost:8080", [Way("127.0.0.1", 6653)]),
        ([["::1", 6653]], [], "http://127.0.0.1:8080", [Way("::1", 6653)]),
    ],
)  # fmt: skip
def test_listeners_are_reached_by_the_host_of_the_url_where_they_are_all_of_a_machines(
    tcp: list[list[str | int]], tls: list[list[str | int]], url: str, ways: list[Way]
) -> None:
    assert list(ways_of({"tcp": tcp, "tls": tls}, url)) == ways


class Kept:
    """Switches that are kept, and what is handed on of them."""

    def __init__(self, *datapaths: int) -> None:
        self.found = datapaths
        self.handed: list[tuple[list[int], tuple[Way, ...]]] = []

    def datapaths(self) -> tuple[int, ...]:
        return self.found

    def hand_on(self, datapaths: list[int], ways: tuple[Way, ...], _seconds: float) -> None:
        self.handed.append((datapaths, ways))


def test_one_that_stands_by_asks_with_what_it_keeps_and_hands_on_what_is_missed() -> None:
    active, kept = Active(), Kept(1, 2)
    asked: list[bytes] = []

    def ask(question: bytes) -> bytes:
        asked.append(question)
        return active.missed.exchange("b", question)

    handing = HandingOn(kept, ask, lambda: "http://lark1.example:8080")  # type: ignore[arg-type]  # as one that is kept
    assert (handing.turn(), kept.handed) == (SECONDS, [])
    active.now += MISSED_SECONDS
    assert handing.turn() == SECONDS
    assert kept.handed == [([1, 2], (Way("lark1.example", 6654, "lark1.example"), Way("lark1.example", 6653)))]
    kept.found = ()
    assert (handing.turn(), len(asked)) == (SECONDS, 2)
    kept.found = (1,)
    alone = HandingOn(kept, lambda _question: None, lambda: "")  # type: ignore[arg-type]  # as one that is kept
    assert alone.turn() == LATER
