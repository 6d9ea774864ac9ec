"""The JSON of requests and answers, one schema a value: what is documented is what is written."""

from __future__ import annotations

from typing import Any, Final

from marshmallow import Schema, fields, validate

from lark_common.runs import Address, AddressType, Network, NetworkType
from lark_controller.api.audit import AuditEntry
from lark_controller.api.drops import CORES_UNREAD, DOWN, UNREAD, Drop, DropsByDown
from lark_controller.api.health import Readiness
from lark_controller.api.jobs import TransferState, Waiting
from lark_controller.api.policy import Effect, JobChange, PastPolicy, Plan, PolicyVersion, SwitchPlan
from lark_controller.api.switches import (
    STATES,
    Explanation,
    FlowStatus,
    FlowTable,
    PortStatus,
    Step,
    SwitchProblem,
    SwitchStatus,
)
from lark_controller.api.usage import AccessPointStatus, GroupStatus
from lark_controller.jobs.job import JobState
from lark_controller.policies.compare import Comparison
from lark_controller.policies.model import Because
from lark_controller.rest.schemas.described import Datapath, schema_of
from lark_controller.rest.schemas.members import (
    a_flag,
    a_float,
    a_number,
    a_text,
    maybe_flag,
    maybe_float,
    maybe_number,
    maybe_text,
    meta,
    texts,
)
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.usage import JobUsageSchema
from lark_controller.rest.schemas.written import Rows, Written

_JOB_ID = r"^[0-9a-f]{16}$"


def _choice(meaning: str, values: type[JobState] | type[AddressType] | type[NetworkType]) -> fields.String:
    return fields.String(
        required=True, validate=validate.OneOf([str(value) for value in values]), metadata=meta(meaning)
    )


class ProblemSchema(Schema):
    """A problem document (RFC 9457)."""

    type = a_text("about:blank, or urn:lark:problem:<kind>")
    title = a_text("The kind of problem in words")
    status = a_number("The HTTP status")
    detail = a_text("This problem in a sentence")
    instance = fields.String(metadata=meta("The id that the controller's log has of it (status 500)"))
    attribute = fields.String(metadata=meta("The ad's attribute at fault (ad, address)"))
    reason = fields.String(metadata=meta("The mistake in the attribute, and the accepted values (ad, address)"))
    holder = fields.String(metadata=meta("The id of the job that holds the address (address)"))
    mistakes = fields.List(fields.Nested("MistakeSchema"), metadata=meta("Every mistake, in file order (policy)"))
    errors = fields.List(fields.Nested("ParameterErrorSchema"), metadata=meta("Every one refused (parameters)"))
    links = fields.List(fields.Nested("ShortageSchema"), metadata=meta("Every link without room (capacity)"))
    refused = fields.String(metadata=meta("Outcome for a job that was refused: hold or idle (capacity, topology)"))
    candidates = fields.List(fields.Nested("CandidateSchema"), metadata=meta("Jobs that may be meant (ambiguous)"))


class CandidateSchema(Schema):
    """A job that a word may mean."""

    id = a_text("Its id")
    name = a_text("CLUSTER.PROC with the access point in front")
    global_job_id = a_text("Its GlobalJobId")
    slot = a_text("Its slot")
    state = a_text("Its state; of one that is enforced blocked or no network, where it is shown so")


class ParameterErrorSchema(Schema):
    """A parameter of the query, or a member of the body, that was refused."""

    parameter = a_text("Its name")
    problem = a_text("The mistake")


class ShortageSchema(Schema):
    """A link that has no room."""

    link = a_text("Its name")
    source = a_text("From; empty where both directions share the link")
    target = a_text("To; empty where both directions share the link")
    capacity = a_float("Its capacity, Mb/s")
    reserved = a_float("Its part that is reserved beside this reservation, Mb/s")
    available = a_float("The most that this reservation could have of it, Mb/s")
    asked = a_float("The rate that was asked for in all, Mb/s")
    held = a_float("The part of asked that the reservation has already, Mb/s")
    own = maybe_float(
        "The part of reserved that jobs of the same cluster hold by other reservations, Mb/s; null: not looked at"
    )


