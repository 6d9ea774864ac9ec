"""The job that a word names: CLUSTER.PROC, access points, GlobalJobIds, ids and their first digits."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import AmbiguousError, NotFoundError
from lark_common.runs import RunKey
from lark_controller.jobs.job import Job, JobState
from lark_controller.services.job_names import ACCEPTED, JobNames, names_of
from lark_controller.store import Store
from lark_controller.store.queries import Called
from tests.fixtures.controllers import an_edge, connect, post, running, until
from tests.fixtures.databases import NOW, a_run, sqlite_with_tables

# No two runs share an address or a slot.
_SERIAL = count()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(sqlite_with_tables(tmp_path / "lark.db"))


def registered(
    store: Store, access_point: str, number: int = 103, started: int = 1000, node: int = 0, queued: int = 500
) -> Job:
    """A run of a job, on a slot and with addresses that no other has."""
    serial = next(_SERIAL)
    run = RunKey(f"{access_point}#{number}.0#{queued}", started, f"slot1_{node}@worker{serial}")
    return store.runs.register(a_run(serial, run=run, id=run.id, cluster=number), "", "", "hook", NOW).job


def ended(store: Store, job: Job) -> Job:
    assert store.runs.end(job.id, NOW, "exited", "", "hook") is not None
    return job


def names(store: Store) -> JobNames:
    return JobNames(store.runs, lambda job_id: None, lambda number: False)


def test_every_name_of_a_job_leads_to_it(store: Store) -> None:
    job = registered(store, "submit1.example")
    registered(store, "submit1.example", number=104)
    for word in (
        "103.0",
        "103",
        "submit1#103",
        "103@submit1",
        "submit1#103.0",
        "103.0@submit1",
        "SUBMIT1.example#103.0",
        "103.0@submit1.example",
        "submit1.example#103.0#500",
        job.id,
        job.id[:4],
        job.id[:9].upper(),
    ):
        assert names(store).id_of(word) == job.id, word


@pytest.mark.parametrize(
    "word",
    [
        "104",
        "submit2#103",
        "1034",
        "103.1",
        "submit#103.0",
        "submit1#103.0@submit1",
        "submit1.example#103.0#501",
        "103.0@",
        "#103.0",
        "abc",
        "1" * 30 + ".0",
        "103.0\n",
        "a#\0",
        "a#\ud800",
        "%",
        "",
        "\u0661.0",
    ],
)
def test_what_names_no_job_is_told_what_is_accepted(store: Store, word: str) -> None:
    registered(store, "submit1.example")
    with pytest.raises(NotFoundError) as caught:
        names(store).id_of(word)
    assert ACCEPTED in str(caught.value)


def test_two_access_points_with_one_number_are_both_listed(store: Store) -> None:
    one, two = registered(store, "submit1.example"), registered(store, "schedd2@submit2.example", node=1)
    with pytest.raises(AmbiguousError) as caught:
        names(store).id_of("103.0")
    assert {each.id: each.name for each in caught.value.candidates} == {
        one.id: "submit1.example#103.0",
        two.id: "schedd2@submit2.example#103.0",
    }
    assert "submit1.example#103.0" in str(caught.value)
    assert names(store).id_of("submit1#103.0") == one.id
    assert names(store).id_of("103.0@schedd2") == two.id
    assert names(store).id_of("schedd2@submit2.example#103.0") == two.id


def test_the_jobs_of_a_cluster_are_listed_up_to_a_limit(store: Store) -> None:
    jobs = [of_cluster(store, proc) for proc in range(12)]
    with pytest.raises(AmbiguousError) as caught:
        names(store).id_of("103")
    listed = [each.name for each in caught.value.candidates]
    assert listed == [f"submit1#103.{proc}" for proc in range(11, 1, -1)]
    assert "; and more. Say which by CLUSTER.PROC" in str(caught.value)
    assert names(store).id_of("103.11") == jobs[11].id
    # One alone lives.
    for job in jobs[1:]:
        ended(store, job)
    assert names(store).id_of("103") == jobs[0].id


def test_a_number_that_is_a_cluster_and_begins_an_id_is_neither_alone(store: Store) -> None:
    job = next(each for each in (registered(store, "submit1") for _ in count()) if each.id[:4].isdecimal())
    word = job.id[:4]
    assert names(store).id_of(word) == job.id
    other = registered(store, "submit2", number=int(word))
    if int(word) >= 1000:
        with pytest.raises(AmbiguousError):
            names(store).id_of(word)
    assert names(store).id_of(f"submit2#{word}") == other.id


def of_cluster(store: Store, proc: int) -> Job:
    serial = next(_SERIAL)
    run = RunKey(f"submit1#103.{proc}#500", 1000, f"slot1@worker{serial}")
    return store.runs.register(a_run(serial, run=run, id=run.id, cluster=103, proc=proc), "", "", "hook", NOW).job


def test_a_live_job_comes_before_those_that_have_ended(store: Store) -> None:
    live = registered(store, "submit1", started=1000)
    ended(store, registered(store, "submit2", started=2000, node=1))
    assert names(store).id_of("103.0") == live.id
    # An older run that the loop has ended, and the store not yet.
    refused = replace(live, state=JobState.REFUSED)
    gone = JobNames(store.runs, lambda job_id: refused if job_id == live.id else None, lambda number: False)
    with pytest.raises(NotFoundError):
        gone.id_of("submit3#103.0")
    assert gone.id_of("103.0") == live.id


def test_of_a_job_that_ran_again_the_last_run_is_meant(store: Store) -> None:
    ended(store, registered(store, "submit1", started=1000))
    last = ended(store, registered(store, "submit1", started=2000))
    assert names(store).id_of("103.0") == names(store).id_of("submit1#103.0#500") == last.id
    other = ended(store, registered(store, "submit1", started=3000, queued=600))
    with pytest.raises(AmbiguousError):
        names(store).id_of("103.0")
    assert names(store).id_of("submit1#103.0#600") == other.id


def test_the_nodes_of_a_parallel_job_are_told_apart_by_id(store: Store) -> None:
    nodes = [registered(store, "submit1", node=node) for node in range(12)]
    for _ in ("live", "ended"):
        with pytest.raises(AmbiguousError) as caught:
            names(store).id_of("submit1#103.0#500")
        assert len(caught.value.candidates) == 10
        assert "and more" in str(caught.value)
        for job in nodes:
            ended(store, job)
    assert names(store).id_of(nodes[3].id[:12]) == nodes[3].id


def test_ports_problems_and_lines_of_the_trail_have_the_names_of_jobs(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        job = post(controller, 1, port="p1").job
        controller.jobs.confirm(job.id, 20)
        (port,) = [each for each in controller.switches.find(f"{1:016x}").ports if each.job]
        assert (port.job, port.job_name) == (job.id, f"{job.cluster}.{job.proc}")
        assert controller.jobs.names([job.id, "0123456789abcdef"]) == {job.id: port.job_name}
        host = job.host.partition(".")[0]
        assert [controller.jobs.host_called(each) for each in (job.host, host, "nobody")] == [
            job.host,
            job.host,
            "nobody",
        ]
        controller.jobs.end(job.id, "test")
        assert controller.jobs.names([job.id]) == {job.id: port.job_name}
        assert controller.jobs.names([]) == {}


def test_jobs_that_are_shown_together_have_their_access_point_where_two_share_a_number() -> None:
    one, two = Called("a" * 16, 7, 0, "submit1#7.0#1"), Called("b" * 16, 7, 0, "submit2#7.0#1")
    other = Called("c" * 16, 8, 0, "submit1#8.0#1")
    assert names_of([one, other]) == {one.id: "7.0", other.id: "8.0"}
    assert names_of([one, two, other]) == {one.id: "submit1#7.0", two.id: "submit2#7.0", other.id: "8.0"}


def test_jobs_that_may_be_meant_have_the_words_that_their_pages_have(tmp_path: Path, network: FakeNetwork) -> None:
    """One without a network was called enforced, and so was one that is blocked."""
    policy = "version: 1\nnetworks: {jobs: [10.64.0.0/16]}\npolicies: [{block: {when: 'Owner == \"mallory\"'}}]\n"
    with running(tmp_path, policy) as controller:
        connect(network, controller, an_edge())
        post(controller, 1, global_id="submit1#103.0#1")
        post(controller, 2, "mallory", global_id="submit2#103.0#1")
        post(controller, 3, "mallory", global_id="submit3#103.0#1", more='LarkNetworkType = "none"', port=None)
        until(lambda: controller.jobs.counts().enforced == 2 and controller.jobs.counts().no_network == 1)
        with pytest.raises(AmbiguousError, match=r"submit3#103.0 on slot3@worker1 \(no network, id ") as caught:
            controller.jobs.named("103.0")
        assert {each.name: each.state for each in caught.value.candidates} == {
            "submit1#103.0": "enforced", "submit2#103.0": "blocked", "submit3#103.0": "no network",
        }  # fmt: skip
