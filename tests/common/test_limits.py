from __future__ import annotations

import errno
import io
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.limits import Bucket, Buckets, InTime, Places, WaitedPlaces


@given(st.floats(0.5, 100), st.integers(1, 20), st.lists(st.floats(0, 3), max_size=60))
def test_a_bucket_never_gives_more_than_burst_and_rate(rate: float, burst: int, pauses: list[float]) -> None:
    now = 0.0
    buckets = Buckets(rate, burst, clock=lambda: now)
    given_out = 0
    for pause in pauses:
        now += pause
        short = buckets.take("a")
        given_out += not short
        assert given_out <= burst + now * rate + 1e-6
        if short:
            now += short + 1e-6
            assert buckets.take("a") == 0
            given_out += 1


def test_buckets_forget_the_key_that_was_used_longest_ago() -> None:
    buckets = Buckets(1, 1, keys=2, clock=lambda: 0.0)
    assert [bool(buckets.take(key)) for key in ("a", "a", "b", "c", "c", "a")] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_the_time_is_read_in_turn() -> None:
    """A thread that waited long must not come with a time from before another's: a bucket would count it as debt."""
    in_turn: list[bool] = []

    def clock() -> float:
        in_turn.append(buckets._lock.locked())
        return 0.0

    buckets = Buckets(1000, 10, clock=clock)
    assert buckets.take("a") == 0.0
    assert in_turn == [True]


def test_a_key_that_is_used_is_remembered_when_many_others_come() -> None:
    now = [0.0]
    buckets = Buckets(1.0, 2, keys=1024, clock=lambda: now[0])
    assert not any(buckets.take(number) for number in range(1023))
    now[0] = 60.0
    assert not buckets.take("busy")
    assert not buckets.take("busy")
    assert buckets.take("busy")
    assert not any(buckets.take(number) for number in range(1024, 1400))
    assert buckets.take("busy")


def test_a_bucket_that_is_never_filled_gives_its_burst_alone() -> None:
    now = [0.0]
    buckets = Buckets(0.0, 2, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(3)] == [0.0, 0.0, float("inf")]
    now[0] = 1e9
    assert buckets.take("a")


def test_what_is_taken_beyond_a_bucket_is_waited_for() -> None:
    bucket = Bucket(0.5, 1.0, 0.0)
    assert bucket.take(1.0, 0.0) == 0.0
    assert bucket.take(0.25, 0.0) == 0.5
    assert bucket.take(0.0, 1.0) == 0.0
    assert bucket.until() == 1.5
    assert not bucket.take_whole(2.0)
    assert bucket.take_whole(3.5)
    assert bucket.left(100.0) == 1.0


def test_a_place_is_there_again_when_it_is_given_back() -> None:
    places = Places(1)
    with places.place() as first, places.place() as second:
        assert (first, second) == (True, False)
    with places.place() as third:
        assert third


def test_each_caller_has_places_of_its_own() -> None:
    places = Places(2)
    with places.place("alice") as first, places.place("alice") as second, places.place("alice") as third:
        assert (first, second, third) == (True, True, False)
        assert places.take("alice", 3)
        assert places.take("bob")
    places.give("alice")
    with places.place("alice", 1) as again:
        assert again


def test_no_more_of_a_caller_are_at_work_than_may_be_and_all_have_a_place() -> None:
    places, lock = WaitedPlaces(2), threading.Lock()
    at_work, most, done = 0, 0, 0
    together = threading.Barrier(2)

    def work() -> None:
        nonlocal at_work, most, done
        with places.place("alice"):
            with lock:
                at_work += 1
                most = max(most, at_work)
            together.wait(60)
            with lock:
                at_work -= 1
                done += 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (most, done) == (2, 8)


def test_others_do_not_wait_for_a_caller_and_nothing_is_kept_of_who_has_gone() -> None:
    places = WaitedPlaces(1)
    with places.place("alice"), places.place("bob"):
        pass
    with pytest.raises(ValueError, match="fault"), places.place("alice"):
        raise ValueError("fault")
    with places.place("alice"):
        pass
    assert not places._of


def test_no_more_is_read_than_may_come() -> None:
    here, there = socket.socketpair()
    with here, there, io.BufferedReader(InTime(here, time.monotonic() + 5, most=4)) as read:
        there.sendall(b"abc\n")
        assert read.readline() == b"abc\n"
        there.sendall(b"de")
        with pytest.raises(OSError, match="more has come") as refused:
            read.read(2)
        assert refused.value.errno == errno.EMSGSIZE
