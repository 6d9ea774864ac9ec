"""Calls of many threads that are carried out together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from lark_controller.services.gathering import Gathering


class Work:
    """Answers with ten times the number; the first call waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(asked))
        self.begun.set()
        assert self.go.wait(30)
        return [ValueError(each) if each < 0 else each * 10 for each in asked]


def waiting(gathering: Gathering[int, int], count: int) -> None:
    """Until so many calls wait."""
    for _ in range(3000):
        if len(gathering._waiting) == count:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the calls do not come")


def test_what_comes_meanwhile_is_carried_out_at_once() -> None:
    work = Work()
    gathering: Gathering[int, int] = Gathering(work)
    with ThreadPoolExecutor(21) as executor:
        first = executor.submit(gathering.ask, 1, ("a",))
        assert work.begun.wait(30)
        others = [executor.submit(gathering.ask, number, (number,)) for number in range(2, 22)]
        waiting(gathering, 20)
        work.go.set()
        assert first.result(30) == 10
        assert [each.result(30) for each in others] == [number * 10 for number in range(2, 22)]
    assert [len(batch) for batch in work.batches] == [1, 20]


def test_calls_with_a_key_in_common_keep_their_order_and_no_more_than_the_most_go_together() -> None:
    work = Work()
    gathering: Gathering[int, int] = Gathering(work, most=3)
    with ThreadPoolExecutor(8) as executor:
        futures = [executor.submit(gathering.ask, 0, ("first",))]
        assert work.begun.wait(30)
        for count, (number, keys) in enumerate([(1, "ab"), (2, "bc"), (3, "cd"), (4, "e"), (5, "f"), (6, "g")], 1):
            futures.append(executor.submit(gathering.ask, number, keys))
            waiting(gathering, count)
        work.go.set()
        assert [each.result(30) for each in futures] == [0, 10, 20, 30, 40, 50, 60]
    # 3 waits behind 2, which waits behind 1, though 3 and 1 have nothing in common.
    assert work.batches == [[0], [1, 4, 5], [2, 6], [3]]


def test_an_error_is_that_of_its_call_and_one_of_the_work_is_that_of_all() -> None:
    work = Work()
    work.go.set()
    gathering: Gathering[int, int] = Gathering(work)
    with pytest.raises(ValueError, match="-1"):
        gathering.ask(-1, ())
    assert gathering.ask(2, ()) == 20

    def broken(_: Sequence[int]) -> list[int | Exception]:
        raise OSError("the database is away")

    failing: Gathering[int, int] = Gathering(broken)
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            failing.ask(1, ())
