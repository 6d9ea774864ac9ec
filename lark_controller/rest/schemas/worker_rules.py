"""The JSON of workers' rules (:mod:`lark_common.worker_rules`)."""

from __future__ import annotations

from typing import Any, Final

from marshmallow import Schema, ValidationError, fields, validate

from lark_common.runs import NetworkType
from lark_common.transfers import MOST_BITS, MOST_NAME, MOST_SHARED
from lark_common.worker_rules import RULED, UNSLICED
from lark_controller.rest.schemas.members import Count, Many, a_flag, a_number, a_text, maybe_number, meta, texts
from lark_controller.rest.schemas.queries import Whole
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.written import Rows, Written

JOB_ID: Final = Whole(r"^[0-9a-f]{16}$", error="16 hexadecimal digits are accepted")
MAX_REASON: Final = 1024
MAX_UPLINKS: Final = 64
# 10 Tb/s: no link has more.
MAX_SPEED: Final = 10_000_000


class ShareSchema(Schema):
    """A queue's share of an uplink."""

    least = a_number("Whenever it has packets, bits a second")
    most = a_number("At most, bits a second")
    burst = a_number("At once, bits")


class ReservedShareSchema(Schema):
    """A flow of a job that has a share of its own."""

    key = a_text("Its key in the uplinks' shares")
    target = texts("Its destinations; empty: the WAN")


class UplinkSchema(Schema):
    """The traffic of a worker's jobs by one interface."""

    rate = a_number("Altogether, bits a second")
    rest = fields.Nested(ShareSchema, required=True, metadata=meta("The share of all others together"))
    shares = fields.Dict(
        keys=fields.String(),
        values=fields.Nested(ShareSchema),
        required=True,
        metadata=meta("By the job's id, and for a reserved flow a slash and the reservation's number behind it"),
    )
    parts = fields.Dict(
        keys=fields.String(),
        values=fields.Nested(ShareSchema),
        required=True,
        metadata=meta("Those of jobs that asked for nothing, by the job's id"),
    )


class JobRulesSchema(Schema):
    """The permissions of one job, as its worker enforces them."""

    id = a_text("The job's id", validate=JOB_ID)
    network_type = a_text("Kind of the job's network", validate=validate.OneOf([str(kind) for kind in NetworkType]))
    mac = a_text("MAC address inside the job; zeros where it is not known")
    addresses = texts("The addresses that it may send from")
    vlan = maybe_number("VLAN")
    dhcp = a_flag("It may ask a DHCP server")
    isolated = a_flag("Nothing passes")
    slice = a_number("Its key in slices; 0: the job networks are open to it")
    wan = a_number("Its key in exceptions; 0: its WAN traffic is not dropped")
    inbound = a_flag("May be called")
    outbound = a_flag("May call")
    dscp = maybe_number("DSCP of everything that it sends; null: as the job sets it")
    inward = fields.Nested(
        ShareSchema, required=True, allow_none=True, metadata=meta("Limits what is sent to it; null: nothing does")
    )
    reserved = Rows(ReservedShareSchema, "Flows that it has reserved")


def _prefixes(meaning: str) -> fields.List[Any]:
    return fields.List(fields.String, required=True, metadata=meta(meaning))


def _numbered(meaning: str) -> fields.Dict:
    return fields.Dict(keys=fields.String(), values=fields.List(fields.String), required=True, metadata=meta(meaning))


class RulesSchema(Schema):
    """The rules of one worker's jobs that have no port on a switch."""

    job_networks = _prefixes("Closed to jobs with a slice but for its prefixes and hosts")
    hosts = _prefixes("Addresses in the job networks that are no job's")
    local_networks = _prefixes("The addresses that are not the WAN")
    exceptions = _numbered("WAN rule -> the prefixes that it does not drop")
    slices = _numbered(f"Slice -> the prefixes of its jobs; {UNSLICED} -> those of jobs in none")
    jobs = Rows(JobRulesSchema, "The jobs, in order of registration")
    uplinks = fields.Dict(
        keys=fields.String(),
        values=fields.Nested(UplinkSchema),
        required=True,
        allow_none=True,
        metadata=meta("The worker's uplinks, by name; null: the queues that stand are to stay"),
    )


