"""The JSON of requests and answers, one schema a value: what is documented is what is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from marshmallow import Schema, fields, pre_dump, validate

from lark_common.runs import AddressType, NetworkType
from lark_controller.accounting.usage import JobUsage
from lark_controller.api.audit import AuditEntry
from lark_controller.api.drops import Drop
from lark_controller.api.health import Readiness
from lark_controller.api.jobs import Waiting
from lark_controller.api.policy import Effect, JobChange, PastPolicy, Plan, PolicyVersion, SwitchPlan
from lark_controller.api.switches import (
    Explanation,
    FlowStatus,
    FlowTable,
    PortStatus,
    Step,
    SwitchProblem,
    SwitchStatus,
)
from lark_controller.api.usage import GroupStatus
from lark_controller.jobs.job import JobState
from lark_controller.policies.compare import Comparison
from lark_controller.rest.schemas.described import Datapath, schema_of
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.usage import JobUsageSchema

_JOB_ID = r"^[0-9a-f]{16}$"


def _meta(meaning: str, **more: object) -> dict[str, object]:
    return {"description": meaning, **more}


def _text(meaning: str, **options: Any) -> fields.String:
    return fields.String(required=True, metadata=_meta(meaning), **options)


def _maybe_text(meaning: str) -> fields.String:
    return fields.String(required=True, allow_none=True, metadata=_meta(meaning))


def _number(meaning: str, **options: Any) -> fields.Integer:
    return fields.Integer(required=True, metadata=_meta(meaning), **options)


def _maybe_number(meaning: str) -> fields.Integer:
    return fields.Integer(required=True, allow_none=True, metadata=_meta(meaning))


def _maybe_float(meaning: str) -> fields.Float:
    return fields.Float(required=True, allow_none=True, metadata=_meta(meaning))


def _flag(meaning: str) -> fields.Boolean:
    return fields.Boolean(required=True, metadata=_meta(meaning))


def _maybe_flag(meaning: str) -> fields.Boolean:
    return fields.Boolean(required=True, allow_none=True, metadata=_meta(meaning))


def _choice(meaning: str, values: type[JobState] | type[AddressType] | type[NetworkType]) -> fields.String:
    return fields.String(
        required=True, validate=validate.OneOf([str(value) for value in values]), metadata=_meta(meaning)
    )


def _many(schema: type[Schema], meaning: str) -> fields.List[Any]:
    return fields.List(fields.Nested(schema), required=True, metadata=_meta(meaning))


class ProblemSchema(Schema):
    """A problem document (RFC 9457)."""

    type = _text("about:blank, or urn:lark:problem:<kind>")
    title = _text("The kind of problem in words")
    status = _number("The HTTP status")
    detail = _text("This problem in a sentence")
    instance = fields.String(metadata=_meta("The id that the controller's log has of it (status 500)"))
    attribute = fields.String(metadata=_meta("The ad's attribute at fault (ad, address)"))
    reason = fields.String(metadata=_meta("The mistake in the attribute, and the accepted values (ad, address)"))
    holder = fields.String(metadata=_meta("The id of the job that holds the address (address)"))
    mistakes = fields.List(fields.Nested("MistakeSchema"), metadata=_meta("Every mistake, in file order (policy)"))
    errors = fields.List(fields.Nested("ParameterErrorSchema"), metadata=_meta("Every one refused (parameters)"))
    links = fields.List(fields.Nested("ShortageSchema"), metadata=_meta("Every link without room (capacity)"))
    refused = fields.String(metadata=_meta("Outcome for a job that was refused: hold or idle (capacity, topology)"))
    candidates = fields.List(fields.Nested("CandidateSchema"), metadata=_meta("Jobs that may be meant (ambiguous)"))


class CandidateSchema(Schema):
    """A job that a word may mean."""

    id = _text("Its id")
    name = _text("CLUSTER.PROC with the access point in front")
    global_job_id = _text("Its GlobalJobId")
    slot = _text("Its slot")
    state = _text("Its state")


class ParameterErrorSchema(Schema):
    """A parameter of the query, or a member of the body, that was refused."""

    parameter = _text("Its name")
    problem = _text("The mistake")


class ShortageSchema(Schema):
    """A link that has no room."""

    link = _text("Its name")
    source = _text("From; empty where both directions share the link")
    target = _text("To; empty where both directions share the link")
    capacity = fields.Float(required=True, metadata=_meta("Its capacity, Mb/s"))
    reserved = fields.Float(required=True, metadata=_meta("Its reserved part, Mb/s"))
    available = fields.Float(required=True, metadata=_meta("Its free part, Mb/s"))
    asked = fields.Float(required=True, metadata=_meta("The rate that was asked for on top, Mb/s"))


class MistakeSchema(Schema):
    """One mistake in a policy."""

    line = _number("Line, from 1")
    column = _number("Column, from 1")
    key = _text("The key at fault")
    problem = _text("The mistake")
    accepted = _text("The accepted values")


class AddressSchema(Schema):
    """An address of a job."""

    address = _text("The address")
    family = _number("4 or 6")
    block = _maybe_text("The block it was assigned from, reserved for the job's group and user")

    @pre_dump
    def _of_pair(self, pair: Any, **_: Any) -> dict[str, object]:
        address, block = pair
        return {
            "address": str(address),
            "family": address.version,
            "block": None if block is None else str(block),
        }


class JobSchema(Schema):
    """One run of an HTCondor job on one slot."""

    id = _text("The job's id: the same for the same run on every controller")
    state = _choice("State of the job", JobState)
    reason = _text("Reason why it is pending, quarantined or refused")
    global_job_id = _text("GlobalJobId", attribute="run.global_job_id")
    started = _number("JobCurrentStartDate, seconds since 1970", attribute="run.started")
    slot = _text("The slot", attribute="run.slot")
    owner = _text("Owner")
    user = _text("User")
    group = _text("AcctGroup")
    cluster = _number("ClusterId")
    proc = _number("ProcId")
    host = _text("Machine")
    network_type = _choice("Kind of the job's network", NetworkType)
    address_type = _choice("Source of its address", AddressType)
    addresses = fields.List(
        fields.Nested(AddressSchema), required=True, attribute="blocks", metadata=_meta("Its addresses, IPv4 first")
    )
    datapath = Datapath("The worker's bridge", allow_none=True)
    port = _maybe_text("The job's port on that bridge")
    mac = _maybe_text("The MAC address inside the job")
    vlan = _maybe_number("VLAN id")
    bandwidth = _maybe_float("RequestBandwidth, Mb/s")
    inbound = _maybe_flag("InboundConnectivity as the job asks")
    outbound = _maybe_flag("OutboundConnectivity as the job asks")
    created = Time("Time when it was registered")
    lease_until = Time("Time when its lease runs out")
    vouched = _flag("An operator has lifted its quarantine; readings of the pool count no more against it")


WaitingSchema = schema_of(Waiting, "WaitingSchema")


class Joined:
    """Several values read as one: the first that has an attribute gives it."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: object) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        for part in self._parts:
            if hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(name)


