"""Applications on nodes: real ranks in network namespaces, their jobs' sockets, and what their figures are held to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from experiments import adaptive, cluster, paper, qos_allocation, qos_applications
from experiments import nodes as cluster_nodes
from experiments.applications import PROGRAMS, Application, hpcc_seconds, ranks
from experiments.beside import Kept, Meanwhile, Taken, keep
from experiments.cluster import Played, of_json
from experiments.job_sockets import Job, job_socket
from experiments.measured import Measured
from experiments.nodes import Request, Run, frozen
from experiments.options import Options
from experiments.qos_framework import MEGABITS, scale
from experiments.result import Check, Point, Result, read
from experiments.sizes import NODES
from lab.namespaces import Net
from lab.run import LabError, run
from lark_mpi import service
from tests.common.test_client import served
from tests.fixtures.controllers import until
from tests.fixtures.fake_controls import TOKENS
from tests.fixtures.rest_app import Api

__all__ = ["served"]

FINE = Meanwhile(1.0, 0.0, 0.5, 0.4)
LATE = Meanwhile(0.8, 0.3, 1.0, 0.9)
QUICK = Options(quick=True)


@pytest.fixture
def nodes(net: Net, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two network namespaces on one bridge; python3 is the one with mpi4py."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    bridge = net.name("br")
    run(["ip", "link", "add", bridge, "type", "bridge"])
    try:
        run(["ip", "link", "set", bridge, "up"])
        hosts = [net.host(f"n{number}", addresses=[f"10.64.0.{number}/24"]) for number in (1, 2)]
        for each in hosts:
            run(["ip", "link", "set", each.port, "master", bridge])
        yield [each.namespace for each in hosts]
    finally:
        run(["ip", "link", "del", bridge])


@pytest.mark.ovs
def test_ranks_on_nodes_sort_and_their_time_is_read(nodes: list[str], tmp_path: Path) -> None:
    sort = Application("integer sort", nodes, tmp_path / "work", tmp_path, ("--keys", "2000", "--passes", "3"))
    try:
        (seconds,) = sort.wait().values()
    finally:
        sort.end()
    assert 0 < seconds < 60
    assert sort.shown() == ()


@pytest.mark.ovs
def test_frames_are_shown_with_their_times_and_a_program_that_fails_says_why(nodes: list[str], tmp_path: Path) -> None:
    few = ("--rate", "10", "--bytes", "1000", "--seconds", "1")
    frames = Application("frames", nodes, tmp_path / "work", tmp_path, few)
    assert frames.wait() == {"": 0.0}
    shown = frames.shown()
    assert 2 <= len(shown) <= 11
    assert {size for _, size in shown} == {1000}
    # There is no worker service of Lark behind these sockets.
    failing = Application("frames, adapting", nodes, tmp_path / "work", tmp_path, few)
    with pytest.raises(LabError, match="no worker service of Lark is here"):
        failing.wait()


@pytest.mark.ovs
def test_ranks_that_outlive_their_program_are_ended(nodes: list[str], tmp_path: Path) -> None:
    frames = Application("frames", nodes, tmp_path / "work", tmp_path, ("--seconds", "600"))
    try:
        until(lambda: len(ranks(tmp_path / "work")) >= len(nodes) + 1)
        frames._process.kill()
    finally:
        frames.end()
    until(lambda: not ranks(tmp_path / "work"))


def test_a_jobs_socket_reserves_and_reads_back_for_that_job_alone(
    served: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, url = served
    job, other = (api.register(number)["id"] for number in (1, 2))
    path = tmp_path / "job.sock"
    monkeypatch.setenv("LARK_SOCKET", str(path))
    with job_socket(path, Job(job, "worker1.example", "10.64.0.1"), url, TOKENS["operate"]):
        assert service.ask("GET", "/v1/job")[1]["id"] == job
        wish = {"destination": "192.0.2.1", "rate": 10, "duration": 60, "steady": False, "share": True}
        status, made = service.ask("POST", "/v1/reservations?wait=0", wish)
        assert (status, made["job"]) == (201, job)
        api.client.post(
            "/v1/reservations",
            json={"source": other, "destination": "192.0.2.1", "rate": 10, "duration": 60},
            headers={"Authorization": f"Bearer {TOKENS['operate']}"},
        )
        status, first = service.ask("GET", "/v1/paths?after=&wait=0")
        assert [each["reservation"] for each in first["paths"]] == [made["id"]]
        # What has not changed is there all the same, as a worker service has it.
        assert service.ask("GET", f"/v1/paths?after={first['version']}&wait=0") == (200, first)
        assert service.ask("PATCH", f"/v1/reservations/{made['id']}", {"rate": 5})[1]["rate"] == 5.0
        assert service.ask("DELETE", f"/v1/reservations/{made['id']}")[0] == 200
        assert service.ask("DELETE", f"/v1/reservations/{made['id']}")[0] == 404


HPCC = """\
Begin of MPIRandomAccess section.
Default number of updates (RECOMMENDED) = 262144
Number of updates EXECUTED = 262144 (for a TIME BOUND of 60.00 secs)
CPU time used = 0.069092 seconds
Real time used = 2.807090 seconds
Verification:  CPU time used = 0.000329 seconds
Verification:  Real time used = 0.012491 seconds
End of MPIRandomAccess section.
Begin of PTRANS section.
WALL   256   256  32  32   2   2     0.25 PASSED    0.474  0.00
CPU    256   256  32  32   2   2     0.10 PASSED    5.699  0.00
WALL   256   256  32  32   2   2     0.30 PASSED    0.419  0.00
End of PTRANS section.
Begin of MPIFFT section.
Generation time:     0.000
Computing:     0.016
End of MPIFFT section.
Begin of LatencyBandwidth section.
Message Length: 8
Latency   min / avg / max:   0.015515 /   0.015974 /   0.020315 msecs
max time :                             10.000000 secs
Message Length: 2000000
Latency   min / avg / max: 7464.519201 / 7464.519201 / 7464.519201 msecs
Bandwidth min / avg / max:      0.268 /      0.268 /      0.268 MByte/s
MPI_Wtime granularity is ok.
message size:                            2000000
max time :                             30.000000 secs
"""


def test_the_seconds_of_hpcc_are_those_of_its_sections() -> None:
    found = {name: hpcc_seconds(HPCC, name) for name in ("PTRANS", "RandomAccess", "FFT")}
    assert found == {"PTRANS": 0.55, "RandomAccess": 2.80709, "FFT": 0.016}
    with pytest.raises(LabError, match="no time of MPIFFT"):
        hpcc_seconds(HPCC.replace("Computing", "Nothing"), "FFT")
    # It makes fewer updates where it has no time for all.
    assert hpcc_seconds(HPCC.replace("EXECUTED = 262144", "EXECUTED = 65536"), "RandomAccess") == 4 * 2.80709


def test_parts_of_hpcc_are_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "hpccoutf.txt").write_text(HPCC)
    expected = {
        "hpcc": {"PTRANS": 0.55, "FFT": 0.016},
        "hpcc with b_eff": {"PTRANS": 0.55, "FFT": 0.016, "b_eff": 7.464519201},
        "hpcc's RandomAccess": {"": 2.80709},
    }
    assert {name: PROGRAMS[name].read("", tmp_path) for name in expected} == expected
    # Each is ended behind what is looked at.
    assert [HPCC.count(PROGRAMS[name].until) for name in expected] == [1, 1, 1]


def test_a_program_that_prints_no_times_fails_with_its_output(tmp_path: Path) -> None:
    application = Application.__new__(Application)
    application._program, application._folder = PROGRAMS["LAMMPS"], tmp_path
    application._err = tmp_path / "errors"
    application._err.write_text("ERROR: Lost atoms")
    with pytest.raises(LabError, match=r"(?s)no times.*only this.*Lost atoms"):
        application._read("only this")


def test_a_request_and_what_was_played_survive_json() -> None:
    found = {
        "nodes": 4, "link": 33.6, "half_duplex": True, "size": 1, "rounds": 1, "repetitions": 1, "seconds": 60,
        "runs": [
            {"name": "a", "rates": [None, 5.0], "programs": ["x", "y"], "arguments": [["--a"], []], "floor": True},
        ],
    }  # fmt: skip
    (one,) = Request.of(found).runs
    assert (one.rates, one.programs, one.arguments, one.floor) == ((None, 5.0), ("x", "y"), (("--a",), ()), True)
    played = {"seconds": [1.0], "background": [], "parts": [{"": 1.0}], "shown": [[[1.5, 10]]]}
    taken = of_json({"played": played, "reference": 1.0, "inside": 0.1})
    assert taken.value == Played((1.0,), (), ({"": 1.0},), (((1.5, 10),),))
    assert frozen([1, [2]]) == (1, (2,))


@pytest.mark.parametrize("options", [Options(), QUICK])
def test_what_runs_at_the_same_time_can_be_reserved_and_has_names_of_its_own(options: Options) -> None:
    made = runs(options)
    unit = MEGABITS * scale(NODES, options)
    for each in made:
        # All share a node's link, which flows come in by and go out by.
        flows = [1 if each.late and each.delay(number) else 6 for number in range(len(each.rates))]
        held = sum((rate or 0.0) / unit * number for rate, number in zip(each.rates, flows, strict=True))
        assert held <= paper.LINK_MBYTES * 1.000001 - (3 * adaptive.FRAMES_FLOOR if each.delays else 0)
    assert all(len(each.rates) == len(each.programs) for each in made)
    named = {each.name: each for each in made}
    assert all(named[each.name] == each for each in made)


def test_ranks_that_begin_later_are_on_their_own_nodes_and_reserve_to_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, begun = list[tuple[str, str]](), list[list[str]]()

    class Begun:
        def __init__(self, name: str, nodes: list[str], *_: object) -> None:
            begun.append(nodes)

        def wait(self) -> dict[str, float]:
            return {}

        def shown(self) -> tuple[()]:
            return ()

        def end(self) -> None:
            pass

    def ask(method: str, path: str, body: dict[str, str] | None = None) -> dict[str, str]:
        asked.extend([(body["source"], body["destination"])] if body else [])
        return {"id": "1"}

    monkeypatch.setattr(cluster, "Application", Begun)
    monkeypatch.setattr(cluster_nodes, "ask", ask)
    one = Run("a", (None, 5.0), programs=("x", "y"), delays=(0.0, 0.01), late=(2, 1, 3))
    request = Request(4, 1.0, True, 1, 1, 1, (one,), 1.0)
    for application in (0, 1):
        cluster._program(request, one, application, 0.0)
    assert begun == [["a0n0", "a0n1", "a0n2", "a0n3"], ["a1n2", "a1n1", "a1n3"]]
    assert asked == [(f"10.64.1.{source}", "10.64.1.3") for source in (2, 4)]


def test_what_runs_apart_shares_no_node_and_its_background_sends_as_much_as_beside_it() -> None:
    beside, alone = Run("beside", (2.0, 3.0), 2, ("x", "y")), Run("alone", (1.0,), programs=("x",))
    apart = Run("apart", (2.0, 3.0), 2, ("x", "y"), apart=True)
    request = Request(4, 40.0, True, 1, 1, 1, (beside, alone, apart), 1.0)
    assert Request.of(json.loads(json.dumps(asdict(request)))) == request
    assert request.every_node == range(12)
    # The background flows are of the application after the last one of any run.
    assert [request.nodes_of(each, apart) for each in (0, 1, 2)] == [range(4), range(4, 8), range(8, 12)]
    assert {request.nodes_of(each, one) for each in (0, 1, 2) for one in (beside, alone)} == {range(4)}
    # At each link three flows of each application come and three go.
    # As much as one has got where they share links.
    like = [{"played": {"background": each}} for each in ([9.0, 9.0], [2.0, 4.0])]
    assert cluster.paced(apart, like).pace == 3.0
    assert cluster.paced(apart, ()) == apart
    assert cluster.paced(alone, [{"played": {"background": []}}]) == alone
    assert Request(4, 1.0, True, 1, 1, 1, (beside, alone), 1.0).every_node == range(4)


def test_a_knee_is_where_communicating_takes_as_long_as_computing() -> None:
    points = [Point(rate, 0.5 + 10 / rate) for rate in (5.0, 10.0, 20.0, 40.0)]
    computing, rate = qos_allocation.knee(points)
    assert (round(computing, 6), round(rate, 6)) == (0.5, 20.0)
    assert qos_allocation.knee([Point(rate, 10 / rate) for rate in (5.0, 10.0, 20.0)])[1] > 1e6
    assert qos_allocation.knee([Point(5.0, 1.0), Point(10.0, 1.0)]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        # Half a second of computing, and a knee at 20, 2 and 200.
        ([2.5, 1.5, 1.0, 0.75], "20 MB/s (0.5 s of computing; within 10% of its least time from 40 MB/s on)"),
        (
            [0.7, 0.6, 0.55, 0.525],
            "2 MB/s, below these rates (0.5 s of computing; within 10% of its least time from 20 MB/s on)",
        ),
        (
            [20.5, 10.5, 5.5, 3.0],
            "200 MB/s, beyond these rates (0.5 s of computing; within 10% of its least time from 40 MB/s on)",
        ),
        ([1.0, 1.0, 1.0, 1.0], "none, it computes alone"),
        ([20.0, 9.9, 4.8, 2.2], "none, it communicates alone up to 40 MB/s"),
        # The first point alone has it communicate alone.
        (
            [24.0, 10.5, 5.5, 3.0],
            "none, it communicates alone up to 40 MB/s, and without one of its points to 200 MB/s at least",
        ),
    ],
)
def test_a_knee_in_words(times: list[float], said: str) -> None:
    assert (
        qos_allocation.told([Point(rate, each) for rate, each in zip((5.0, 10.0, 20.0, 40.0), times, strict=True)])
        == said
    )


def kept(*seconds: float, parts: tuple[str, ...] = ("",), meanwhile: Meanwhile = FINE) -> Kept[Played]:
    found = tuple(dict.fromkeys(parts, each) for each in seconds)
    return keep([Taken(Played(seconds, (), found), meanwhile)])


def runs(options: Options) -> list[Run]:
    return [*qos_allocation.runs(options), *qos_applications.runs(options), *adaptive.runs(options)]


def times(
    options: Options, seconds: Callable[[float, str], float], meanwhile: Meanwhile = FINE
) -> dict[str, Kept[Played]]:
    """Measurements of every run: the seconds of each application by what it has reserved and the run's name."""
    found = {}
    unit = MEGABITS * scale(NODES, options)
    for each in runs(options):
        took = [seconds((rate or 0.0) / unit, each.name) for rate in each.rates]
        parts = ("PTRANS", "FFT", "b_eff")[: 3 if "b_eff" in each.programs[0] else 2]
        if each.programs[0] not in ("hpcc", "hpcc with b_eff"):
            parts = ("",)
        found[each.name] = kept(*took, parts=parts, meanwhile=meanwhile)
    adapting = keep([Taken(Played((0.0, 0.0), (), ({}, {}), (shown(10), shown(10, 6.0, 14.0))), meanwhile)])
    slower = keep([Taken(Played((0.0, 0.0), (), ({}, {}), (shown(6), shown(10, 6.0, 14.0))), meanwhile)])
    return found | {"frames, adapting": adapting, "frames": slower}


