"""Applications on several ranks, by real mpiexecs, with a stand-in for worker service and controller."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import MPIS, PROGRAMS, c, finish, python, run, start
from tests.mpi.standin import Standin
from tests.worker.pool import eventually

LANGUAGES = ("python", "c")
A, B = (f"{number:016x}" for number in range(2))
MISTAKES = {
    "python": [
        "rank 1: there is no rank 7 to send to",
        "rank 2: a rate of nan bytes a second",
        "rank 0: the pattern ring needs a rate, bytes a second",
        "rank 0: star: all, ring, neighbours or a table (a dictionary of rates by rank) are accepted",
        "rank 0: the communicator has no topology, and so no neighbours",
        "rank 0: a lease of 0.1 seconds",
        "rank 0: a rank of 'one'",
        "rank 3: a rank of 2.0",
        f"rank 3: a rate of {10**400} bytes a second",
        f"rank 3: a lease of {10**400} seconds",
        "rank 3: not to be read",
    ],
    "c": [
        "rank 1: there is no wish",
        "rank 2: a rate of -1 bytes a second",
        "rank 0: the pattern needs a table",
        "rank 0: there is no pattern 9",
        "rank 0: the communicator has no topology, and so no neighbours",
        "rank 0: a lease of 0.1 seconds",
    ],
}


NO_WISH = "rank 3: the attribute's value is a lark_mpi.Wish"


def program(language: str, mpi: str, name: str) -> list[str | Path]:
    return python(name) if language == "python" else c(mpi, name)


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_directory() as name:
        yield Path(name)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("mpi", MPIS)
def test_a_reservation_is_made_changed_refused_duplicated_and_freed(mpi: str, language: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    outcome = run(mpi, folder, standin.sockets, program(language, mpi, "life"))
    standin.close()
    assert outcome.status == 0, outcome.output
    assert sorted(outcome.told) == [0, 1, 2, 3]
    for rank, seen in outcome.told.items():
        other = B if rank < 2 else A
        # Of 100 Mb/s, 33.5 and 66.9 are promised to the four pairs of ranks, which leaves so much.
        assert seen["made"] == {other: [4000, 7955]}
        assert seen["changed"] == seen["as before"] == seen["still"] == {other: [8000, 3955]}
        # Four pairs, and what they have already with what is free.
        asked = (
            "rank 0: 16000000 bytes a second to two are asked (133.835 Mb/s with headers), and 11955085 could be had: "
        )
        assert seen["too much"].startswith(asked + "link access:one")
        assert seen["too much"] == outcome.told[0]["too much"]
        assert seen["of the duplicate"]
        assert seen["released"]
        assert seen["ring"] == {other: [1000, 10955]}
        assert seen["denied"][0] is False
        assert seen["denied"][1] == outcome.told[0]["denied"][1] != ""
        assert seen["accepted"] == [True, "", {other: [4000, 7955]}]
    assert standin.rates() == {}
    # One rank of each job asks, once for each of up to seven requests.
    assert sum(request == (0, "GET", "/v1/job") for request in standin.requests) <= 7


@pytest.mark.parametrize("mpi", MPIS)
def test_a_program_may_import_the_library_before_mpi_runs_and_call_it_afterwards(mpi: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    outcome = run(mpi, folder, standin.sockets, [sys.executable, PROGRAMS / "late.py"])
    standin.close()
    assert outcome.status == 0, outcome.output
    outside = [True, True, "MPI is not running"]
    assert list(outcome.told.values()) == [{"before": outside, "running": [True, True, 1], "after": outside}] * 4
    assert standin.rates() == {}


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_a_reservation_is_steady_where_the_program_asks_for_that(mpi: str, language: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    process = start(mpi, folder, standin.sockets, program(language, mpi, "steadies"))
    looks = {}
    for name in ("steady", "refused", "free"):
        eventually(lambda name=name: (folder / name).exists() or process.poll() is not None, 60)
        looks[name] = [each["steady"] for each in standin.live().values()]
        (folder / f"{name} seen").touch()
    outcome = finish(process, folder)
    standin.close()
    assert outcome.status == 0, outcome.output
    assert looks == {"steady": [True, True], "refused": [True, True], "free": [False, False]}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("mpi", MPIS)
def test_topologies_tables_and_mistakes(mpi: str, language: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    outcome = run(mpi, folder, standin.sockets, program(language, mpi, "shapes"))
    standin.close()
    assert outcome.status == 0, outcome.output
    for rank, seen in outcome.told.items():
        promised = {name: [rates[0] for rates in seen[name].values()] for name in ("cart", "graph", "dist_graph")}
        assert promised == {"cart": [1000], "graph": [1000], "dist_graph": [1000]}
        assert [rates[0] for rates in seen["table"].values()] == [1000 if rank < 2 else 5000]
        assert seen["left"]
        assert [reason.partition(";")[0] for reason in seen["mistakes"]] == MISTAKES[language]
        assert seen.get("no wish") == ([NO_WISH, rank == 3] if language == "python" else None)
        assert seen["between groups"] == "the communicator is between two groups; one of a single group is accepted"
    assert standin.rates() == {}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("mpi", MPIS)
def test_where_one_job_is_refused_no_job_keeps_anything(mpi: str, language: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "one", "two", "two"])
    refusal = b'HTTP/1.1 409 Conflict\r\n\r\n{"detail": "no room there"}'
    standin.instead = lambda job, method, path: refusal if (job, method) == (2, "POST") else None
    outcome = run(mpi, folder, standin.sockets, program(language, mpi, "refusal"))
    standin.close()
    assert outcome.status == 0, outcome.output
    assert list(outcome.told.values()) == [{"reason": "rank 2: no room there", "left": True}] * 4
    assert standin.most > 0
    assert standin.rates() == {}
    # Two jobs on one host need nothing between them.
    assert {job for job, method, _ in standin.requests if method == "DELETE"} == {0, 1, 3}


@pytest.mark.parametrize(("mpi", "language"), [("mpich", "python"), ("openmpi", "c")])
def test_where_one_job_is_not_enforced_every_rank_is_told_and_no_job_keeps_anything(
    mpi: str, language: str, folder: Path
) -> None:
    standin = Standin(folder, ["one", "two"])
    why = "switch w2: bandwidth: the worker has no uplink as the policy describes them"
    standin.standing = lambda job: ("pending", why) if job == 1 else ("enforced", "")
    outcome = run(mpi, folder, standin.sockets, program(language, mpi, "refusal"))
    standin.close()
    assert outcome.status == 0, outcome.output
    # The first rank of the second job.
    reason = f"rank 2: what is reserved is not enforced: {why}"
    assert list(outcome.told.values()) == [{"reason": reason, "left": True}] * 4
    assert standin.most > 0
    assert standin.rates() == {}


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_a_reservation_whose_queues_take_longer_is_waited_for(mpi: str, language: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    looks = {0: 0, 1: 0}

    def standing(job: int) -> tuple[str, str]:
        looks[job] += 1
        return ("registering", "its queues are being made") if looks[job] < 3 else ("enforced", "")

    standin.standing = standing
    outcome = run(mpi, folder, standin.sockets, program(language, mpi, "refusal"))
    standin.close()
    assert outcome.status == 0, outcome.output
    assert list(outcome.told.values()) == [{"reason": "", "left": False}] * 4
    assert min(looks.values()) >= 3


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_what_dies_or_aborts_is_released_after_a_lease(mpi: str, language: str, folder: Path) -> None:
    ways = ("kill", "abort")
    standins, processes = {}, {}
    for way in ways:
        (folder / way).mkdir()
        standins[way] = Standin(folder / way, ["one", "two"])
        command = program(language, mpi, "dies")
        processes[way] = start(mpi, folder / way, standins[way].sockets, command)
    for standin in standins.values():
        eventually(lambda standin=standin: sum(each[1] == "PATCH" for each in standin.requests) >= 4, 30)
        assert len(standin.rates()) == 2
    for way in ways:
        (folder / way / "end.new").write_text(way)
        (folder / way / "end.new").rename(folder / way / "end")
    for way in ways:
        assert finish(processes[way], folder / way).status != 0
        eventually(lambda way=way: standins[way].rates() == {})
        standins[way].close()


@pytest.mark.parametrize("mpi", MPIS)
def test_threads_of_a_rank_reserve_for_a_communicator_each_at_the_same_time(mpi: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    outcome = run(mpi, folder, standin.sockets, c(mpi, "threads"))
    standin.close()
    assert outcome.status == 0, outcome.output
    assert list(outcome.told.values()) == [{"good": True}] * 4
    assert standin.rates() == {}


@pytest.mark.parametrize("mpi", MPIS)
def test_the_attribute_is_set_read_and_deleted_by_its_names_in_mpi_1(mpi: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    outcome = run(mpi, folder, standin.sockets, c(mpi, "old names"))
    standin.close()
    assert outcome.status == 0, outcome.output
    for rank, seen in outcome.told.items():
        made = {B if rank < 2 else A: [4000, 7955]}
        asked = {"admitted": True, "made": made, "left": True}
        assert seen == {**asked, "unasked": True, "over it": "", "made anew": made}
    assert sorted(outcome.told) == [0, 1, 2, 3]
    assert standin.rates() == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_application_in_one_job_asks_nobody(language: str, folder: Path) -> None:
    outcome = run("mpich", folder, [Path("/nonexistent")], program(language, "mpich", "refusal"))
    assert list(outcome.told.values()) == [{"reason": "", "left": False}] * 4, outcome.output


@pytest.mark.parametrize("language", LANGUAGES)
def test_outside_of_lark_every_rank_learns_why(language: str, folder: Path) -> None:
    outcome = run(
        "mpich", folder, [Path("/nonexistent/a"), Path("/nonexistent/b")], program(language, "mpich", "refusal")
    )
    reason = "rank 0: /nonexistent/a: no worker service of Lark is here"
    assert list(outcome.told.values()) == [{"reason": reason, "left": True}] * 4, outcome.output