class HostSchema(Schema):
    """A worker's rules and its confirmed revision."""

    host = a_text("Machine")
    revision = a_text("Changes when the rules change")
    rules = fields.Nested(
        RulesSchema, required=True, allow_none=True, metadata=meta("The rules; null where the revision is known")
    )
    waiting = texts("Ids of the jobs whose rules are not confirmed")


class Speed(fields.Float):
    """A link's speed in Mb/s, and neither a text nor a truth that could be taken for one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) not in (int, float) or not 0 < value <= MAX_SPEED:
            raise ValidationError(f"a number over 0, at most {MAX_SPEED} Mb/s, or null is accepted")
        return float(value)


# As the kernel has them (IFNAMSIZ), so that a log and an audit trail may name them.
UPLINK: Final = Whole(r"^[^\s/\x00-\x1f\x7f]{1,15}$", error="a name of an interface is accepted")


class WayOutSchema(Schema):
    """The interfaces by which jobs of one network type leave a worker: of one Linux bridge, or behind NAT."""

    network_type = a_text("The network type", validate=validate.OneOf(sorted(RULED)))
    uplinks = Many(
        fields.String(validate=UPLINK),
        required=True,
        validate=validate.Length(max=MAX_UPLINKS),
        metadata=meta("Their names"),
    )


class ConfirmationSchema(Schema):
    """The worker's answer to a revision of its rules."""

    revision = a_text("The revision that is in place")
    refused = fields.Dict(
        keys=fields.String(),
        values=fields.String(validate=validate.Length(max=MAX_REASON)),
        load_default=dict,
        metadata=meta("Jobs that the worker cannot enforce the policy for: id, reason"),
    )
    late = Many(
        fields.String,
        load_default=list,
        metadata=meta("Ids of jobs whose networks are still to be made; they wait on"),
    )
    uplinks = fields.Dict(
        keys=fields.String(validate=UPLINK),
        values=Speed(allow_none=True),
        load_default=dict,
        validate=validate.Length(max=MAX_UPLINKS),
        metadata=meta("The worker's interfaces that lead away from it: name, speed in Mb/s (null: not known)"),
    )
    ways = Many(
        fields.Nested(WayOutSchema),
        load_default=list,
        validate=validate.Length(max=MAX_UPLINKS),
        metadata=meta("Which of them jobs leave by; none: each by any"),
    )


class LeasesSchema(Schema):
    """The jobs that run on a worker."""

    jobs = Many(fields.String, required=True, metadata=meta("Ids of the jobs that run"))


class UnsettledSchema(Written):
    """A job that is not enforced."""

    job = a_text("The job's id")
    state = a_text("Its state")
    reason = a_text("The reason")


class RenewedSchema(Written):
    """The renewed leases of a worker's jobs."""

    lease_until = Time("Time when they run out")
    missing = texts("Ids of the jobs that do not live on this worker")
    unsettled = Rows(UnsettledSchema, "Those of the other jobs that are not enforced")


class JobWanSchema(Written):
    """The WAN's part of a job's use."""

    job = a_text("The job's id")
    wan_bytes_in = a_number("Bytes that it has received from the WAN")
    wan_bytes_out = a_number("Bytes that it has sent there")


class WorkerUseSchema(Written):
    """The WAN's part of the use of a worker's jobs."""

    jobs = Rows(JobWanSchema, "The jobs that are accounted")


class WholeOrNull(fields.Integer):
    """A whole number in bounds or null, and neither a text nor a truth that could be taken for one."""

    def __init__(self, meaning: str, least: int, most: int) -> None:
        super().__init__(required=True, allow_none=True, metadata=meta(meaning, minimum=least, maximum=most))
        self._bounds = least, most

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if type(value) is not int or not self._bounds[0] <= value <= self._bounds[1]:
            raise ValidationError(f"null or a whole number from {self._bounds[0]} to {self._bounds[1]} is accepted")
        return value


class SharedRateSchema(Schema):
    """A limit that all transfers of a worker with the same name and rate share."""

    name = a_text("Whose it is", validate=validate.Length(max=MOST_NAME))
    rate = fields.Integer(
        required=True,
        strict=True,
        validate=validate.Range(1, MOST_BITS),
        metadata=meta("The most in each direction, bits a second of IP packets"),
    )


