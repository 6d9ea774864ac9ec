"""Runs in the lab that fail, and a lab that ends too early, leave what was measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from experiments import adaptive, cluster, full_links, measured, qos_allocation, qos_applications, qos_framework
from experiments import nodes as cluster_nodes
from experiments.beside import TRIES, Processors
from experiments.nodes import Request, Run
from lab.run import LabError
from lark_controller import settings

PROCESSORS = [(0.0, Processors(10, 0, 100)), (100.0, Processors(60, 0, 200))]


def request(*names: str, repetitions: int = 2, seconds: float = 60.0) -> Request:
    runs = tuple(Run(name, (None,)) for name in names)
    return Request(4, 33.6, True, 1, 1, repetitions, runs, seconds)


def taken(reference: float = 1.0) -> dict[str, Any]:
    played = {"seconds": [2.0], "background": [], "parts": [], "shown": []}
    return {"played": played, "reference": reference, "inside": 0.5, "began": 10.0, "ended": 20.0}


def failing(*names: str) -> Callable[[Run], dict[str, Any]]:
    """A measurement that is sound, but for runs of these names, which fail."""

    def take(one: Run) -> dict[str, Any]:
        if one.name in names:
            raise LabError(f"{one.name} does not end")
        return taken()

    return take


def test_a_run_that_fails_is_tried_again_and_left_out_and_the_others_go_on() -> None:
    lines = list(cluster.repeated(request("good", "bad", "other"), failing("bad")))
    assert [line["run"] for line in lines] == ["good", "bad", "other", "good", "bad", "other"]
    assert [line["failed"] for line in lines if "failed" in line] == ["bad does not end"] * cluster.FAILURES
    found = measured.read(map(json.dumps, lines), request("good", "bad", "other"), PROCESSORS)
    assert {name: len(kept.values) for name, kept in found.kept.items()} == {"good": 2, "other": 2}
    assert found.failed == {"bad": "bad does not end"}
    assert found.has("good", "other")
    assert not found.has("good", "bad")
    assert found["good"].values[0].seconds == (2.0,)
    assert found.missing("bad", "good") == ("Not measured, and left out: bad (bad does not end).",)
    assert found.missing("good") == ()
    assert (found.repetitions("good", "bad"), found.repetitions("bad")) == (2, 0)
    with pytest.raises(measured.NotMeasuredError, match="bad: bad does not end"):
        found["bad"]


def test_a_run_that_fails_once_is_measured_at_its_next_turn() -> None:
    failures = iter([True, False, False])

    def take(one: Run) -> dict[str, Any]:
        if next(failures):
            raise OSError("once")
        return taken()

    lines = list(cluster.repeated(request("one"), take))
    found = measured.read(map(json.dumps, lines), request("one"), PROCESSORS)
    assert len(found["one"].values) == 2
    assert found.failed == {}


def test_a_result_counts_the_measurements_of_its_own_runs_alone() -> None:
    lines = [json.dumps({"run": name, "taken": taken()}) for name in ("free", "free", "alone 5", "free 5+8")]
    found = measured.read(lines, request("free", "alone 5", "free 5+8"), PROCESSORS)
    assert found.repetitions("free", "alone 5") == "1 to 2"
    beside = found.beside("free", "alone 5")
    assert beside is not None
    assert (beside.taken, beside.sound) == (3, 3)


def test_what_is_not_sound_is_repeated_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(one: Run) -> dict[str, Any]:
        return taken(0.5)

    assert len(list(cluster.repeated(request("a", "b"), late))) == 2 * 2 * TRIES
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(one: Run) -> dict[str, Any]:
        now[0] += 40
        return taken(0.5)

    # Every run is measured once, and the time is over.
    assert [line["run"] for line in cluster.repeated(request("a", "b"), slow)] == ["a", "b"]


def test_what_was_written_counts_where_the_lab_ended_too_early() -> None:
    lines = [json.dumps({"run": "a", "taken": taken()}), json.dumps({"run": "b", "taken": taken()})[:40]]
    found = measured.read(lines, request("a", "b", "c"), PROCESSORS, "no end within 60 s")
    assert found.has("a")
    assert found.failed == {"b": "not reached", "c": "not reached"}
    meanwhile = found["a"].taken[0].meanwhile
    assert (meanwhile.reference, meanwhile.outside) == (1.0, 0.5)
    with pytest.raises(LabError, match="no end within 60 s"):
        measured.read([], request("a"), PROCESSORS, "no end within 60 s")
    with pytest.raises(LabError, match="it broke"):
        measured.read([json.dumps({"run": "a", "failed": "it broke"})], request("a"), PROCESSORS)


@pytest.mark.parametrize("experiment", [adaptive, full_links, qos_allocation, qos_applications, qos_framework])
def test_the_nodes_jobs_live_as_long_as_any_experiment(experiment: Any) -> None:
    """No worker service renews them; without a job nothing can be reserved, and its port passes nothing."""
    given = settings.load(cluster_nodes.settings())
    assert given.lease_seconds > experiment.SECONDS + 10 * cluster_nodes.START_SECONDS
