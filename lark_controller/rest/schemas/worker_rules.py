"""The JSON of workers' rules (:mod:`lark_common.worker_rules`)."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields, validate

from lark_common.runs import NetworkType
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.usage import LARGEST


def _meta(meaning: str) -> dict[str, str]:
    return {"description": meaning}


def _text(meaning: str, **options: Any) -> fields.String:
    return fields.String(required=True, metadata=_meta(meaning), **options)


def _number(meaning: str) -> fields.Integer:
    return fields.Integer(required=True, metadata=_meta(meaning))


def _maybe_number(meaning: str) -> fields.Integer:
    return fields.Integer(required=True, allow_none=True, metadata=_meta(meaning))


def _flag(meaning: str) -> fields.Boolean:
    return fields.Boolean(required=True, metadata=_meta(meaning))


class ShareSchema(Schema):
    """A queue's share of an uplink."""

    least = _number("Whenever it has packets, bits a second")
    most = _number("At most, bits a second")
    burst = _number("At once, bits")


class ReservedShareSchema(Schema):
    """A flow of a job that has a share of its own."""

    key = _text("Its key in the uplinks' shares")
    target = fields.List(fields.String, required=True, metadata=_meta("Its destinations; empty: the WAN"))


class UplinkSchema(Schema):
    """The traffic of a worker's jobs by one interface."""

    rate = _number("Altogether, bits a second")
    rest = fields.Nested(ShareSchema, required=True, metadata=_meta("The share of all others together"))
    shares = fields.Dict(
        keys=fields.String(),
        values=fields.Nested(ShareSchema),
        required=True,
        metadata=_meta("By the job's id, and for a reserved flow a slash and the reservation's number behind it"),
    )


class JobRulesSchema(Schema):
    """The permissions of one job, as its worker enforces them."""

    id = _text("The job's id", validate=validate.Regexp(r"^[0-9a-f]{16}$"))
    network_type = _text("Kind of the job's network", validate=validate.OneOf([str(kind) for kind in NetworkType]))
    mac = _text("MAC address inside the job; zeros where it is not known")
    addresses = fields.List(fields.String, required=True, metadata=_meta("The addresses that it may send from"))
    vlan = _maybe_number("VLAN")
    dhcp = _flag("It may ask a DHCP server")
    isolated = _flag("Nothing passes")
    slice = _number("Its key in slices; 0: not sliced")
    wan = _number("Its key in exceptions; 0: its WAN traffic is not dropped")
    inbound = _flag("May be called")
    outbound = _flag("May call")
    dscp = _maybe_number("DSCP of everything that it sends; null: as the job sets it")
    inward = fields.Nested(
        ShareSchema, required=True, allow_none=True, metadata=_meta("Limits what is sent to it; null: nothing does")
    )
    reserved = fields.List(
        fields.Nested(ReservedShareSchema), required=True, metadata=_meta("Flows that it has reserved")
    )


def _prefixes(meaning: str) -> fields.List[Any]:
    return fields.List(fields.String, required=True, metadata=_meta(meaning))


def _numbered(meaning: str) -> fields.Dict:
    return fields.Dict(keys=fields.String(), values=fields.List(fields.String), required=True, metadata=_meta(meaning))


class RulesSchema(Schema):
    """The rules of one worker's jobs that have no port on a switch."""

    job_networks = _prefixes("Closed to sliced jobs but for their slice and hosts")
    hosts = _prefixes("Addresses in the job networks that are no job's")
    local_networks = _prefixes("The addresses that are not the WAN")
    exceptions = _numbered("WAN rule -> the prefixes that it does not drop")
    slices = _numbered("Slice -> the prefixes of its jobs")
    jobs = fields.List(
        fields.Nested(JobRulesSchema), required=True, metadata=_meta("The jobs, in order of registration")
    )
    uplinks = fields.Dict(
        keys=fields.String(),
        values=fields.Nested(UplinkSchema),
        required=True,
        allow_none=True,
        metadata=_meta("The worker's uplinks, by name; null: the queues that stand are to stay"),
    )


class HostSchema(Schema):
    """A worker's rules and its confirmed revision."""

    host = _text("Machine")
    revision = _text("Changes when the rules change")
    rules = fields.Nested(
        RulesSchema, required=True, allow_none=True, metadata=_meta("The rules; null where the revision is known")
    )
    waiting = fields.List(fields.String, required=True, metadata=_meta("Ids of the jobs whose rules are not confirmed"))


class RenewedSchema(Schema):
    """The renewed leases of a worker's jobs."""

    lease_until = Time("When they run out")
    missing = fields.List(
        fields.String, required=True, metadata=_meta("Ids of the jobs that do not live on this worker")
    )


class _Count(fields.Integer):
    """A whole number that the store and the arithmetic can hold."""

    def __init__(self) -> None:
        super().__init__(required=True, strict=True, validate=validate.Range(0, LARGEST))


class DeliveredQueueSchema(Schema):
    """The delivery of one queue of a job on its worker."""

    job = _text("The job's id", validate=validate.Regexp(r"^[0-9a-f]{16}$"))
    queue = _text("Its name", validate=validate.Length(1, 64))
    promised, sent, dropped, waited = _Count(), _Count(), _Count(), _Count()


class DeliveredSchema(Schema):
    """The delivery of the queues of a worker."""

    at = _Count()
    queues = fields.List(fields.Nested(DeliveredQueueSchema), required=True)


class DeliveredAnswerSchema(Schema):
    """The answer to a post of deliveries."""

    missed = _number("Number of guarantees missed since the last post")
