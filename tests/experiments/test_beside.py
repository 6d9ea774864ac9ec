"""Measurements beside a reference stream: those that count, are made again or marked; and the scale that is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import beside, page, plot, pool
from experiments.beside import TOLERANCE, TRIES, Meanwhile, Processors, Taken, keep, repeat, wants_more
from experiments.result import Beside, Check, Point, Result, Series, read, write
from lab.run import LabError
from tests.lab import streams
from tests.lab.beside import TRIES as TRIES_OF_TESTS
from tests.lab.beside import NotTogetherError, Rates, first_sound

references = st.floats(0, 1.2, allow_nan=False)
measurements = st.lists(st.builds(Taken, st.floats(0, 1000), st.builds(Meanwhile, references)), min_size=1, max_size=20)


def taken(value: float, reference: float = 1.0, steal: float = 0.0) -> Taken[float]:
    return Taken(value, Meanwhile(reference, steal, 0.5, 0.25))


@pytest.mark.parametrize(
    ("reference", "sound"),
    [(1.0, True), (0.991, True), (1.009, True), (0.989, False), (1.011, False), (0.0, False), (0.45, False)],
)
def test_a_measurement_is_sound_if_its_reference_has_its_rate_within_one_percent(reference: float, sound: bool) -> None:
    assert Meanwhile(reference).sound is sound


@pytest.mark.parametrize(
    ("programs", "outside", "sound"), [(False, 1.0, True), (True, 0.95, True), (True, 0.96, False), (True, 0.1, True)]
)
def test_the_time_of_programs_is_sound_where_the_processors_had_time_left(
    programs: bool, outside: float, sound: bool
) -> None:
    assert Meanwhile(1.0, 0.0, outside, 0.5, programs).sound is sound
    assert not Meanwhile(0.9, 0.0, outside, 0.5, programs).sound


@pytest.mark.parametrize("printed", ["", "{", '{"error": "the server is busy"}'])
def test_a_reference_that_failed_delivers_nothing_so_what_stands_beside_it_is_not_sound(printed: str) -> None:
    assert pool.delivered(printed) == 0
    assert not Meanwhile(pool.delivered(printed) / 2).sound


def test_of_two_references_the_worse_one_judges() -> None:
    near, far = Meanwhile(0.995), Meanwhile(1.02)
    assert beside.worse(near, far) is far
    assert beside.worse(far, near) is far


def test_kinds_are_measured_by_turns_until_enough_of_each_is_sound() -> None:
    made: list[str] = []
    of = {"one": iter([1.0, 0.9, 1.0]), "other": iter([1.0, 1.0])}

    def measure(kind: str) -> Taken[str]:
        made.append(kind)
        return Taken(f"{kind} {len(made)}", Meanwhile(next(of[kind])))

    found = beside.by_turns({kind: partial(measure, kind) for kind in of}, 2)
    assert made == ["one", "other", "one", "other", "one"]
    assert [kept.values for kept in found.values()] == [("one 1", "one 5"), ("other 2", "other 4")]


@given(measurements)
def test_what_is_not_sound_is_never_averaged_with_what_is(several: list[Taken[float]]) -> None:
    kept = keep(several)
    sound = tuple(each.value for each in several if abs(each.meanwhile.reference - 1) <= TOLERANCE)
    assert kept.values == (sound or tuple(each.value for each in several))
    assert kept.marked is not bool(sound)
    assert kept.taken == tuple(several)
    point = Point.judged(1, kept, lambda value: value)
    assert point.marked is kept.marked
    assert min(kept.values) <= point.y <= max(kept.values)
    if not kept.marked:
        assert point.reference is not None
        assert Meanwhile(point.reference).sound


@given(st.lists(references, min_size=60, max_size=60), st.integers(1, 10))
def test_a_measurement_is_repeated_until_enough_are_sound_and_not_for_ever(rates: list[float], wanted: int) -> None:
    later = iter(rates)
    kept = repeat(lambda: taken(1.0, next(later)), wanted)
    sound = sum(each.meanwhile.sound for each in kept.taken)
    assert wanted <= len(kept.taken) <= wanted * TRIES
    assert sound == wanted or len(kept.taken) == wanted * TRIES
    assert sound <= wanted
    assert not wants_more(kept.taken, wanted)


@pytest.mark.parametrize(("found", "kept"), [((10, 30), True), ((8.6, 30), True), ((8.4, 30), False), ((10, 0), False)])
def test_the_labs_tests_hold_rates_to_what_is_wanted_and_to_no_less(found: tuple[float, float], kept: bool) -> None:
    assert Rates(found, 1.0).have((10, 30)) is kept


def test_the_labs_tests_take_the_first_sound_measurement_also_where_it_fails() -> None:
    several = iter([((30.0,), 0.9), ((1.0,), 1.0), ((30.0,), 1.0)])

    def measure() -> Taken[Sequence[float]]:
        found, got = next(several)
        return Taken(found, Meanwhile(got))

    rates = first_sound(measure)
    assert rates == Rates((1.0,), 1.0)
    assert not rates.have((30,))


@pytest.mark.parametrize(
    ("references", "enough", "counts"),
    [
        # Repeated three times, then marked.
        ((0.97, 0.97, 0.97, 0.96), True, 4),
        # Too late for a stream of too much to be seen.
        ((0.97, 0.97, 0.97, 0.90, 0.95), True, 5),
        # What has too little counts beside a sound reference alone.
        ((0.97, 0.97, 0.97, 0.96, 1.0), False, 5),
        # A sound one counts at once.
        ((0.97, 1.0), True, 2),
    ],
)
def test_what_has_enough_beside_a_late_reference_time_and_again_counts_and_is_marked(
    references: tuple[float, ...], enough: bool, counts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    several: Iterator[Taken[Sequence[float]]] = iter(
        [Taken((float(number),), Meanwhile(got)) for number, got in enumerate(references, 1)]
    )
    found = first_sound(lambda: next(several), lambda _: enough)
    assert found == Rates((float(counts),), references[counts - 1])
    assert ("marked" in capsys.readouterr().out) is (abs(found.reference - 1) > TOLERANCE)


def test_the_labs_tests_fail_where_no_measurement_is_sound() -> None:
    several = []

    def measure() -> Taken[Sequence[float]]:
        several.append(1)
        return Taken((30.0,), Meanwhile(0.5))

    with pytest.raises(LabError, match=r"no measurement is sound.* \(30\.00\) beside 0\.500 and 0\.00, \(30"):
        first_sound(measure)
    assert len(several) == TRIES_OF_TESTS


def a_stream(began: float, rates: Sequence[float], interval: float = 0.5) -> pool.Stream:
    ends = (round(interval * (place + 1), 3) for place in range(len(rates)))
    return pool.Stream(began, tuple(zip(ends, rates, strict=True)), 0.0)


def test_streams_that_share_a_queue_are_counted_while_all_of_them_run() -> None:
    # The first is alone for half a second, and the last one for the same time.
    first = a_stream(100.0, [10.0] + [5.0] * 19)
    second = a_stream(100.5, [5.0] * 19 + [10.0])
    assert streams.in_common([first, second], 6.0) == [5.0, 5.0]
    late = a_stream(100.0 + 8.5, [5.0] * 20)
    with pytest.raises(NotTogetherError, match="in common"):
        streams.in_common([first, late], 6.0)
    with pytest.raises(NotTogetherError):
        streams.in_common([first, a_stream(100.0, [])], 6.0)


def test_what_nobody_measured_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        keep([])


@pytest.mark.parametrize(
    ("tried", "chosen"),
    [
        ({2.0: [1.0, 1.0, 1.0]}, (2.0, True)),
        ({2.0: [0.99, 0.99, 1.0], 1.0: [1.0, 0.5, 0.996]}, (1.0, True)),
        ({2.0: [0.9] * 3, 1.0: [0.98] * 3, 0.2: [0.9, 0.9, 1.0]}, (0.2, False)),
        ({1.0: [1.0, 0.9]}, (1.0, False)),
        ({1.0: []}, (1.0, False)),
    ],
)
def test_the_greatest_scale_that_is_carried_is_chosen(
    tried: dict[float, list[float]], chosen: tuple[float, bool]
) -> None:
    assert beside.scale(tried) == chosen


@given(st.dictionaries(st.sampled_from(beside.SCALES), st.lists(references, min_size=1, max_size=5), min_size=1))
def test_no_scale_above_the_chosen_one_is_carried(tried: dict[float, list[float]]) -> None:
    chosen, carried = beside.scale(tried)
    assert chosen in tried
    assert carried is any(map(beside.is_carried, tried.values()))
    assert not any(beside.is_carried(several) for factor, several in tried.items() if carried and factor > chosen)


def test_without_a_trial_no_scale_is_chosen() -> None:
    with pytest.raises(ValueError, match="no scale was tried"):
        beside.scale({})


def test_with_every_scale_of_calibration_jobs_ask_for_whole_megabits() -> None:
    assert all(round(factor * each, 6) == round(factor * each) for factor in beside.SCALES for each in (5, 15, 30))


def test_processors_are_read_as_the_kernel_counts_them() -> None:
    # Guests' time is part of user's, and waiting for a disk is no work.
    first = Processors.of("cpu  100 10 50 800 20 5 5 10 60 0\ncpu0 1 2 3\n")
    assert first == Processors(busy=170, stolen=10, total=1000)
    later = Processors.of("cpu  140 10 60 830 30 5 5 20 90 0\n")
    assert first.shares(later) == (0.5, 0.1)
    assert first.shares(first) == (0, 0)
    assert Processors.of(Path("/proc/stat").read_text()).total > 0


@pytest.mark.parametrize("text", ["", "cpu", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 3"])
def test_what_is_no_proc_stat_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the first line of /proc/stat"):
        Processors.of(text)


def test_an_aim_is_held_against_sound_values_alone_and_says_what_was_left_out() -> None:
    check = Check.of("within 5 %", [(1.01, False), (0.5, True)], lambda ratio: abs(ratio - 1) <= 0.05)
    assert check == Check("within 5 %", "1.010 to 1.010 of it (1 of 2 marked)", met=True)
    check = Check.of("within 5 %", [(0.5, True)], lambda ratio: abs(ratio - 1) <= 0.05, "{} of it")
    assert check == Check("within 5 %", "0.500 of it (1 of 1 marked)", met=False, marked=True)
    with pytest.raises(ValueError, match="nothing was measured for: an aim"):
        Check.of("an aim", [], bool)


RESULT = Result(
    name="sweep",
    title="Delivered against configured",
    source="Lark, Fig. 11",
    x_label="configured, Mb/s",
    y_label="delivered, Mb/s",
    series=(
        Series(
            "Lark",
            (
                Point.judged(10, keep([taken(9.9, 0.995, 0.01), taken(9.7, 0.999), taken(5.0, 0.6, 0.3)]), float),
                Point.judged(20, keep([taken(12, 0.62, 0.25), taken(13, 0.7, 0.35)]), float),
            ),
        ),
        Series("configured", (Point(10, 10), Point(20, 20)), aim=True),
    ),
    checks=(Check("0.98 to 1.00", "0.62", met=False, marked=True),),
    beside=Beside.of([taken(9.9, 0.995, 0.01), taken(9.7, 0.999), taken(5.0, 0.6, 0.3)]),
    made="2026-01-02",
)


def test_the_page_shows_each_result_beside_its_reference_and_marks_what_is_not_sound(tmp_path: Path) -> None:
    shown = page.text([read(write(RESULT, tmp_path))], "pictures")
    for part in (
        "| configured, Mb/s | Lark | configured | reference stream at its worst, of its rate | processors taken away "
        "at most |",
        "| 10 | 9.80 (9.70 to 9.90) | 10.0 | 0.995 | 1.0% |",
        "| 20 | 12.5 (12.0 to 13.0)† | 20.0 | 0.620 | 35.0% |",
        "† Nothing sound was measured here",
        "| 0.98 to 1.00 | 0.62 | not judged |",
        "Measured on 2026-01-02, 2 of 3 measurements sound",
        "had 0.995 to 0.999 of its rate",
    ):
        assert part in shown, shown


def test_a_result_with_references_is_read_as_it_was_written_and_drawn(tmp_path: Path) -> None:
    assert read(write(RESULT, tmp_path)) == RESULT
    assert "<svg" in plot.plot(RESULT, tmp_path)[1].read_text()