class MistakeSchema(Schema):
    """One mistake in a policy."""

    line = a_number("Line, from 1")
    column = a_number("Column, from 1")
    key = a_text("The key at fault")
    problem = a_text("The mistake")
    accepted = a_text("The accepted values")


class AddressSchema(Written):
    """An address of a job."""

    address = a_text("The address")
    family = a_number("4 or 6")
    block = maybe_text("The block it was assigned from, reserved for the job's group and user")

    def members(self, value: tuple[Address, Network | None]) -> dict[str, object]:
        """The members of an address with its block."""
        address, block = value
        return {"address": str(address), "family": address.version, "block": None if block is None else str(block)}


class JobSchema(Written):
    """One run of an HTCondor job on one slot."""

    id = a_text("The job's id: the same for the same run on every controller")
    state = _choice("State of the job", JobState)
    reason = a_text("Reason why it is pending, quarantined or refused")
    global_job_id = a_text("GlobalJobId", attribute="run.global_job_id")
    started = a_number("JobCurrentStartDate, seconds since 1970", attribute="run.started")
    slot = a_text("The slot", attribute="run.slot")
    owner = a_text("Owner")
    user = a_text("User")
    group = a_text("AcctGroup")
    cluster = a_number("ClusterId")
    proc = a_number("ProcId")
    host = a_text("Machine")
    network_type = _choice("Kind of the job's network", NetworkType)
    address_type = _choice("Source of its address", AddressType)
    addresses = fields.List(
        fields.Nested(AddressSchema), required=True, attribute="blocks", metadata=meta("Its addresses, IPv4 first")
    )
    external_addresses = texts("Its addresses outside of the site, while they are its own")
    external_open = texts("The protocols and ports that are open there")
    external_name = a_text("The name of an external address in the DNS, empty where there is none")
    datapath = Datapath("The worker's bridge", allow_none=True)
    port = maybe_text("The job's port on that bridge")
    mac = maybe_text("The MAC address inside the job")
    vlan = maybe_number("VLAN id")
    bandwidth = maybe_float("RequestBandwidth, Mb/s")
    inbound = maybe_flag("InboundConnectivity as the job asks")
    outbound = maybe_flag("OutboundConnectivity as the job asks")
    created = Time("Time when it was registered")
    lease_until = Time("Time when its lease runs out")
    vouched = a_flag("An operator has lifted its quarantine; readings of the pool count no more against it")


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


class RegisteredSchema(JobSchema):
    """A job with the switches that hold its flows."""

    confirmed = texts("Datapath ids of the switches that confirmed by barrier")
    waiting = Rows(WaitingSchema, "The switches concerned that have not confirmed")


class BecauseSchema(Written):
    """The reason for a part of the policy's decision."""

    kind = a_text("Kind of policy")
    position = a_number("The rule's position in its kind, from 1")
    line = a_number("Its line in the policy")
    when = a_text("Its predicate")
    values = fields.Dict(
        keys=fields.String(), values=fields.String(), required=True, metadata=meta("The attributes it met, as ClassAd")
    )
    does = a_text("The rule's treatment in words, of WAN rules; empty for others")

    def members(self, value: Because) -> dict[str, object]:
        """The members of a reason."""
        return {**value._asdict(), "values": dict(value.values)}


class SliceSchema(Written):
    """A slice."""

    rule = a_number("The rule's position")
    value = a_text("The value that its jobs share, as ClassAd")


class EnforcedBandwidthSchema(Written):
    """The meaning of a job's RequestBandwidth on its worker."""

    mode = a_text("cap: the most that it gets; guarantee: what it has for certain")
    default = maybe_float("Mb/s of a job that requests none, null for no limit")
    maximum = maybe_float("The most that counts of what is requested, Mb/s, null for any")
    ceiling = maybe_float("The most of a guaranteed job, guaranteed and borrowed, Mb/s, null for the link")


class TransferTermsSchema(Written):
    """The terms of what HTCondor moves for a job on its worker."""

    group = a_text("The group whose mark its packets have, empty for none")
    rate = maybe_float("The most in each direction, Mb/s of IP packets, null for no limit")
    group_rate = maybe_float("The most of all transfers of the group on the worker together, null for no limit")
    access_point_rate = maybe_float("The most of all transfers of the job's access point on the worker together")
    port = maybe_text("The WAN port by which they leave the site, null as all else")
    block = a_flag("Nothing passes")
    words = a_text("The terms in words")


