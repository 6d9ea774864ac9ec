"""Results as they come out of measurements: aims that are met, missed or not judged, and the paper's values beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from experiments import calibration, lark_host, lark_latency, lark_start, lark_wan, paper, uploads
from experiments.beside import Kept, Meanwhile, Taken, keep
from experiments.options import Options
from experiments.pool import Stream
from experiments.result import Result
from experiments.uploads import Upload

T = TypeVar("T")
LATE = Meanwhile(0.8, 0.3, 1.0, 0.9)
FINE = Meanwhile(1.0, 0.0, 0.5, 0.4)


def kept(*values: T, meanwhile: Meanwhile = FINE) -> Kept[T]:
    return keep([Taken(value, meanwhile) for value in values])


def verdicts(result: Result) -> list[str]:
    return ["not judged" if each.marked else "met" if each.met else "missed" for each in result.checks]


def stream(rate: float, began: float = 0.0) -> Stream:
    return Stream(began, tuple((half / 2, rate) for half in range(1, 21)), rate)


@pytest.mark.parametrize(
    ("rates", "meanwhile", "said"),
    [
        ((5.0, 15.0, 30.0), FINE, "met"),
        ((5.0, 15.0, 20.0), FINE, "missed"),
        ((0.0, 15.0, 30.0), FINE, "missed"),
        ((5.0, 15.0, 20.0), LATE, "not judged"),
        ((5.0, 15.0, 30.0), LATE, "not judged"),
    ],
)
def test_figure_8a_is_judged_by_sound_measurements_alone(
    rates: Sequence[float], meanwhile: Meanwhile, said: str
) -> None:
    streams = dict(zip("ABC", map(stream, rates), strict=True))
    result = lark_host.figure_8a(kept(streams, meanwhile=meanwhile), Options())
    assert verdicts(result) == [said]
    assert {each.name for each in result.series if each.paper} == {f"{name}'s request" for name in "ABC"}


def test_an_even_share_is_no_value_of_the_papers() -> None:
    streams = {name: stream(16.6) for name in "ABC"}
    managed = {name: stream(rate) for name, rate in zip("ABC", (5, 15, 30), strict=True)}
    result = lark_host.figure_8b(kept(streams), kept(managed), Options())
    assert verdicts(result) == ["met", "met"]
    assert not any(each.paper for each in result.series)
    assert verdicts(lark_host.figure_8b(kept(streams), kept(managed, meanwhile=LATE), Options()))[1] == "not judged"


@pytest.mark.parametrize(("rates", "said"), [((6.25, 6.25, 2.5, 2.5), "met"), ((6.25, 6.25, 5.0, 0.0), "missed")])
def test_figure_10_has_the_groups_rates_and_the_jobs_of_one(rates: Sequence[float], said: str) -> None:
    runs = kept(list(map(stream, rates)))
    assert verdicts(lark_wan.figure_10b(runs, Options())) == [said]
    groups = lark_wan.figure_10a(runs, Options())
    assert verdicts(groups) == ["met" if sum(rates[2:]) == 5 else "missed"]
    assert [each.points[0].y for each in groups.series if each.paper] == [12.5, 5.0]


def test_table_3_stands_beside_the_papers_and_figure_12_leaves_out_what_is_not_sound() -> None:
    managed = {1: kept(Upload(4.4, 45.0)), 15: kept(Upload(9.0, 20.0), meanwhile=LATE)}
    unmanaged = {1: kept(Upload(8.8, 22.0)), 15: kept(Upload(88.0, 2.8))}
    figure = uploads.figure_12(managed, unmanaged, Options())
    assert verdicts(figure) == ["met", "met"]
    assert "1 of 2 marked" in figure.checks[0].found
    table = uploads.table_3(managed, unmanaged, Options())
    assert [(point.y, point.marked) for point in table.series[0].points] == [(2.0, False), (88 / 9, True)]
    theirs = next(each for each in table.series if each.paper)
    assert [point.y for point in theirs.points] == [paper.SPEED_UP[1], paper.SPEED_UP[15]]
    assert table.setting["MB of each upload"] == 25


def latency(**changed: Kept[list[float]]) -> Result:
    names = ("plain", "worker", "job", "first", "decided", "sent", "received")
    usual = dict(zip(names, (0.1, 0.15, 0.2, 1.5, 12.0, 0.5, 0.5), strict=True))
    return lark_latency.latency({name: changed.get(name) or kept([usual[name]]) for name in names}, Options())


def test_latency_is_held_to_a_baseline_without_open_vswitch_and_to_the_papers_reactive_case() -> None:
    assert verdicts(latency()) == ["met"] * 5
    assert verdicts(latency(worker=kept([0.5])))[:2] == ["missed", "met"]
    assert verdicts(latency(plain=kept([0.1], meanwhile=LATE)))[:2] == ["not judged", "met"]
    assert verdicts(latency(first=kept([7.0]), decided=kept([60.0])))[2:4] == ["missed", "missed"]
    (theirs,) = (each for each in latency().series if each.paper)
    assert [(point.x, point.y) for point in theirs.points] == [(5, 50.0)]


def took(batch: float, meanwhile: Meanwhile = FINE) -> Kept[Mapping[str, float]]:
    stages: Mapping[str, float] = {"batch": batch, "start": batch / 2}
    return kept(stages, meanwhile=meanwhile)


@pytest.mark.parametrize(
    ("batch", "said"),
    [((1000, 1500, 1900, 1350), ["met", "met"]), ((1000, 1500, 2100, 1500), ["missed", "missed"])],
)
def test_start_up_is_held_to_what_the_paper_adds_with_a_new_and_a_cached_lease(
    batch: Sequence[float], said: list[str]
) -> None:
    found = {kind: took(float(seconds)) for kind, seconds in zip(lark_start.KINDS, batch, strict=True)}
    assert verdicts(lark_start.overhead(found, "native")) == said
    found[lark_start.KINDS[0]] = took(1000.0, LATE)
    assert verdicts(lark_start.overhead(found, "native")) == ["not judged", "not judged"]


def test_calibration_says_where_no_scale_is_carried() -> None:
    tried = {2.0: [Taken(None, LATE)] * 3, 1.0: [Taken(None, FINE)] * 3}
    assert verdicts(calibration.result(tried, 1.0, carried=True, options=Options())) == ["met"]
    lost = calibration.result({0.2: [Taken(None, LATE)] * 3}, 0.2, carried=False, options=Options())
    assert verdicts(lost) == ["missed"]
    assert "most of their values are marked" in lost.checks[0].found