def shown(rate: float, begin: float = 0.0, end: float = 18.0) -> tuple[tuple[float, int], ...]:
    return tuple((1000 + begin + number / rate, 90_000) for number in range(int((end - begin) * rate) + 1))


def expected(rate: float, name: str) -> float:
    """Half a second of computing, but for parts of hpcc, and what is free where nothing is reserved or a floor."""
    computing = 0.1 if name.startswith("hpcc ") else 50.0 if name.startswith("hpcc") else 0.5
    if "noise" in name and "noise 0" not in name and "reserved" not in name:
        return computing + 10 / (20.0 if "floor" in name else 10.0)
    return computing + 10 / (25.0 if "floor" in name or not rate else rate)


def figures(measured: Measured, options: Options) -> dict[str, Result]:
    """The figures of all three experiments, by name."""
    made = (qos_allocation.against_allocation(measured, options), *qos_applications.results(measured, options))
    return {each.name: each for each in (*made, adaptive.adapting(measured, options))}


def verdicts(found: Result) -> list[str]:
    return ["not judged" if each.marked else "met" if each.met else "missed" for each in found.checks]


@pytest.mark.parametrize("options", [Options(), QUICK])
def test_figures_of_applications_are_met_missed_and_not_judged(options: Options) -> None:
    found = figures(Measured(times(options, expected)), options)
    assert {verdict for each in found.values() for verdict in verdicts(each)} == {"met"}
    points = {each.name: len(each.points) for each in found["qos-applications-8"].series}
    assert [points.get(f"hpcc's {part}") for part in ("FFT", "b_eff")] == ([None, None] if options.quick else [5, 2])
    late = figures(Measured(times(options, expected, LATE)), options)
    assert {verdict for each in late.values() for verdict in verdicts(each)} == {"not judged"}