class Used(NamedTuple):
    """A job's use, and whether nothing of it passes, to be joined with the job."""

    usage: JobUsage | None
    isolated: bool


class RegisteredSchema(JobSchema):
    """A job with the switches that hold its flows."""

    confirmed = fields.List(
        fields.String(), required=True, metadata=_meta("Datapath ids of the switches that confirmed by barrier")
    )
    waiting = _many(WaitingSchema, "The switches concerned that have not confirmed")


class BecauseSchema(Schema):
    """The reason for a part of the policy's decision."""

    kind = _text("Kind of policy")
    position = _number("The rule's position in its kind, from 1")
    line = _number("Its line in the policy")
    when = _text("Its predicate")
    values = fields.Dict(
        keys=fields.String(), values=fields.String(), required=True, metadata=_meta("The attributes it met, as ClassAd")
    )

    @pre_dump
    def _with_mapping(self, because: Any, **_: Any) -> Mapping[str, object]:
        return {**because._asdict(), "values": dict(because.values)}


class SliceSchema(Schema):
    """A slice."""

    rule = _number("The rule's position")
    value = _text("The value that its jobs share, as ClassAd")


class DecisionSchema(Schema):
    """The policy's decision for a job."""

    blocked = _flag("No traffic at all")
    slice = fields.Nested(
        SliceSchema, required=True, allow_none=True, metadata=_meta("Jobs it may exchange packets with")
    )
    wan = _number("The position of the WAN rule that applies, 0 for none")
    inbound = _flag("May be called")
    outbound = _flag("May call")
    group = _text("Its group of the policy")
    quarantine = _text("The objection of the pool; the job then passes nothing")
    accounted = _flag("Its use of the network is counted")
    because = _many(BecauseSchema, "Reasons, in the order in which a packet meets them")


_USED = "Its network use, null where that is not counted"


class ListedJobSchema(JobSchema):
    """A job in a list."""

    isolated = _flag("Nothing of it passes: a rule of the policy says so, or its quarantine")
    usage = fields.Nested(JobUsageSchema, required=True, allow_none=True, metadata=_meta(_USED))


