"""Several requests of a job for the same receiver add up, at a real worker service with a real controller."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.fixtures.ovs import a_net
from tests.mpi.ranks import c, finish, python, start
from tests.mpi.test_pool import GATE, TOPOLOGY
from tests.worker.pool import NOBODY, POLICY, Pool, a_pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs


class Jobs:
    """Two jobs on two workers, with a socket each whose callers are of the job; ``more`` are lines of their slots'
    ads."""

    def __init__(self, pool: Pool, folder: Path, more: Sequence[str] = ("", "")) -> None:
        self.pool, self.folder = pool, folder
        (folder / "gate.py").write_text(GATE)
        (folder / "gate.py").chmod(0o644)
        self.starters = [
            pool.starter(number, "alice", f'Machine = "worker{number}"\n{lines}')
            for number, lines in enumerate(more, 1)
        ]
        self.ids = [
            value(pool.hook(starter, "start", "alice", number), "LarkJobId")
            for number, starter in enumerate(self.starters, 1)
        ]
        self.sockets = [starter.scratch / "gate.sock" for starter in self.starters]
        for starter, socket in zip(self.starters, self.sockets, strict=True):
            gate = f"/usr/bin/python3 {folder}/gate.py {socket} {pool.socket}"
            starter.run(
                f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --pdeathsig KILL {gate} >/dev/null 2>&1 & :"
            )
            eventually(socket.exists)

    def ask(self, method: str, path: str, body: object = None, job: int = 0) -> tuple[int, Any]:
        """Ask as one of the jobs."""
        data = "" if body is None else f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
        socket = self.pool.socket
        command = f"curl -s -w '|%{{http_code}}' --unix-socket {socket} -X {method}{data} http://lark{path}"
        said, _, status = self.starters[job].as_user(command)[1].strip().rpartition("|")
        return int(status), json.loads(said)

    def rates(self) -> list[float]:
        """The rates that the controller has reserved from the first job."""
        return [each["rate"] for each in self.pool.client.reservations() if each["job"] == self.ids[0]]


@pytest.fixture
def jobs(ovs: OpenVSwitch) -> Iterator[Jobs]:
    with temporary_directory() as name, a_net(ovs) as net, _pool(Path(name), ovs, net) as pool:
        yield Jobs(pool, Path(name))


def _pool(folder: Path, ovs: OpenVSwitch, net: Any) -> contextlib.AbstractContextManager[Pool]:
    return a_pool(folder, ovs, net, POLICY + TOPOLOGY)


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_two_communicators_of_the_same_jobs_add_up_and_each_gives_back_its_own(
    jobs: Jobs, mpi: str, language: str
) -> None:
    folder = jobs.folder
    process = start(mpi, folder, jobs.sockets, python("twice") if language == "python" else c(mpi, "twice"))

    def is_about(rate: float) -> bool:
        # Headers are by the MTU of this machine's route.
        rates = jobs.rates()
        return len(rates) == 1 and rate <= rates[0] <= rate * 1.08

    # Four pairs of ranks at a megabyte a second, and two more.
    eventually(lambda: is_about(48.0) or process.poll() is not None, 60)
    (folder / "release").touch()
    eventually(lambda: is_about(16.0) or process.poll() is not None, 60)
    (folder / "free").touch()
    eventually(lambda: jobs.rates() == [] or process.poll() is not None, 60)
    assert process.poll() is None
    (folder / "end").touch()
    outcome = finish(process, folder)
    assert outcome.status == 0, outcome.output
    for seen in outcome.told.values():
        ((promised, free),) = seen["all"].values()
        ((ring, beside),) = seen["ring"].values()
        assert (promised, ring) == (4000, 1000)
        assert free == beside


def test_shares_are_admitted_changed_and_released_one_by_one(jobs: Jobs) -> None:
    wish = {"destination": jobs.ids[1], "rate": 30, "duration": 60, "share": True}
    first = jobs.ask("POST", "/v1/reservations", wish)
    assert (first[0], first[1]["rate"], jobs.rates()) == (201, 30.0, [30.0])
    second = jobs.ask("POST", "/v1/reservations", {**wish, "rate": 50})
    assert (second[0], second[1]["rate"], jobs.rates()) == (201, 50.0, [80.0])
    # No room for more: neither for a third one nor for a higher rate.
    status, refused = jobs.ask("POST", "/v1/reservations", wish)
    assert (status, refused["type"], jobs.rates()) == (409, "urn:lark:problem:capacity", [80.0])
    assert refused["detail"].endswith(
        "20 of 100 Mb/s left, and 110 are asked in all, 80 of them held already; "
        "of this flow 30 Mb/s are of this request, and 80 of others of the job"
    )
    one, other = (f"/v1/reservations/{each[1]['id']}" for each in (first, second))
    status, refused = jobs.ask("PATCH", one, {"rate": 51, "duration": 60})
    assert (status, refused["detail"].rpartition("; ")[2]) == (
        409,
        "of this flow 51 Mb/s are of this request, and 50 of others of the job",
    )
    assert jobs.ask("PATCH", one, {"rate": 45})[1]["rate"] == 45.0
    assert jobs.rates() == [95.0]
    assert jobs.ask("GET", other)[1]["rate"] == 50.0
    # Another job sees and changes neither.
    assert {jobs.ask(method, other, body, 1)[0] for method, body in (("GET", None), ("DELETE", None))} == {404}
    assert jobs.ask("DELETE", other)[1]["rate"] == 50.0
    assert jobs.ask("DELETE", other)[0] == 404
    assert jobs.rates() == [45.0]
    assert jobs.ask("DELETE", one)[0] == 200
    assert jobs.rates() == []
    for mistake in ({"rate": -1}, {"duration": None}, {"destination": "worker2"}, {"rate": "1"}, {"duration": 1e9}):
        assert jobs.ask("POST", "/v1/reservations", wish | mistake)[0] == 422
    assert jobs.ask("GET", "/v1/reservations/0123456789abcdefs1")[0] == 404


def test_a_flow_is_steady_where_all_its_shares_are(jobs: Jobs) -> None:
    def steady() -> list[bool]:
        return [each["steady"] for each in jobs.pool.client.reservations() if each["job"] == jobs.ids[0]]

    wish = {"destination": jobs.ids[1], "rate": 20, "duration": 60, "share": True}
    one = f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', {**wish, 'steady': True})[1]['id']}"
    assert steady() == [True]
    other = f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', wish)[1]['id']}"
    assert steady() == [False]
    assert jobs.ask("PATCH", other, {"steady": True})[0] == 200
    assert steady() == [True]
    assert jobs.ask("PATCH", other, {"rate": 30, "steady": False})[0] == 200
    # A service that has started since knows what it is told, and leaves the rest as it is.
    jobs.pool.stop_service()
    jobs.pool.start_service()
    assert jobs.ask("PATCH", one, {"rate": 20, "duration": 60, "steady": True})[0] == 200
    assert steady() == [False]
    assert jobs.ask("PATCH", other, {"rate": 30, "duration": 60, "steady": False})[0] == 200
    assert jobs.ask("PATCH", one, {"steady": "yes"})[0] == 422
    assert jobs.ask("DELETE", other)[0] == 200
    assert (jobs.rates(), jobs.ask("DELETE", one)[0]) == ([20.0], 200)


def test_shares_live_on_where_the_service_starts_again(jobs: Jobs) -> None:
    wish = {"destination": jobs.ids[1], "rate": 20, "duration": 60, "share": True}
    paths = [f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', wish)[1]['id']}" for _ in range(3)]
    assert jobs.rates() == [60.0]
    jobs.pool.stop_service()
    jobs.pool.start_service()
    # A renewal, as the libraries make it, adds nothing.
    for path in paths[:2]:
        assert jobs.ask("PATCH", path, {"rate": 20, "duration": 60})[1]["rate"] == 20.0
    assert jobs.rates() == [60.0]
    # One that was not renewed yet is given back as well, and another communicator gets one more at once.
    assert jobs.ask("DELETE", paths[2])[1]["rate"] == 20.0
    assert jobs.rates() == [40.0]
    fourth = f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', {**wish, 'rate': 5})[1]['id']}"
    assert jobs.rates() == [45.0]
    for path, left in ((paths[0], [25.0]), (paths[1], [5.0]), (fourth, [])):
        assert jobs.ask("DELETE", path)[0] == 200
        assert jobs.rates() == left
    # With the job its file ends.
    jobs.ask("POST", "/v1/reservations", wish)
    kept = jobs.folder / "worker/shares"
    assert len(list(kept.iterdir())) == 1
    jobs.pool.hook(jobs.starters[0], "exit", "alice", 1)
    eventually(lambda: list(kept.iterdir()) == [])


def test_shares_that_no_file_has_are_known_from_their_renewals(jobs: Jobs) -> None:
    wish = {"destination": jobs.ids[1], "rate": 20, "duration": 60, "share": True}
    paths = [f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', wish)[1]['id']}" for _ in range(3)]
    jobs.pool.stop_service()
    for file in (jobs.folder / "worker/shares").iterdir():
        file.unlink()
    jobs.pool.start_service()
    for path in paths[:2]:
        assert jobs.ask("PATCH", path, {"rate": 20, "duration": 60})[1]["rate"] == 20.0
    assert jobs.rates() == [60.0]
    assert jobs.ask("DELETE", paths[0])[0] == 200
    assert jobs.rates() == [40.0]
    # What was not renewed yet is not given back in another's place.
    assert jobs.ask("DELETE", paths[1])[0] == 200
    assert jobs.rates() == [20.0]
    assert jobs.ask("PATCH", paths[0], {"rate": 20, "duration": 60})[0] == 404
    assert jobs.ask("PATCH", paths[2], {"rate": 20, "duration": 60})[0] == 200
    assert jobs.ask("DELETE", paths[2])[0] == 200
    assert jobs.rates() == []


def test_a_share_that_nobody_renews_is_given_back_though_nobody_asks(jobs: Jobs) -> None:
    wish = {"destination": jobs.ids[1], "rate": 20, "share": True}
    kept = f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', {**wish, 'duration': 86400})[1]['id']}"
    late = f"/v1/reservations/{jobs.ask('POST', '/v1/reservations', {**wish, 'duration': 2})[1]['id']}"
    assert jobs.rates() == [40.0]
    eventually(lambda: jobs.rates() == [20.0])
    assert jobs.ask("PATCH", late, {"rate": 20, "duration": 60})[0] == 404
    assert (jobs.ask("GET", kept)[1]["rate"], jobs.rates()) == (20.0, [20.0])