class TreatmentSchema(Schema):
    """The treatment of what HTCondor moves for one job on its worker."""

    rate = WholeOrNull("The most in each direction, bits a second of IP packets, null for no limit", 1, MOST_BITS)
    dscp = WholeOrNull("DSCP of what leaves the worker, null where the packets keep their own", 0, 63)
    block = a_flag("Nothing passes")
    shared = Many(
        fields.Nested(SharedRateSchema),
        load_default=list,
        validate=validate.Length(max=MOST_SHARED),
        metadata=meta("Limits that hold beside it, each together with other jobs of the worker"),
    )


class TransferSchema(Schema):
    """The bytes that HTCondor has moved for one job outside of the job's network."""

    job = a_text("The job's id", validate=JOB_ID)
    bytes_in = Count("Bytes of payload to the worker since the job's start")
    bytes_out = Count("Bytes of payload from the worker")
    wan_bytes_in = Count("The part of bytes_in that came from the WAN")
    wan_bytes_out = Count("The part of bytes_out that went to the WAN")
    millis = Count("Time with a transfer, milliseconds")
    within = Count("All that is new since the last post came in so many milliseconds", required=False)
    interval = Count("While there is a transfer, the next post follows in so many milliseconds", required=False)
    treatment = fields.Nested(
        TreatmentSchema,
        load_default=None,
        allow_none=True,
        metadata=meta("The treatment that the worker has in place, null for none"),
    )
    trouble = fields.String(
        load_default="", validate=validate.Length(max=MAX_REASON), metadata=meta("Why it has none in place")
    )


class TransfersSchema(Schema):
    """The bytes that HTCondor has moved for the jobs of a worker."""

    jobs = Many(fields.Nested(TransferSchema), required=True, metadata=meta("The jobs"))


class TransfersAnswerSchema(Schema):
    """The answer to a post of transfers."""

    missing = texts("Ids of the jobs that have no open account on this worker")
    local = _prefixes("The addresses that are not the WAN")
    treatments = fields.Dict(
        keys=fields.String(),
        values=fields.Nested(TreatmentSchema),
        required=True,
        allow_none=True,
        metadata=meta("Treatments of the posted jobs by id; null where the policy has no rule of transfers"),
    )
    scitags = a_text("The revision of jobs' marks; empty: flows are reported to nobody")


class CollectorSchema(Schema):
    """A collector of fireflies."""

    host = a_text("Name or address")
    port = a_number("UDP port")


class MarkSchema(Schema):
    """The mark of a job's flows."""

    job = a_text("The job's id")
    experiment = maybe_number("The experiment's number in the registry of SciTags; null: no mark")
    activity = maybe_number("The activity's")


class MarksSchema(Schema):
    """The marks of jobs' flows, and the receivers of reports."""

    revision = a_text("Changes with policy and registry; empty: flows are reported to nobody")
    collectors = Rows(CollectorSchema, "Told of every marked flow")
    destinations = a_flag("The other end of a flow gets reports, too")
    silent = _prefixes("Flows to these are reported to nobody")
    ongoing = a_number("Seconds between two messages of a flow that goes on; 0: none")
    labels = a_flag("IPv6 packets of these flows carry the mark in the flow label")
    own = a_flag("All this for what jobs send themselves, too")
    jobs = Rows(MarkSchema, "The jobs that live there")


class DeliveredQueueSchema(Schema):
    """The delivery of one queue of a job on its worker."""

    job = a_text("The job's id", validate=JOB_ID)
    queue = a_text("The uplink, and behind a slash the reservation of a reserved flow", validate=validate.Length(1, 64))
    promised = Count("Its guarantee, bits a second")
    sent = Count("Bytes that have left it")
    dropped = Count("Packets that it has dropped")
    waited = Count("Time with packets waiting in it, milliseconds")


class DeliveredSchema(Schema):
    """The delivery of the queues of a worker."""

    at = Count("Time of reading, milliseconds of a clock that only grows")
    queues = Many(fields.Nested(DeliveredQueueSchema), required=True, metadata=meta("The queues"))


class DeliveredAnswerSchema(Schema):
    """The answer to a post of deliveries."""

    missed = a_number("Number of guarantees missed since the last post")