def test_a_floor_that_costs_time_and_a_program_without_a_knee_are_missed() -> None:
    def slow(rate: float, name: str) -> float:
        return expected(rate, name) * (1.2 if "floor" in name else 1.0)

    found = figures(Measured(times(QUICK, slow)), QUICK)
    assert verdicts(found["qos-applications-floor"]) == ["missed"]
    communicating = Measured(times(QUICK, lambda rate, name: 10 / (rate or 35.0)))
    flat = qos_allocation.against_allocation(communicating, QUICK)
    assert verdicts(flat) == ["met", "missed"]
    messages = Measured(times(Options(), lambda rate, name: (0.0 if "Random" in name else 0.5) + 10 / (rate or 35.0)))
    assert verdicts(qos_allocation.against_allocation(messages, Options())) == ["met", "met", "missed", "missed"]


def test_figures_are_made_of_what_was_measured_and_name_what_was_not() -> None:
    options = Options()
    every = times(options, expected)
    failing = {"LAMMPS 7", "POV-Ray, reserved, noise 2", "integer sort, floor, noise 3", "POV-Ray, light 20"}
    failing |= {f"hpcc {rate:g}" for rate in qos_allocation.rates("hpcc", options)[1:]}
    assert failing <= every.keys()
    kept = {name: each for name, each in every.items() if name not in failing}
    found = figures(Measured(kept, dict.fromkeys(failing, "it broke")), options)
    assert {verdict for each in found.values() for verdict in verdicts(each)} == {"met"}
    names = {each.name: len(each.points) for each in found["qos-applications-8"].series}
    assert names == {"integer sort": 5, "hpcc's RandomAccess": 4, "LAMMPS": 4, "POV-Ray": 5}
    assert "LAMMPS 7 (it broke)" in found["qos-applications-8"].notes[-1]
    assert found["qos-applications-12"].places == (
        "integer sort,\n3 flows",
        "LAMMPS,\n3 flows",
        "POV-Ray,\n3 flows",
    )
    assert "POV-Ray, reserved, noise 2 (it broke)" in found["qos-applications-12"].notes[-1]
    assert "integer sort,\n3 flows" not in found["qos-applications-floor"].places
    assert [each.split("\n")[0] for each in found["qos-applications-13"].places] == [
        "integer sort 5", "POV-Ray 8", "integer sort 5", "POV-Ray 8",
    ]  # fmt: skip
    with pytest.raises(LabError, match="no figure was measured"):
        list(qos_applications.results(Measured({}, dict.fromkeys(every, "it broke")), options))
    # The frames of one are nothing without the other's.
    with pytest.raises(LabError, match="frames, adapting: it broke"):
        adaptive.adapting(Measured({"frames": every["frames"]}, {"frames, adapting": "it broke"}), options)
    with pytest.raises(LabError, match="nothing of integer sort, hpcc"):
        qos_allocation.against_allocation(Measured({}), options)


