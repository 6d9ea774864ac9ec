"""A change of three flows in whose midst nobody answers any more: how long its refusal takes, in Python and in C."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from lark_mpi import held, service
from lark_mpi.errors import ReservationError
from lark_mpi.held import Flows
from tests.mpi.ranks import built

PEERS = [f"{number:016x}" for number in (1, 2, 3)]
# The service is not there, has no controller, or takes a request and is silent; after so many answers.
AWAY = [(way, answers) for way in ("missing", "busy", "silent") for answers in range(6)]
REASONS = {"missing": "is not there", "busy": "no controller answers", "silent": "it gave no answer in time"}


class Service:
    """A service that answers so many requests; the seconds that pass while the library waits."""

    def __init__(self) -> None:
        self.passed, self.way, self.answers = 0.0, "", 1000

    def monotonic(self) -> float:
        return 1000 + self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds

    def once(self, method: str, target: str, body: object, seconds: float) -> service.Answer:
        self.answers -= 1
        if self.answers >= 0:
            return 200, {"id": "1s1", "state": "enforced", "paths": [{"reservation": "1"}]}
        if self.way == "missing":
            raise FileNotFoundError
        if self.way == "busy":
            return 503, {"detail": "no controller answers"}
        self.passed += seconds
        raise OSError("it gave no answer in time")


def in_python(monkeypatch: pytest.MonkeyPatch, way: str, answers: int, rate: float) -> tuple[str, float, list[float]]:
    fake = Service()
    clock: Any = SimpleNamespace(monotonic=fake.monotonic, sleep=fake.sleep)
    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(held, "time", clock)
    monkeypatch.setattr(service, "_once", fake.once)
    monkeypatch.setattr(held._renewal, "add", lambda flows, at: None)
    flows, refused = Flows(lease=3600), ""
    flows.prepare(dict.fromkeys(PEERS, 30.0))
    flows.commit()
    fake.way, fake.answers = way, answers
    try:
        flows.prepare(dict.fromkeys(PEERS, rate))
    except ReservationError as error:
        refused = str(error)
        flows.undo()
    else:
        flows.commit()
    return refused, fake.passed, [flow.rate for flow in flows.made().values()]


def in_c(way: str, answers: int, rate: float) -> tuple[str, float, list[float]]:
    command = [str(built("mpich") / "away"), way, str(answers), f"{rate * 1000:.0f}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    refused, passed, rates = said.split("|")
    return refused, float(passed), [int(each) / 1000 for each in rates.split()]


def changed(
    monkeypatch: pytest.MonkeyPatch, language: str, way: str, answers: int, rate: float
) -> tuple[str, float, list[float]]:
    """The reason of a refusal, the seconds that a change took, and the rates after it."""
    return in_python(monkeypatch, way, answers, rate) if language == "python" else in_c(way, answers, rate)


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize(("way", "answers"), AWAY)
def test_a_change_without_an_answer_is_refused_after_half_a_minute_and_all_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, language: str, way: str, answers: int
) -> None:
    refused, passed, rates = changed(monkeypatch, language, way, answers, 60.0)
    if answers == 5:
        # Paths, three flows, and their queues.
        assert (refused, rates) == ("", [60.0] * 3)
        return
    assert refused.endswith(REASONS[way])
    assert rates == [30.0] * 3
    # As long as a service that starts anew may take, and a moment to give back what was taken.
    assert 25 < passed <= 33


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize(("way", "answers"), AWAY)
def test_rates_are_lowered_though_nobody_answers_and_a_program_waits_for_one_answer_alone(
    monkeypatch: pytest.MonkeyPatch, language: str, way: str, answers: int
) -> None:
    refused, passed, rates = changed(monkeypatch, language, way, answers, 10.0)
    assert (refused, rates) == ("", [10.0] * 3)
    assert passed <= (23 if way == "silent" else 5)
