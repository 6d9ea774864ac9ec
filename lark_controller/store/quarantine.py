"""Quarantine of runs: what the pool says against them, and an operator's word for them."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, update

from lark_common.errors import StateError
from lark_controller.jobs.job import Job
from lark_controller.store.audit_and_policies import record
from lark_controller.store.runs import find_for_update
from lark_controller.store.schema import runs


def quarantine(connection: Connection, job_id: str, reason: str, actor: str, now: float) -> Job | None:
    """Note against a live run what speaks against it; None where no such run lives."""
    job = find_for_update(connection, job_id)
    if job is None or not job.live:
        return None
    if job.quarantine == reason:
        return job
    connection.execute(update(runs).where(runs.c.number == job.number).values(quarantine=reason))
    record(connection, now, actor, "quarantine", job_id, reason)
    return replace(job, quarantine=reason)


def lift(connection: Connection, job_id: str, reason: str, actor: str, now: float, vouched: bool) -> Job | None:
    """End a live run's quarantine; None where no such run lives. With ``vouched`` it will not be in one again, and
    StateError is raised for a run that is in none: nothing speaks against it that anybody could vouch for."""
    job = find_for_update(connection, job_id)
    if job is None or not job.live:
        return None
    if vouched and not job.quarantine:
        raise StateError(f"job {job_id} is in no quarantine, so there is none to lift")
    after = replace(job, quarantine="", vouched=job.vouched or vouched)
    if after == job:
        return job
    connection.execute(update(runs).where(runs.c.number == job.number).values(quarantine="", vouched=after.vouched))
    record(connection, now, actor, "lift", job_id, reason)
    return after