@pytest.mark.parametrize(
    ("name", "over", "under"),
    [("qos-applications-12", 2, 1), ("qos-applications-13", 2, 1), ("qos-applications-floor", 0, 1)],
)
def test_an_aim_on_the_page_is_held_to_every_point_that_counts_there(name: str, over: int, under: int) -> None:
    """Marks may be taken away after a run, where the fault was the reference's own count."""
    shown = read(Path(__file__).parents[2] / "docs/experiments" / f"{name}.json")
    points = zip(shown.series[over].points, shown.series[under].points, strict=True)
    parts = [(one.y / other.y, one.marked or other.marked) for one, other in points]
    again = Check.of(shown.checks[0].aim, parts, lambda _: True, "{} to {} of")
    figures, of, marked = again.found.partition(" of")
    assert shown.checks[0].found.startswith(figures + of)
    assert shown.checks[0].found.endswith(marked)


def test_links_that_are_to_have_queues_have_jobs_for_that() -> None:
    plain, queued = Run("plain", (1.0,), 2, ("x",)), Run("queued", (None,), 2, ("x",), queued=True)

    def request(*runs: Run) -> Request:
        return Request(4, 40.0, True, 1, 1, 1, runs, 1.0)

    assert cluster_nodes.applications(request(plain)) == 2
    assert cluster_nodes.applications(request(plain, queued)) == 3