class ScitagSchema(Written):
    """The mark of a job's flows."""

    experiment = a_text("The experiment: its number, or its name in the registry of SciTags")
    activity = a_text("The activity, likewise")


class DecisionSchema(Written):
    """The policy's decision for a job."""

    blocked = a_flag("No traffic at all")
    slice = fields.Nested(
        SliceSchema, required=True, allow_none=True, metadata=meta("Jobs it may exchange packets with")
    )
    wan = a_number("The position of the WAN rule that applies, 0 for none")
    inbound = a_flag("May be called")
    outbound = a_flag("May call")
    bandwidth = fields.Nested(
        EnforcedBandwidthSchema,
        required=True,
        allow_none=True,
        metadata=meta("The enforcement of its RequestBandwidth, null where there is none"),
    )
    transfers = fields.Nested(
        TransferTermsSchema,
        required=True,
        allow_none=True,
        metadata=meta("The terms of what HTCondor moves for it, null where no rule is about that"),
    )
    group = a_text("Its group of the policy")
    quarantine = a_text("The objection of the pool; the job then passes nothing")
    accounted = a_flag("Its use of the network is counted")
    scitag = fields.Nested(
        ScitagSchema, required=True, allow_none=True, metadata=meta("The mark of its flows, null where they have none")
    )
    because = Rows(BecauseSchema, "Reasons, in the order in which a packet meets them")


_USED = "Its network use, null where that is not counted"


class ListedJobSchema(JobSchema):
    """A job in a list."""

    isolated = a_flag("Nothing of it passes, by a rule of the policy or its quarantine")
    usage = fields.Nested(JobUsageSchema, required=True, allow_none=True, metadata=meta(_USED))


TransferStateSchema = schema_of(TransferState, "TransferState")


class JobDetailSchema(RegisteredSchema):
    """A job with the policy's decision, the switches' confirmations, its use and its ads."""

    ended = Time("Time when it ended", allow_none=True)
    decision = fields.Nested(DecisionSchema, required=True, metadata=meta("The policy's decision for it"))
    policy_version = a_number("Version of the policy that the decision is by: of a job that is over the one of then")
    job_ad = a_text("The job ad, in old syntax")
    machine_ad = a_text("The machine ad, in old syntax")
    transfers = fields.Nested(
        TransferStateSchema,
        required=True,
        allow_none=True,
        metadata=meta("The state of its transfers' terms while it lives, null where no rule is about them"),
    )
    usage = fields.Nested(JobUsageSchema, required=True, allow_none=True, metadata=meta(_USED))


class Page(Written):
    """The place at which a list goes on."""

    next = maybe_text("The next page's URL, null on the last")
    next_cursor = maybe_text("The cursor of the next page")


class JobPageSchema(Page):
    """A page of jobs, in the order of their registration."""

    jobs = Rows(ListedJobSchema, "The jobs")


PortSchema = schema_of(PortStatus, "PortSchema")
SwitchProblemSchema = schema_of(SwitchProblem, "SwitchProblemSchema")
SwitchSchema = schema_of(SwitchStatus, "SwitchSchema", without=("ports", "problems"), state=a_text(STATES))
SwitchDetailSchema = schema_of(SwitchStatus, "SwitchDetailSchema", state=a_text(STATES))


class SwitchListSchema(Written):
    """All switches that are declared, have been connected or have jobs."""

    switches = Rows(SwitchSchema, "The switches")


FlowSchema = schema_of(FlowStatus, "FlowSchema")
FlowTableSchema = schema_of(FlowTable, "FlowTableSchema")


class FlowPageSchema(Page):
    """A page of a switch's flows, desired and installed."""

    flows = Rows(FlowSchema, "The flows, in packet order")
    tables = Rows(FlowTableSchema, "The tables of the list, whichever was chosen")


PolicySchema = schema_of(PolicyVersion, "PolicySchema")


class PolicyTextSchema(Schema):
    """A policy as JSON."""

    text = a_text("The policy, YAML")