class JobDetailSchema(RegisteredSchema):
    """A job with the policy's decision, the switches' confirmations, its use and its ads."""

    ended = Time("Time when it ended", allow_none=True)
    decision = fields.Nested(DecisionSchema, required=True, metadata=_meta("The policy's decision for it"))
    job_ad = _text("The job ad, in old syntax")
    machine_ad = _text("The machine ad, in old syntax")
    usage = fields.Nested(JobUsageSchema, required=True, allow_none=True, metadata=_meta(_USED))


class Page(Schema):
    """The place at which a list goes on."""

    next = _maybe_text("The next page's URL, null on the last")
    next_cursor = _maybe_text("The cursor of the next page")


class JobPageSchema(Page):
    """A page of jobs, in the order of their registration."""

    jobs = _many(ListedJobSchema, "The jobs")


PortSchema = schema_of(PortStatus, "PortSchema")
SwitchProblemSchema = schema_of(SwitchProblem, "SwitchProblemSchema")
SwitchSchema = schema_of(SwitchStatus, "SwitchSchema", without=("ports", "problems"))
SwitchDetailSchema = schema_of(SwitchStatus, "SwitchDetailSchema")


class SwitchListSchema(Schema):
    """All switches that are declared or have been connected."""

    switches = _many(SwitchSchema, "The switches")


FlowSchema = schema_of(FlowStatus, "FlowSchema")
FlowTableSchema = schema_of(FlowTable, "FlowTableSchema")


class FlowPageSchema(Page):
    """A page of a switch's flows, desired and installed."""

    flows = _many(FlowSchema, "The flows, in packet order")
    tables = _many(FlowTableSchema, "The tables of the list, whichever was chosen")


PolicySchema = schema_of(PolicyVersion, "PolicySchema")


class PolicyTextSchema(Schema):
    """A policy as JSON."""

    text = _text("The policy, YAML")


class BothAdsSchema(Schema):
    """Both ads of a run as JSON: each as text in either ClassAd syntax, or as an object of attributes."""

    job_ad = fields.Raw(required=True, metadata=_meta("The job ad", type=["object", "string"]))
    machine_ad = fields.Raw(required=True, metadata=_meta("The machine ad", type=["object", "string"]))


class ExitAdSchema(Schema):
    """The end of a job as JSON."""

    exit_ad = _text("The exit ad")


class ForgerySchema(Schema):
    """A refused claim as JSON."""

    detail = _text("The claim, and the fact")


class LimitSchema(Schema):
    """A limit that a job has met, as JSON."""

    detail = _text("The limit, and what the job loses by it")


class PolicyCheckSchema(Schema):
    """The mistakes of a policy."""

    valid = _flag("No mistake was found")
    mistakes = _many(MistakeSchema, "Every mistake, in file order")
    warnings = fields.List(fields.String(), required=True, metadata=_meta("Refusals by the policy, though it is valid"))


PastPolicySchema = schema_of(PastPolicy, "PastPolicySchema")


class PolicyHistorySchema(Page):
    """A page of the policy's versions, newest first."""

    versions = _many(PastPolicySchema, "The versions, without their texts")


PolicyDifferenceSchema = schema_of(
    Comparison,
    "PolicyDifferenceSchema",
    old=fields.Nested(PastPolicySchema, required=True, metadata=_meta("The version that is compared")),
    new=fields.Nested(PastPolicySchema, required=True, metadata=_meta("The version that it is compared with")),
)
EffectSchema = schema_of(Effect, "EffectSchema")
JobChangeSchema = schema_of(JobChange, "JobChangeSchema")
SwitchPlanSchema = schema_of(SwitchPlan, "SwitchPlanSchema")
PlanSchema = schema_of(Plan, "PlanSchema")
GroupSchema = schema_of(GroupStatus, "GroupSchema")


DropSchema = schema_of(Drop, "DropSchema")


class DropListSchema(Schema):
    """The packets that are dropped now."""

    drops = _many(DropSchema, "The drops, the most first")
    jobs = _number("Jobs whose packets are dropped now")
    packets_per_second = fields.Float(required=True, metadata=_meta("Packets that are dropped now, of all of them"))


class GroupListSchema(Schema):
    """The accounting groups of the policy in force."""

    groups = _many(GroupSchema, "The groups, in file order")


StepSchema = schema_of(Step, "StepSchema")
ExplanationSchema = schema_of(Explanation, "ExplanationSchema")
AuditEntrySchema = schema_of(AuditEntry, "AuditEntrySchema")


class AuditPageSchema(Page):
    """A page of the audit trail, newest first."""

    entries = _many(AuditEntrySchema, "The entries")


class NotedSchema(Schema):
    """The line written to the audit trail."""

    subject = _text("The job's id")
    action = _text("The action")


class HealthSchema(Schema):
    """The process answers."""

    status = _text("ok")


ReadinessSchema = schema_of(Readiness, "ReadinessSchema")