@pytest.mark.parametrize("options", [QUICK, Options()])
def test_nodes_ping_in_the_runs_whose_round_trips_are_shown_alone(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(command: list[str], **_: object) -> None:
        raise LabError(" ".join(command))

    monkeypatch.setattr("experiments.cluster.subprocess.Popen", popen)
    plain, shown = Run("plain", (None,), 2), Run("shown", (None,), 2, pinged=True)
    request = Request(4, 40.0, True, 1, 1, 1, (plain, shown), 1.0)
    with cluster.pinged(request, plain) as round_trip:
        pass
    assert round_trip() == 0.0
    with pytest.raises(LabError, match="ping"), cluster.pinged(request, shown):
        pass
    asked = {one.name for one in qos_applications.runs(options) if one.pinged}
    for name in qos_applications.accompanied(options):
        for noise in qos_applications.noises(name, options):
            shown_of = {f"{name}, {kind}, noise {noise}" for kind in ("reserved", "free", "reserved elsewhere")}
            assert asked >= {f"{name}, reserved, noise 0", *shown_of}
    assert not any("floor" in each or each.endswith("free, noise 0") or "light" in each for each in asked)


def test_pings_are_read_as_they_are_printed() -> None:
    printed = "\n5 packets transmitted, 5 received, 0% packet loss, time 803ms\n"
    assert cluster.mean_round_trip(f"{printed}rtt min/avg/max/mdev = 0.052/1.275/3.501/0.9 ms\n") == 1.275
    assert cluster.mean_round_trip(f"{printed}rtt min/avg/max/mdev = 0.052/1.275/3.501/0.9 ms, pipe 2\n") == 1.275
    assert cluster.mean_round_trip("5 packets transmitted, 0 received, 100% packet loss\n") == 0.0
