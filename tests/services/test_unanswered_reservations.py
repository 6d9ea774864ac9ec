"""Reservations and external addresses whose commit the database does not answer: memory follows what it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lark_common.errors import PathError, UnansweredError
from lark_controller.api.external import ExternalWish
from lark_controller.api.reservations import Change, Wish
from lark_controller.controller import Controller
from lark_controller.jobs.external import listed
from lark_controller.jobs.job import Job
from lark_controller.qos.reservation import Reservation
from tests.fixtures.controllers import running
from tests.services.test_reservations import POLICY, flows, start

EXTERNAL = (
    POLICY
    + """
external:
  pools: {public: [198.51.100.64/28]}
  rules:
    - {pool: public, open: [tcp], per_user: 9}
"""
)


def unanswered(
    patch: pytest.MonkeyPatch, store: object, name: str, ask: Callable[[], object], *, done: bool = True
) -> None:
    """Ask, and have the commit's answer lost."""
    carry_out = getattr(store, name)

    def lost(*arguments: Any, **more: Any) -> None:
        if done:
            carry_out(*arguments, **more)
        raise UnansweredError("The change may or may not have been written")

    with patch.context() as patched:
        patched.setattr(store, name, lost)
        with pytest.raises(UnansweredError):
            ask()


def reserve(controller: Controller, job: Job) -> Reservation:
    return controller.reservations.reserve(Wish(source=job.id, destination="wan", rate=30.0), "hook", of_job=True)


@pytest.mark.parametrize("done", [True, False])
def test_a_flow_has_the_rate_that_the_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """Else the switch keeps for the job what others have been promised."""
    with running(tmp_path, POLICY) as controller:
        job, service = start(controller, 1), controller.reservations
        held = reserve(controller, job)
        store = service._store.reservations
        unanswered(
            monkeypatch, store, "change",
            lambda: service.change(held.id, Change(rate=10.0), "hook", of_job=True), done=done,
        )  # fmt: skip
        service.expire(time.time())
        assert [each.kbps for each in flows(controller, job)] == [10_000 if done else 30_000]
        assert service.sent_by(job.id) == (store.find(held.id, time.time()),)


def test_a_jobs_own_bandwidth_is_that_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, POLICY) as controller:
        job, service = start(controller, 1, rate=600), controller.reservations
        (held,) = service.page(job.id, None, 9).reservations
        store = service._store.reservations
        unanswered(
            monkeypatch, store, "change", lambda: service.change(held.id, Change(rate=50.0), "ops", of_job=False)
        )
        service.expire(time.time())
        (live,) = controller._registration.live()
        assert live.bandwidth == 50


@pytest.mark.parametrize("again", [True, False])
def test_a_flow_whose_reservation_had_no_answer_is_the_jobs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    with running(tmp_path, POLICY) as controller:
        job, service = start(controller, 1), controller.reservations
        store = service._store.reservations
        unanswered(monkeypatch, store, "admit", lambda: reserve(controller, job))
        if again:
            with pytest.raises(PathError, match="is for the same flow"):
                reserve(controller, job)
        else:
            service.expire(time.time())
        (there,) = store.flows(time.time())
        assert [each.number for each in flows(controller, job)] == [there.number]
        service.release(there.id, "hook", of_job=True)
        assert not flows(controller, job)
        assert reserve(controller, job).id != there.id


def test_a_reservation_that_was_not_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, POLICY) as controller:
        job, service = start(controller, 1), controller.reservations
        store = service._store.reservations
        unanswered(monkeypatch, store, "admit", lambda: reserve(controller, job), done=False)
        service.expire(time.time())
        assert not flows(controller, job)
        assert reserve(controller, job).job == job.id


def test_a_job_has_the_external_addresses_that_the_store_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, EXTERNAL) as controller:
        job, service = start(controller, 1), controller.external
        unanswered(
            monkeypatch, service._store, "associate",
            lambda: service.associate(ExternalWish(job.id, listed("tcp/80")), "ops"),
        )  # fmt: skip
        service.expire(time.time())
        (there,) = service.page(job.id).associations
        (live,) = controller._registration.live()
        assert live.external_addresses == (there.address,)
        # Released, it is to be another's to have.
        unanswered(monkeypatch, service._store, "release", lambda: service.release(there.id, "ops"))
        service.expire(time.time())
        (live,) = controller._registration.live()
        assert live.external_addresses == ()
