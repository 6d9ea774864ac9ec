"""Marks as a whole controller gives them: names of its registry, jobs of the asking worker alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from lark_common.errors import PolicyError
from lark_common.scitags import Collector, Marks, Scitag
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.file import load
from lark_controller.policies.scitags import decide
from lark_controller.services.scitags import RegistryFile, Scitags
from tests.fixtures.controllers import running
from tests.fixtures.databases import a_run

REGISTRY = Path(__file__).parents[2] / "etc" / "scitags.json"
POLICY = """
version: 1
networks: {local: [10.0.0.0/8]}
scitags: {collectors: [192.0.2.9]}
policies:
  - scitags: {experiment: EXAMPLE, activity: Analysis Input, when: 'Owner == "alice"'}
"""


def test_a_policy_with_an_unknown_name_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        before = controller.policy.version
        for attempt in (partial(controller.policy.put, actor="test"), controller.policy.plan):
            with pytest.raises(PolicyError) as caught:
                attempt(POLICY)
            (mistake,) = caught.value.mistakes
            assert (mistake.line, mistake.problem) == (6, "no experiment EXAMPLE in the registry")
        assert controller.policy.version == before
        controller.policy.put(POLICY.replace("EXAMPLE", "3").replace("Analysis Input", "4"), "test")
        assert controller.usage.transferred("host", {}).scitags
        assert controller.workers.marks("host", ["0" * 16]).jobs == {}


def marks(policy: str, registry: Path | None = REGISTRY) -> tuple[Scitags, Marks]:
    alice, bob, away = (
        replace(a_run(number), host=host, facts=Facts((("owner", f'"{owner}"'),)))
        for number, owner, host in ((1, "alice", "Worker1"), (2, "bob", "worker1"), (3, "alice", "worker2"))
    )
    live: dict[str, Job] = {"a": alice, "b": bob, "c": away}
    found = Scitags(RegistryFile(registry), lambda: load(policy), live.get)
    return found, found.of_host("worker1", ["a", "b", "c", "d"])


def test_a_job_that_is_named_many_times_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[object] = []

    def counted(*given: Any) -> Any:
        decided.append(given)
        return decide(*given)

    monkeypatch.setattr("lark_controller.services.scitags.decide", counted)
    jobs = {str(number): replace(a_run(number), host="w", facts=Facts((("owner", '"a"'),))) for number in range(9)}
    found = Scitags(RegistryFile(REGISTRY), lambda: load(POLICY), jobs.get)
    assert found.of_host("W", [*jobs, "unknown"] * 1000).jobs == dict.fromkeys(jobs)
    # All these jobs have the same facts.
    assert len(decided) == 1


def test_a_worker_has_the_marks_of_its_own_jobs_alone() -> None:
    found, answer = marks(POLICY)
    assert answer.jobs == {"a": Scitag(510, 4), "b": None}
    assert answer.collectors == (Collector("192.0.2.9"),)
    assert (answer.ongoing, answer.labels) == (60, False)
    # What never leaves a site is in it, too.
    assert {ip_network("10.0.0.0/8"), ip_network("fe80::/10")} <= set(answer.silent)
    assert answer.revision == found.revision != ""


def test_a_name_that_the_registry_lacks_leaves_a_job_without_a_mark() -> None:
    assert marks(POLICY, None)[1].jobs == {"a": None, "b": None}


@pytest.mark.parametrize(
    ("section", "told"),
    [("{}", False), ("{collectors: [a]}", True), ("{destinations: true}", True), ("{labels: true}", True)],
)
def test_workers_are_told_to_ask_only_where_there_is_something_to_do(section: str, told: bool) -> None:
    policy = POLICY.replace("{collectors: [192.0.2.9]}", section)
    assert bool(marks(policy)[0].revision) == told
    # Without a rule nobody has a mark, whoever would be told.
    assert marks(policy.partition("policies:")[0])[0].revision == ""


def test_all_flows_are_told_of_where_the_policy_says_so() -> None:
    assert marks(POLICY.replace("[192.0.2.9]", "[192.0.2.9], flows: all"))[1].silent == ()
