"""The experiments' frame: results survive JSON, are drawn and shown; the exchange application ends on every node."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import cable, exchange, lark_host, page, paper, plot, pool, qos_allocation, qos_framework, rates
from experiments.__main__ import PAGE, RESULTS
from experiments.options import Options
from experiments.result import TIME, Beside, Check, Point, Result, Series, read, scaled, write
from lab.run import LabError, free_port

RESULT = Result(
    name="sweep",
    title="Delivered against configured",
    source="Lark, Fig. 11",
    x_label="configured, Mb/s",
    y_label="delivered, Mb/s",
    series=(
        Series("Lark", (Point.of(10, [9.9, 9.7, 9.8]), Point(100, 99.0))),
        Series("configured", (Point(10, 10), Point(100, 100)), paper=True),
    ),
    checks=(Check("0.98 to 1.00", "0.97", met=False),),
    setting={"scale": 0.5, "repetitions": 3},
    notes=("Rates are halved.",),
)


def test_a_point_of_repetitions_has_their_median_and_their_ends() -> None:
    assert Point.of(3, [5, 1, 2]) == Point(3, 2, 1, 5)
    assert Point.of(3, [4, 1, 2, 3]) == Point(3, 2.5, 1, 4)
    with pytest.raises(ValueError, match="nothing was measured at 3"):
        Point.of(3, [])


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read(write(RESULT, tmp_path / "new")) == RESULT


def test_a_result_is_drawn_as_png_and_svg(tmp_path: Path) -> None:
    png, svg = plot.plot(RESULT, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_the_page_in_the_repository_is_made_of_its_results(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    target.write_text(PAGE.read_text())
    page.replace(target, page.text(map(read, RESULTS.glob("*.json")), RESULTS.name))
    assert target.read_text() == PAGE.read_text()


def test_applications_at_other_rates_than_todays_are_of_a_run_that_is_called_earlier() -> None:
    shown = read(RESULTS / "qos-applications-8.json")
    others = [
        each.name
        for each in shown.series
        if not {point.x for point in each.points} <= set(qos_allocation.rates(each.name, Options()))
    ]
    assert not others or any(note.startswith("An earlier run") for note in shown.notes)


def test_the_page_shows_every_figure_aim_and_setting_between_its_marks(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    target.write_text(f"# Before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.replace(target, page.text([RESULT], "pictures"))
    shown = target.read_text()
    assert shown.startswith("# Before\n")
    assert shown.endswith(f"{page.END}\nafter\n")
    assert "old" not in shown
    for part in (
        "## Delivered against configured",
        "(pictures/sweep.svg)",
        "| 0.98 to 1.00 | 0.97 | **no** |",
        "| configured, Mb/s | Lark | configured (paper) |",
        "| 10 | 9.80 (9.70 to 9.90) | 10.0 |",
        "Run with scale 0.5, repetitions 3.",
        "Measured without a reference stream beside it.",
    ):
        assert part in shown


def test_rates_over_time_are_shown_as_a_few_numbers(tmp_path: Path) -> None:
    points = tuple(Point(half / 2, 0.0 if half < 4 else 100.0 + half) for half in range(26))
    shown = page.text([replace(RESULT, x_label=TIME, series=(Series("A", points),))], "pictures")
    assert "| A | 116 | 108 to 124 |" in shown


def test_places_are_named_in_the_plot_and_on_the_page(tmp_path: Path) -> None:
    points = (Point.of(1, [0.1, 0.2, 0.3]), Point(2, 3.5))
    result = replace(RESULT, places=("on the\nworker", "in a job"), series=(Series("here", points),))
    shown = page.text([read(write(result, tmp_path))], "pictures")
    assert "| on the worker | 0.200 (0.100 to 0.300) |" in shown
    assert "| in a job | 3.50 |" in shown
    assert "in a job" in plot.plot(result, tmp_path)[1].read_text()


def test_figures_are_in_the_order_of_their_numbers() -> None:
    names = ["qos-figure-8", "lark-table-3", "lark-figure-10b", "lark-figure-10a", "lark-figure-8a"]
    shown = page.text([replace(RESULT, name=name, title=name) for name in names], "pictures")
    assert [line[3:] for line in shown.splitlines() if line.startswith("## ")][2:] == [
        "lark-figure-8a", "lark-figure-10a", "lark-figure-10b", "lark-table-3", "qos-figure-8"
    ]  # fmt: skip


def test_the_page_lists_every_aim_that_is_missed_or_not_judged_and_no_other() -> None:
    met = replace(RESULT, name="met", title="Met", checks=(Check("a", "1", met=True),), made="2026-01-02")
    late = replace(RESULT, name="late", title="Late", checks=(Check("b", "2", met=True, marked=True),))
    missed = replace(RESULT, name="missed", title="Missed", checks=(Check("c", "3", met=False),))
    shown = page.text([met, late, missed], "pictures")
    begin = shown.index("## Aims that are missed or not judged")
    section = shown[begin : shown.index("\n## ", begin + 1)]
    assert "2 of 3; the others are met." in section
    assert "| Late | b | 2 | not judged |" in section
    assert "| Missed | c | 3 | **no** |" in section
    assert "Met |" not in section
    assert "None of 1." in page.text([met], "pictures")


def test_the_page_says_when_results_were_made_and_what_does_not_count() -> None:
    none = Beside(3, 0, 0.5, 0.6, 0.1, 1.0, 1.0)
    results = [
        replace(RESULT, name="a", title="A", made="2026-01-02", beside=none),
        replace(RESULT, name="b", title="B", made="2026-01-03", beside=replace(none, sound=2)),
        replace(RESULT, name="c", title="C", made="2026-01-03"),
    ]
    shown = page.text(results, "pictures")
    assert "On 2026-01-02, 2026-01-03. 2 of 6 measurements beside a reference stream are sound." in shown
    assert "Without a reference stream:\n\n- C\n\nWithout a sound measurement:\n\n- A\n" in shown


def test_values_of_ones_own_are_not_called_the_papers() -> None:
    theirs = scaled("A's request", (0, 9), 100.0, paper.HOST_RATES["A"], 0.05)
    assert (theirs.name, theirs.paper) == ("A's request (the paper's 100, scaled)", True)
    own = scaled("A's request", (0, 9), 120.0, paper.HOST_RATES["A"], 0.05)
    assert (own.paper, own.aim, own.points[1]) == (False, True, Point(9, 6.0))
    shown = page.text([replace(RESULT, series=(theirs, own))], "pictures")
    assert "A's request (the paper's 100, scaled) |" in shown


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    target.write_text("none")
    with pytest.raises(ValueError, match="has no place for results"):
        page.replace(target, "found")
    assert target.read_text() == "none"


@pytest.mark.parametrize(("nodes", "limit"), [(4, 35.0), (8, 15.0)])
def test_flow_limits_are_those_of_the_paper(nodes: int, limit: float) -> None:
    assert paper.flow_limit(nodes) == pytest.approx(limit)


@pytest.mark.parametrize("nodes", [2, 4])
def test_every_node_of_an_exchange_ends(nodes: int) -> None:
    hosts = [f"127.0.77.{number}" for number in range(1, nodes + 1)]
    port, seconds = free_port(hosts[0]), dict[int, float]()

    def one(rank: int) -> None:
        seconds[rank] = exchange.run(rank, hosts, port, size=200_001, rounds=3, compute=0)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seconds) == list(range(nodes))
    assert all(taken > 0 for taken in seconds.values())


def test_an_exchange_says_which_node_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CONNECT_SECONDS", 0.2)
    hosts = ["127.0.77.1", "127.0.77.2"]
    with pytest.raises(exchange.ExchangeError, match=r"rank 1: 127\.0\.77\.1 port"):
        exchange.connect(1, hosts, free_port(hosts[0]))


def test_other_rates_come_from_a_file_and_what_it_leaves_out_is_the_papers(tmp_path: Path) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text("host_link: 200\nhost_rates: {A: 20, B: 60, C: 120}\nothers: [1, 4]\nnodes: [3]\n")
    found = rates.read(file)
    assert (found.host_link, found.host_rates["C"], found.others, found.nodes) == (200, 120, (1, 4), (3,))
    assert (found.sweep, found.wan_queues) == (rates.SWEEP, paper.WAN_QUEUES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a mapping is accepted"),
        ("{", "rates.yaml: "),
        ("host: 1", "host is not known"),
        ("host_link: fast", "'fast' is no number above 0"),
        ("host_rates: {A: 1}", "a mapping with A, B, C"),
        ("sweep: 7", "a list of numbers"),
        ("sweep: [7.5]", "whole Mb/s"),
        ("others: [16]", "whole numbers from 1 to 15"),
        ("nodes: [1]", "2 or more"),
        ("priority: [1]", "two rates"),
    ],
)
def test_rates_that_cannot_be_used_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(text)
    with pytest.raises(LabError, match=said):
        rates.read(file)


@pytest.mark.parametrize("nodes", [2, 3, 4, 6, 8])
def test_what_applications_share_fits_the_links(nodes: int) -> None:
    options = Options(rates=rates.of({"nodes": [nodes], "link_mbytes": 100}))
    limit = paper.flow_limit(nodes, 100)
    assert all(sum(each) <= limit * 1.001 for each in qos_framework.shares(nodes, options))
    assert max(qos_framework.rates(nodes, options)) <= limit * 1.001


def test_a_streams_mean_counts_each_interval_by_its_length() -> None:
    measured = pool.Stream(0.0, ((0.5, 90.0), (1.0, 10.0), (1.9, 10.0), (2.0, 20.0)), 0.0)
    assert measured.mean(0.5) == pytest.approx((0.5 * 10 + 0.9 * 10 + 0.1 * 20) / 1.5)
    with pytest.raises(ValueError, match="no interval from 3"):
        measured.mean(3)


def test_a_cable_holds_as_long_back_whatever_its_rate() -> None:
    assert "tc qdisc add dev sw0 parent 1:2 netem rate 1000mbit limit 3303" in cable.wire("sw0", 1000)
    slow = f"tc qdisc add dev sw0 parent 1:2 netem rate 1mbit limit {cable.LEAST_PACKETS}"
    assert slow in cable.wire("sw0", 1)


def test_jobs_ask_for_whole_megabits_whatever_the_scale() -> None:
    odd = Options(rates=rates.of({"host_rates": {"A": 3, "B": 220, "C": 450}}))
    assert lark_host.host_rates(odd) == {"A": 1, "B": 11, "C": 22}
    assert lark_host.host_rates(Options()) == {"A": 5, "B": 15, "C": 30}
