"""The query parameters that are accepted, one schema an operation."""

from __future__ import annotations

import re

from marshmallow import Schema, ValidationError, fields, validate

from lark_common.runs import EndedBy, number_in_word
from lark_controller.api.jobs import BLOCKED
from lark_controller.jobs.job import JobState
from lark_controller.rest.schemas.members import meta


class Whole(validate.Validator):
    """A regular expression that the whole of a text matches. Its anchors, ^ and $, mean the same in Python and, as
    JSON Schema has it, in ECMAScript: Python's own $ also matches before a last newline."""

    def __init__(self, pattern: str, error: str) -> None:
        self.regex = re.compile(pattern)
        self._problem = error

    def __call__(self, value: str) -> str:
        """The text. Raises ValidationError."""
        if self.regex.fullmatch(value) is None:
            raise ValidationError(self._problem)
        return value


# A name in an ad is at most this long; NUL and other control characters stand in none.
WORD = [
    validate.Length(1, 1024),
    Whole(r"^[^\x00-\x1f\x7f]*$", error="control characters are not accepted"),
]


def _a_cluster(text: str) -> None:
    number = number_in_word(text)
    if number is None or number.proc is not None:
        raise ValidationError("not a cluster's number; accepted: 103, submit1#103, 103@submit1")


class WaitQuery(Schema):
    """The time that a post waits."""

    wait = fields.Float(
        load_default=0.0,
        validate=validate.Range(0, 600, error="a number of seconds from 0 to {max} is accepted"),
        metadata=meta("Seconds to wait for the switches' confirmation, at most the setting LARK_WAIT_LIMIT"),
    )


class RegisterQuery(WaitQuery):
    """A registration."""

    running = fields.Boolean(
        load_default=False,
        metadata=meta("The job runs already: without the external address that it asks for it keeps its network"),
    )


class MetricsQuery(Schema):
    """The controller whose metrics are asked for."""

    of = fields.String(
        load_default="this",
        validate=validate.OneOf(["this", "active"]),
        metadata=meta("this: those of the controller that is asked; active: those of the active one, by any"),
    )


class EndQuery(Schema):
    """The source of a job's end."""

    by = fields.String(
        load_default=EndedBy.HOOK.value,
        validate=validate.OneOf([each.value for each in EndedBy]),
        metadata=meta(
            "hook: the job's hook; starter: its condor_starter ended; worker: its worker started "
            "again; start: its worker did not start it"
        ),
    )


class RulesQuery(Schema):
    """The change of its rules that a worker waits for."""

    after = fields.String(
        load_default="", validate=WORD[1], metadata=meta("The revision that the worker has; rules come for another")
    )
    wait = fields.Float(
        load_default=0.0,
        validate=validate.Range(0, 60, error="a number of seconds from 0 to {max} is accepted"),
        metadata=meta("Seconds to wait for another revision, at most 60"),
    )


class ChangeQuery(Schema):
    """The change that a reader waits for."""

    after = fields.String(
        load_default="", validate=WORD[1], metadata=meta("The version that the reader has; the answer is of another")
    )
    wait = fields.Float(
        load_default=0.0,
        validate=validate.Range(0, 60, error="a number of seconds from 0 to {max} is accepted"),
        metadata=meta("Seconds to wait for another version, at most 60"),
    )


class PageQuery(Schema):
    """A part of a list."""

    limit = fields.Integer(
        strict=False, load_default=100, validate=validate.Range(1, 1000), metadata=meta("Number of entries, 1 to 1000")
    )
    cursor = fields.String(validate=WORD, metadata=meta("Position to go on from: next_cursor of the page before"))


class JobQuery(PageQuery):
    """A choice of jobs."""

    owner = fields.String(validate=WORD, metadata=meta("Owner"))
    user = fields.String(validate=WORD, metadata=meta("User, of one or several domains of an Owner"))
    group = fields.String(validate=WORD, metadata=meta("AcctGroup in any case, with its subgroups"))
    host = fields.String(validate=WORD, metadata=meta("Machine; its first part will do"))
    global_job_id = fields.String(validate=WORD, metadata=meta("GlobalJobId"))
    cluster = fields.String(
        validate=[*WORD, _a_cluster],
        metadata=meta("A cluster: 103, or with its access point submit1#103 or 103@submit1"),
    )
    state = fields.String(
        load_default="live",
        validate=validate.OneOf([*(str(state) for state in JobState), BLOCKED, "live", "any"]),
        metadata=meta(
            "A state; live is all but ended and refused, and blocked are those enforced of which nothing passes by a "
            "rule of the policy"
        ),
    )
    order = fields.String(
        load_default="oldest",
        validate=validate.OneOf(["oldest", "newest"]),
        metadata=meta("Order by registration"),
    )


class FreshQuery(Schema):
    """The greatest age of a job's use in the answer."""

    fresh = fields.Boolean(
        load_default=False,
        metadata=meta("Read the counters of a live job at its switch now; otherwise they are those of the last round"),
    )


class PairsQuery(Schema):
    """The pairs that are asked for."""

    application = fields.Boolean(
        load_default=False,
        metadata=meta(
            "The pairs of the whole application: of all nodes of a parallel job, of any other job those of the jobs at "
            "the ends of its pairs"
        ),
    )


class AuditQuery(PageQuery):
    """A part of the audit trail."""

    subject = fields.String(
        validate=WORD, metadata=meta("Any name of a job, a switch's name or datapath id, policy, or controller")
    )


class DropQuery(PageQuery):
    """The number of drops, and whose they are."""

    job = fields.String(validate=WORD, metadata=meta("Any name of a job; those of its packets alone"))

    class Meta:
        """Drops change while they are read: there is no next page."""

        exclude = ("cursor",)


class FlowQuery(PageQuery):
    """A choice of a switch's flows."""

    job = fields.String(validate=WORD, metadata=meta("Any name of a job; its own flows alone"))
    table = fields.Integer(strict=False, validate=validate.Range(0, 254), metadata=meta("The number of a table"))
    text = fields.String(
        load_default="",
        validate=[validate.Length(0, 1024), WORD[1]],
        metadata=meta("Text that match, actions, origin, state, job or cookie contain, whatever the case"),
    )


class ReservationQuery(PageQuery):
    """A choice of reservations."""

    job = fields.String(validate=WORD, metadata=meta("Any name of a job: its own, and flows that go to it"))


class ExternalQuery(PageQuery):
    """A choice of external addresses."""

    job = fields.String(validate=WORD, metadata=meta("Any name of a job"))


class DifferenceQuery(Schema):
    """Two versions of the policy."""

    old = fields.Integer(
        strict=False, required=True, validate=validate.Range(1), metadata=meta("The version that is compared")
    )
    new = fields.Integer(
        strict=False, validate=validate.Range(1), metadata=meta("The other one, by default the one in force")
    )


class ExplainQuery(Schema):
    """From where to where."""

    src = fields.String(
        required=True, validate=WORD, metadata=meta("An address or any name of a job: see /jobs/{job_id}")
    )
    dst = fields.String(
        required=True, validate=WORD, metadata=meta("An address or any name of a job: see /jobs/{job_id}")
    )
