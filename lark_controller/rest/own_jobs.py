"""The part of an answer that a caller with the scope ``self`` gets: what concerns its user's own jobs, without the
names, jobs and addresses of anybody else.

Texts that the policy, the pool or an operator wrote may name other users, so of these nothing is passed on: predicates,
the pool's objections, actors, and details of entries of the audit trail that may have come from another job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

from flask import g

from lark_common.errors import NotFoundError
from lark_controller.api.audit import AuditEntry
from lark_controller.api.drops import Drop, DropsByDown
from lark_controller.api.jobs import JobDetail
from lark_controller.jobs.job import Job
from lark_controller.qos.reservation import Reservation
from lark_controller.rest.context import actor, current
from lark_controller.rest.problems import Problem

CONTRADICTED: Final = "the pool contradicts its registration"
# Of these entries the details are the job's own; of a quarantine, or a run that took its slot, they name other jobs.
_DETAILED: Final = frozenset({"register", "update", "end", "address", "associate", "dissociate", "limit met"})
# Actors that are no person and no token.
_NOBODY: Final = frozenset({"controller", "lark"})


def own_user() -> str | None:
    """The user to whose jobs this request is confined, None where it is to none."""
    return cast("str | None", g.lark_user)


def require_own(owner: str | None, what: str) -> None:
    """Raises Problem 403 where a confined request asks for another user by name."""
    user = own_user()
    if user is not None and owner not in (None, user):
        raise Problem(403, f"{what}: the token {actor()} shows the jobs of {user} alone.", "scope")


def is_own(job_id: str | None) -> bool:
    """True if this request may see a job, live or ended. One that is not there, no confined request may."""
    user = own_user()
    if user is None:
        return True
    if job_id is None:
        return False
    try:
        return bool(current().controls.jobs.named(job_id, user))
    except NotFoundError:
        return False


def shown_job(job: Job) -> Job:
    """A job as this request shows it."""
    if own_user() is None or not job.quarantine:
        return job
    return replace(job, reason=CONTRADICTED, quarantine=CONTRADICTED)


def shown_detail(detail: JobDetail) -> JobDetail:
    """A job's details as this request shows them."""
    if own_user() is None:
        return detail
    decision = replace(
        detail.decision,
        because=tuple(because._replace(when="", does="") for because in detail.decision.because),
        quarantine=detail.decision.quarantine and CONTRADICTED,
    )
    job = shown_job(detail.job)
    confirmation = replace(detail.confirmation, job=shown_job(detail.confirmation.job))
    return replace(detail, job=job, decision=decision, confirmation=confirmation, machine_ad="")


def shown_drop(drop: Drop) -> Drop:
    """A drop as this request shows it."""
    if own_user() is None:
        return drop
    own = f"job {drop.name}"
    rule = drop.kind if drop.line is None else f"{drop.kind} (policy line {drop.line})"
    source, destination = (own, "others") if drop.direction == "out" else ("others", own)
    return replace(drop, source=source, destination=destination, rule=rule)


def shown_down(down: DropsByDown) -> DropsByDown:
    """A WAN port that is down as this request shows it."""
    return down if own_user() is None else replace(down, port="", switches=())


def shown_entries(entries: Sequence[AuditEntry]) -> Sequence[AuditEntry]:
    """Entries of the audit trail as this request shows them."""
    if own_user() is None:
        return entries
    named = {actor(), *_NOBODY}
    return [
        each._replace(
            actor=each.actor if each.actor in named else "", detail=each.detail if each.action in _DETAILED else ""
        )
        for each in entries
    ]


def shown_reservation(reservation: Reservation) -> Reservation:
    """A reservation as this request shows it: a receiver that is another's job stays unnamed."""
    if own_user() is None:
        return reservation
    peer = reservation.peer if is_own(reservation.peer) else None
    return replace(reservation, actor=shown_actor(reservation.actor), peer=peer)


def shown_actor(name: str) -> str:
    """The name of who asked for something as this request shows it: workers and operators stay unnamed."""
    return name if own_user() is None or name in (actor(), *_NOBODY) else ""
