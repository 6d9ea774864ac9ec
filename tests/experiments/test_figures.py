"""Results as they come out of measurements: aims that are met, missed or not judged, and the paper's values beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from experiments import calibration, lark_host, lark_latency, lark_start, lark_wan, paper, qos_framework, rates, uploads
from experiments.beside import Kept, Meanwhile, Taken, keep
from experiments.cluster import Played
from experiments.measured import Measured
from experiments.nodes import Request, Run
from experiments.options import Options
from experiments.pool import Stream
from experiments.result import Result
from experiments.uploads import Upload
from lab.run import LabError

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
    ("found", "meanwhile", "said"),
    [
        ((5.0, 15.0, 30.0), FINE, "met"),
        ((5.0, 15.0, 20.0), FINE, "missed"),
        ((0.0, 15.0, 30.0), FINE, "missed"),
        ((5.0, 15.0, 20.0), LATE, "not judged"),
        ((5.0, 15.0, 30.0), LATE, "not judged"),
    ],
)
def test_figure_8a_is_judged_by_sound_measurements_alone(
    found: Sequence[float], meanwhile: Meanwhile, said: str
) -> None:
    streams = dict(zip("ABC", map(stream, found), strict=True))
    result = lark_host.figure_8a(kept(streams, meanwhile=meanwhile), Options())
    assert verdicts(result) == [said]
    theirs = zip("ABC", (100, 300, 600), strict=True)
    names = {f"{name}'s request (the paper's {rate}, scaled)" for name, rate in theirs}
    assert {each.name for each in result.series if each.paper} == names


def test_rates_of_ones_own_are_not_called_the_papers_in_any_figure() -> None:
    own = {"host_rates": {"A": 80, "B": 200, "C": 400}, "wan_queues": {"cms": 300, "other": 90}}
    options = Options(rates=rates.of(own))
    streams = dict(zip("ABC", map(stream, (4.0, 10.0, 20.0)), strict=True))
    assert not any(each.paper for each in lark_host.figure_8a(kept(streams), options).series)
    runs = kept(list(map(stream, (7.5, 7.5, 2.25, 2.25))))
    assert not any(each.paper for each in lark_wan.figure_10a(runs, options).series)


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
    managed = {1: kept(Upload(4.4, 45.0, 4.2, 5.0)), 15: kept(Upload(9.0, 20.0, 8.8, 5.0), meanwhile=LATE)}
    unmanaged = {1: kept(Upload(8.8, 22.0, 8.6, 22.0)), 15: kept(Upload(88.0, 2.8, 87.8, 44.0))}
    figure = uploads.figure_12(managed, unmanaged, Options())
    assert verdicts(figure) == ["met", "met", "met"]
    assert "1 of 2 marked" in figure.checks[0].found
    table = uploads.table_3(managed, unmanaged, Options())
    assert [(point.y, point.marked) for point in table.series[0].points] == [(2.0, False), (88 / 9, True)]
    theirs = next(each for each in table.series if each.paper)
    assert [point.y for point in theirs.points] == [paper.SPEED_UP[1], paper.SPEED_UP[15]]
    # Of what is marked nothing counts.
    assert (table.checks[-1].found, table.checks[-1].met, table.checks[-1].marked) == ("0 to 1", False, False)
    whole = {1: kept(*[Upload(4.4, 45.0, 4.2, 5.0)] * 5)}
    assert uploads.table_3(whole, whole, Options()).checks[-1].met
    assert not uploads.table_3(whole, {1: kept(*whole[1].values[:4])}, Options()).checks[-1].met
    assert table.setting["MB of each upload"] == 1000 / 20
    assert "(5.7 against 4.5; at 15: 25.2 against 14.4)" in " ".join(table.notes)


@pytest.mark.parametrize(
    ("seconds", "others", "said"),
    [(3.2, 5.0, ["met", "met", "met"]), (5.0, 5.0, ["met", "missed", "missed"]),
     (2.3, 5.0, ["met", "missed", "missed"]), (3.2, 6.0, ["missed", "met", "met"]),
     (3.2, 2.5, ["missed", "met", "met"])],
)  # fmt: skip
def test_management_that_gives_too_much_is_missed_like_too_little(
    seconds: float, others: float, said: Sequence[str]
) -> None:
    # An upload takes 1.86 s with management, and the job another second.
    managed = {1: kept(Upload(2.86, 45.0, 1.86, others))}
    unmanaged = {1: kept(Upload(seconds + 1, 25.0, seconds, 25.0))}
    figure = uploads.figure_12(managed, unmanaged, Options())
    table = uploads.table_3(managed, unmanaged, Options())
    assert [verdicts(figure)[2], *verdicts(table)[:2]] == said


def test_the_papers_table_does_not_stand_beside_other_allocations() -> None:
    options = Options(rates=rates.of({"priority": [700, 300]}))
    one = {1: kept(Upload(4.5, 35.0, 4.4, 15.0))}
    assert not any(each.paper for each in uploads.table_3(one, one, options).series)
    assert not any(each.paper for each in uploads.figure_12(one, one, options).series)


def latency(**changed: Kept[list[float]]) -> Result:
    names = ("plain", "worker", "job", "first", "new", "decided", "decided_new", "sent", "received")
    usual = dict(zip(names, (0.1, 0.15, 0.2, 1.5, 2.0, 12.0, 14.0, 0.5, 0.5), strict=True))
    places = {name: changed.get(name) or kept([usual[name]] * lark_latency.DESTINATIONS) for name in names}
    return lark_latency.latency(places, Options())


def test_latency_is_held_to_a_baseline_without_open_vswitch_and_to_the_papers_reactive_case() -> None:
    assert verdicts(latency()) == ["met"] * 7
    assert verdicts(latency(worker=kept([0.5])))[:2] == ["missed", "met"]
    assert verdicts(latency(plain=kept([0.1], meanwhile=LATE)))[:2] == ["not judged", "met"]
    slow = latency(first=kept([7.0] * lark_latency.DESTINATIONS), decided=kept([60.0] * lark_latency.DESTINATIONS))
    assert verdicts(slow)[2:6] == ["met", "missed", "met", "missed"]
    slow = latency(new=kept([7.0] * lark_latency.DESTINATIONS), decided_new=kept([60.0] * lark_latency.DESTINATIONS))
    assert verdicts(slow)[2:6] == ["met", "met", "missed", "missed"]
    (theirs,) = (each for each in latency().series if each.paper)
    assert [(point.x, point.y) for point in theirs.points] == [(6, 50.0), (7, 50.0)]


def test_a_first_packet_that_is_lost_counts() -> None:
    lost = latency(first=kept([1.5] * (lark_latency.DESTINATIONS - 1)))
    assert (lost.checks[2].found, lost.checks[2].met) == ("39 of 40", False)
    late = kept([1.0] * 9, meanwhile=LATE)
    assert verdicts(latency(first=late, new=late, decided=late, decided_new=late))[2] == "not judged"


@dataclass
class Asked:
    """A pool whose controller counts so many questions for each ping, and a job that pings."""

    rises: list[int]
    count: float = 0.0

    def counted(self, _: str) -> float:
        return self.count

    def run(self, *_: object) -> SimpleNamespace:
        self.count += self.rises.pop(0)
        return SimpleNamespace(stdout="64 bytes: time=12.5 ms\n")


def test_a_first_packet_counts_as_decided_about_where_the_controller_was_asked_for_it() -> None:
    asked: Any = Asked([2, 1] * (lark_latency.DESTINATIONS // 2))
    addresses = [f"10.64.200.{number}" for number in range(1, 11)]
    assert lark_latency.decided_about(asked, asked, addresses) == [12.5] * len(addresses)
    # Two questions for each of the others, an answer's among them, make up for none in the sum alone.
    asked = Asked([2] * 7 + [0, 2, 2])
    with pytest.raises(LabError, match=r"the first packet to 10\.64\.200\.8 did not come to the controller"):
        lark_latency.decided_about(asked, asked, addresses)


def test_every_measurement_of_new_addresses_has_its_own() -> None:
    scripts: list[str] = []
    pool: Any = SimpleNamespace(on=lambda _, script: scripts.append(script))
    unknown = iter([("10.64.201.1",), ("10.64.201.2",)])
    assert [lark_latency.added(pool, unknown) for _ in range(2)] == [("10.64.201.1",), ("10.64.201.2",)]
    assert ["10.64.201.1/" in scripts[0], "10.64.201.2/" in scripts[1]] == [True, True]
    with pytest.raises(LabError, match="no further addresses"):
        lark_latency.added(pool, unknown)


def took(batch: float, meanwhile: Meanwhile = FINE, asked: tuple[int, int] = (0, 0)) -> Kept[Mapping[str, float]]:
    stages: Mapping[str, float] = {"batch": batch, "start": batch / 2, "discover": asked[0], "request": asked[1]}
    return kept(stages, meanwhile=meanwhile)


ASKED = ((0, 0), (0, 0), (1, 1), (0, 1))


@pytest.mark.parametrize(
    ("batch", "said"),
    [((1000, 1500, 1900, 1350), ["met", "met"]), ((1000, 1500, 2100, 1500), ["missed", "missed"])],
)
def test_start_up_is_held_to_what_the_paper_adds_with_a_new_and_a_cached_lease(
    batch: Sequence[float], said: list[str]
) -> None:
    kinds = zip(lark_start.KINDS, batch, ASKED, strict=True)
    found = {kind: took(float(seconds), asked=asked) for kind, seconds, asked in kinds}
    assert verdicts(lark_start.overhead(found, "native")) == ["met", *said]
    found[lark_start.KINDS[0]] = took(1000.0, LATE)
    assert verdicts(lark_start.overhead(found, "native")) == ["met", "not judged", "not judged"]


@pytest.mark.parametrize(("kind", "asked"), [(1, (0, 1)), (2, (0, 1)), (2, (0, 0)), (3, (1, 1)), (3, (0, 0))])
def test_a_start_whose_lease_is_not_of_its_kind_is_seen(kind: int, asked: tuple[int, int]) -> None:
    found = {name: took(1000.0, asked=usual) for name, usual in zip(lark_start.KINDS, ASKED, strict=True)}
    found[lark_start.KINDS[kind]] = took(1000.0, asked=asked)
    check = lark_start.overhead(found, "native").checks[0]
    assert (check.found, check.met) == ("so in 3 of 4 starts", False)


def played(seconds: float, *background: float, meanwhile: Meanwhile = FINE) -> Kept[Played]:
    return kept(Played((seconds,), background), meanwhile=meanwhile)


def test_figure_12_of_the_qos_framework_shows_what_the_background_flows_got() -> None:
    times = {
        "free": played(1.0), "noise 2": played(1.6, 5.0, 3.0),
        "alone 28": played(1.2), "reserved noise 2": played(1.2, 0.5, 0.25),
    }  # fmt: skip
    result = qos_framework.with_background(4, 28.0, [2], Measured(times), Options())
    assert verdicts(result) == ["met"] * 3
    assert "2 flows 8.00 Mb/s beside flows without a reservation, 0.75 beside reserved ones" in " ".join(result.notes)
    times["reserved noise 2"] = played(1.2, 0.5, 0.0)
    assert verdicts(qos_framework.with_background(4, 28.0, [2], Measured(times), Options())) == ["met", "met", "missed"]


@pytest.mark.parametrize(("floor", "said"), [(1.04, "met"), (1.06, "missed")])
def test_an_exchange_that_reserves_a_floor_is_held_to_one_that_reserves_nothing(floor: float, said: str) -> None:
    rates, options = (7.0, 35.0), Options()
    made: list[Run] = []

    def nothing(request: Request, *_: object) -> Measured:
        made.extend(request.runs)
        return Measured({})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qos_framework, "measure", nothing)
        with pytest.raises(LabError):
            qos_framework.run(options)
    floors = [each for each in made if each.floor]
    assert [(each.name, each.background) for each in floors] == [
        (f"floor {rate:g}", 0) for rate in qos_framework.rates(4, options)
    ]
    request = qos_framework.requested(4, made, 1.0, options)
    payload = request.size * request.rounds / (1e6 * qos_framework.scale(4, options) * qos_framework.PAYLOAD)
    times = {"free": played(1.0), "free 5+8": played(9.0)}
    times |= {f"alone {rate:g}": played(payload / rate) for rate in rates}
    times |= {f"floor {rate:g}": played(floor) for rate in rates}
    result = qos_framework.against_allocation(4, rates, Measured(times), request, options)
    assert verdicts(result) == ["met", "met", said]
    assert result.beside is not None
    assert result.beside.taken == 1 + 2 * len(rates)
    assert result.setting["repetitions"] == 1
    # Without them the figure is there, and names them.
    broken = Measured({name: each for name, each in times.items() if "floor" not in name}, {"floor 7": "it broke"})
    without = qos_framework.against_allocation(4, rates, broken, request, options)
    assert verdicts(without) == ["met", "met"]
    assert without.notes[-1] == "Not measured, and left out: floor 7 (it broke)."


@pytest.mark.parametrize(("seconds", "said"), [(1.0, "met"), (1.06, "missed"), (0.94, "missed")])
def test_figure_13_of_the_qos_framework_is_missed_where_an_application_is_faster_too(seconds: float, said: str) -> None:
    times = {"alone 5": played(1.0), "together 5": played(seconds), "free 5": played(0.5)}
    assert verdicts(qos_framework.at_once(4, [(5.0,)], Measured(times), Options())) == [said]


def test_calibration_says_where_no_scale_is_carried() -> None:
    tried = {2.0: [Taken(None, LATE)] * 3, 1.0: [Taken(None, FINE)] * 3}
    assert verdicts(calibration.result(tried, 1.0, carried=True, options=Options())) == ["met"]
    lost = calibration.result({0.2: [Taken(None, LATE)] * 3}, 0.2, carried=False, options=Options())
    assert verdicts(lost) == ["missed"]
    assert "most of their values are marked" in lost.checks[0].found
