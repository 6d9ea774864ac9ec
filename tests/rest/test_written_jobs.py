"""Answers that are written by hand are those that the schemas document."""

from __future__ import annotations

import json

import pytest

from lark_common.runs import NetworkType
from lark_controller.api.jobs import Confirmation, Waiting
from lark_controller.jobs.job import Job
from lark_controller.rest.schemas.answers import JobSchema, Joined, RegisteredSchema
from lark_controller.rest.written_jobs import job_members, registered_members
from tests.fixtures.databases import FULL, a_run

BARE = Job(0, FULL.run, FULL.id, "bob", "", "", 0, 0, "worker1", NetworkType.NONE)


@pytest.mark.parametrize("job", [FULL, BARE, a_run(3, bandwidth=2.0, inbound=True, quarantine="why", vouched=True)])
def test_a_job_has_the_members_of_its_schema(job: Job) -> None:
    assert json.dumps(job_members(job)) == json.dumps(JobSchema().dump(job))


@pytest.mark.parametrize(
    "confirmation",
    [Confirmation(BARE), Confirmation(FULL, ("00000000000000c0",), (Waiting("0000000000000001", "is away"),))],
)
def test_a_registration_has_the_members_of_its_schema(confirmation: Confirmation) -> None:
    dumped = RegisteredSchema().dump(Joined(confirmation, confirmation.job))
    assert json.dumps(registered_members(confirmation)) == json.dumps(dumped)
