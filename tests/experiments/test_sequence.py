"""Figures that are reckoned from several jobs' streams: who ran beside whom, how long an upload took."""

from __future__ import annotations

import pytest

from experiments import lark_latency, sequence, uploads
from experiments.beside import Meanwhile, Taken, keep
from experiments.options import Options
from experiments.pool import Stream, policy
from experiments.sequence import Transfer
from experiments.uploads import Upload
from lab.run import LabError

ASKED = {"A": 5, "B": 15, "C": 30}


def stream(began: float, seconds: float, rate: float) -> Stream:
    return Stream(began, tuple((half / 2, rate) for half in range(1, round(seconds * 2) + 1)), rate)


def result(*transfers: Transfer, reference: float = 1.0) -> dict[str, tuple[bool, bool]]:
    """For each aim of Figure 8c: it is met, and it is marked."""
    found = sequence.figure_8c(keep([Taken(transfers, Meanwhile(reference))]), ASKED, Options())
    return {" ".join(check.aim.split()[:3]): (check.met, check.marked) for check in found.checks}


GOOD = (
    Transfer("A", stream(0, 8, 5.0)),
    Transfer("B", stream(0, 8, 15.0)),
    Transfer("C", stream(1, 8, 30.0)),
    Transfer("C", stream(12, 8, 29.8)),
)
MET = {"every job's rate": (True, False), "one job of": (True, False), "every job that": (True, False)}


def test_figure_8c_is_met_by_jobs_that_each_get_what_they_ask_for() -> None:
    assert result(*GOOD) == MET
    # Nothing of it is judged where the reference had not its rate.
    assert all(marked for _, marked in result(*GOOD, reference=0.9).values())


def test_the_interval_in_which_a_job_has_its_last_bytes_is_no_part_of_its_rate() -> None:
    whole = stream(0, 8, 5.0)
    assert result(Transfer("A", Stream(0.0, (*whole.rates, (8.5, 1.0)), 4.8)), *GOOD[1:]) == MET


@pytest.mark.parametrize(
    "bad",
    [
        Transfer("A", None),
        Transfer("A", Stream(0.0, (), 0.0)),
        Transfer("A", stream(0, 8, 0.0)),
        Transfer("A", stream(0, 8, 4.5)),
        Transfer("A", stream(0, 8, 5.5)),
        Transfer("A", stream(0, 2, 5.0)),
    ],
)
def test_figure_8c_is_missed_by_a_job_that_gets_nothing_or_too_little_or_too_much(bad: Transfer) -> None:
    assert result(bad, *GOOD[1:])["every job's rate"] == (False, False)
    assert result(bad, *GOOD[1:], reference=0.9)["every job's rate"] == (False, True)


def test_jobs_that_ask_for_more_than_the_link_beside_each_other_are_seen() -> None:
    assert sequence.most_at_once(GOOD, ASKED) == 50
    both = (*GOOD[:3], Transfer("C", stream(3, 8, 30.0)))
    assert sequence.most_at_once(both, ASKED) == 80
    assert result(*both)["one job of"] == (False, False)
    assert sequence.most_at_once((Transfer("A", None),), ASKED) == 0


def test_a_link_that_is_never_asked_for_as_a_whole_is_seen() -> None:
    alone = (*GOOD[:2], Transfer("C", stream(9, 8, 30.0)), Transfer("C", stream(20, 8, 30.0)))
    assert result(*alone)["one job of"] == (False, False)


def test_the_wait_of_a_job_is_the_time_for_which_what_it_asks_for_was_free() -> None:
    assert sequence.waits(GOOD, ASKED, 50) == [3.0]
    # Of two that wait for the same, the second's wait begins when the first ends.
    two = (*GOOD, Transfer("C", stream(25, 8, 30.0)))
    assert sequence.waits(two, ASKED, 50) == [3.0, 5.0]
    # What is free for the small one does not make the large one wait.
    small = (Transfer("A", stream(10, 30, 5.0)), Transfer("B", stream(0, 20, 15.0)), Transfer("C", stream(0, 9, 30.0)))
    assert sequence.waits((*small, Transfer("C", stream(24, 8, 30.0))), ASKED, 49) == [1.0, 4.0]


def test_a_job_that_waits_although_enough_is_free_is_seen() -> None:
    late = (*GOOD[:3], Transfer("C", stream(9 + sequence.BEGINS_WITHIN + 1, 8, 30.0)))
    assert result(*late)["every job that"] == (False, False)
    # All at once is no sequence: each but the first of a kind is to wait.
    at_once = (*GOOD[:3], Transfer("C", stream(3, 8, 30.0)))
    assert result(*at_once)["every job that"] == (False, False)


def test_table_3_is_the_ratio_of_the_times_of_uploads_that_count() -> None:
    managed = keep([Taken(Upload(4.0, 45.0), Meanwhile(1.0)), Taken(Upload(9.0, 20.0), Meanwhile(0.5))])
    unmanaged = keep([Taken(Upload(seconds, 9.0), Meanwhile(0.995, 0.02)) for seconds in (18.0, 20.0, 25.0)])
    point = uploads.speed_up(4, managed, unmanaged)
    assert (point.y, point.low, point.high, point.reference, point.steal) == (5.0, 4.5, 6.25, 0.995, 0.02)
    assert not point.marked
    assert uploads.speed_up(4, managed, keep([Taken(Upload(20.0, 9.0), Meanwhile(0.9))])).marked


@pytest.mark.parametrize("scale", [0.2, 1.0, 2.0])
def test_uploads_take_as_long_at_any_scale_and_are_repeated_five_times(scale: float) -> None:
    options = Options(scale=scale)
    assert uploads.expected(0, options) == pytest.approx(uploads.expected(0, Options()))
    assert uploads.expected(15, options) == pytest.approx(16 * uploads.expected(0, options))
    assert uploads.repetitions(options) >= 5


@pytest.mark.parametrize(("rates", "share"), [([], 5.0), ([2.0, 0.0], 2.0), ([0.5, 0.5], 5.0)])
def test_an_upload_beside_others_that_do_not_send_is_an_error_and_no_perfect_management(
    rates: list[float], share: float
) -> None:
    with pytest.raises(LabError, match="were to have"):
        uploads.check_others(rates, share)
    uploads.check_others([share / 2, share / 2], share)


def test_an_upload_that_fails_is_tried_again_and_not_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    good = Taken(Upload(4.0, 45.0), Meanwhile(1.0))
    answers: list[Taken[Upload] | None] = [None, good]

    def measure() -> Taken[Upload]:
        answer = answers.pop(0)
        if answer is None:
            raise LabError("the server is busy")
        return answer

    assert uploads.persistent(measure) is good
    assert "tried again: the server is busy" in capsys.readouterr().err
    answers += [None] * uploads.TRIES
    with pytest.raises(LabError, match="busy"):
        uploads.persistent(measure)
    assert not answers


def test_the_reactive_policy_names_no_network_of_jobs() -> None:
    assert "  jobs: " in policy()
    assert "  jobs: " not in lark_latency.reactive()
    assert "  local: " in lark_latency.reactive()
    assert "slice: {by: Owner}" in lark_latency.reactive()