# Two types of one schema (``type: [object, string]``) would do, but generators for Go refuse them.
AD_SHAPES: Final = ({"type": "object", "additionalProperties": True}, {"type": "string"})


class BothAdsSchema(Schema):
    """Both ads of a run as JSON: each as text in either ClassAd syntax, or as an object of attributes."""

    job_ad = fields.Raw(required=True, metadata=meta("The job ad", oneOf=AD_SHAPES))
    machine_ad = fields.Raw(required=True, metadata=meta("The machine ad", oneOf=AD_SHAPES))


class ExitAdSchema(Schema):
    """The end of a job as JSON."""

    exit_ad = a_text("The exit ad")


class ForgerySchema(Schema):
    """A refused claim as JSON."""

    detail = a_text("The claim, and the fact")


class LimitSchema(Schema):
    """A limit that a job has met, as JSON."""

    detail = a_text("The limit, and what the job loses by it")


class PolicyCheckSchema(Written):
    """The mistakes of a policy."""

    valid = a_flag("No mistake was found")
    mistakes = Rows(MistakeSchema, "Every mistake, in file order")
    warnings = texts("Refusals by the policy, and promises that nothing keeps")


PastPolicySchema = schema_of(PastPolicy, "PastPolicySchema")


class PolicyHistorySchema(Page):
    """A page of the policy's versions, newest first."""

    versions = Rows(PastPolicySchema, "The versions, without their texts")


PolicyDifferenceSchema = schema_of(
    Comparison,
    "PolicyDifferenceSchema",
    old=fields.Nested(PastPolicySchema, required=True, metadata=meta("The version that is compared")),
    new=fields.Nested(PastPolicySchema, required=True, metadata=meta("The version that it is compared with")),
)
EffectSchema = schema_of(Effect, "EffectSchema")
JobChangeSchema = schema_of(JobChange, "JobChangeSchema")
SwitchPlanSchema = schema_of(SwitchPlan, "SwitchPlanSchema")
PlanSchema = schema_of(Plan, "PlanSchema")
GroupSchema = schema_of(GroupStatus, "GroupSchema")
AccessPointSchema = schema_of(AccessPointStatus, "AccessPointSchema")


DropSchema = schema_of(Drop, "DropSchema")
DropsByDownSchema = schema_of(DropsByDown, "DropsByDownSchema")


class DropListSchema(Written):
    """The packets that are dropped now."""

    drops = Rows(DropSchema, "The drops, the most first")
    jobs = a_number("Jobs whose packets are dropped now")
    groups = a_number("Groups of which cores drop packets now, of jobs that are not told apart")
    packets_per_second = a_float("Packets that are dropped now, of all of them")
    away = fields.Integer(
        required=True,
        allow_none=True,
        metadata=meta("Switches that are away, whose drops are not known; null with the scope self"),
    )
    uncounted = a_number("Live jobs whose drops the policy's `accounting` does not count; own ones with the scope self")
    unread = a_number(f"{UNREAD}; own ones with the scope self")
    cores_unread = fields.Integer(
        required=True, allow_none=True, metadata=meta(f"{CORES_UNREAD}; null with the scope self")
    )
    down = Rows(DropsByDownSchema, f"{DOWN}; own ones with the scope self")


class GroupListSchema(Written):
    """The accounting groups of the policy in force."""

    groups = Rows(GroupSchema, "The groups, in file order")
    access_points = Rows(AccessPointSchema, "The access points of transfer_capacity, in file order")
    unread = a_number(UNREAD)


StepSchema = schema_of(Step, "StepSchema")
ExplanationSchema = schema_of(Explanation, "ExplanationSchema")
AuditEntrySchema = schema_of(AuditEntry, "AuditEntrySchema")


class AuditPageSchema(Page):
    """A page of the audit trail, newest first."""

    entries = Rows(AuditEntrySchema, "The entries")


class NotedSchema(Written):
    """The line written to the audit trail."""

    subject = a_text("The job's id")
    action = a_text("The action")


class HealthSchema(Written):
    """The answer of a process that runs."""

    status = a_text("ok")


ReadinessSchema = schema_of(Readiness, "ReadinessSchema")
