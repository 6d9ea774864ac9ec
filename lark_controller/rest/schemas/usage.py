"""The JSON of usage: what was used, and the rate of it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

from marshmallow import Schema, ValidationError, fields

from lark_controller.accounting.usage import JobUsage, Peak, Rate, Usage
from lark_controller.api.drops import UNREAD
from lark_controller.api.usage import UsageRow
from lark_controller.rest.schemas.members import (
    Count,
    a_flag,
    a_float,
    a_number,
    a_text,
    maybe_flag,
    maybe_number,
    maybe_text,
    meta,
)
from lark_controller.rest.schemas.times import Time, iso
from lark_controller.rest.schemas.written import Rows, Written

_COUNTS: Final = {
    "bytes_in": "Bytes to it, L2 frames",
    "bytes_out": "Bytes from it, L2 frames",
    "packets_in": "Packets to it",
    "packets_out": "Packets from it, dropped ones too",
    "wan_bytes_in": "The part of bytes_in that came from the WAN",
    "wan_bytes_out": "The part of bytes_out that went to the WAN",
    "wan_packets_in": "The part of packets_in that came from the WAN",
    "wan_packets_out": "The part of packets_out that went to the WAN",
    "policy_drops_in": "Packets for it that the policy dropped",
    "policy_drops_out": "Packets from it that the policy dropped",
    "rate_drops_in": "Packets for it that its own queue or port dropped",
    "rate_drops_out": "Packets from it that its own queues or port dropped",
    "transfer_bytes_in": "Bytes that HTCondor moved to the worker for it, payload; no part of bytes_in",
    "transfer_bytes_out": "Bytes that HTCondor moved from the worker for it, payload; no part of bytes_out",
    "transfer_wan_bytes_in": "The part of transfer_bytes_in that came from the WAN",
    "transfer_wan_bytes_out": "The part of transfer_bytes_out that went to the WAN",
}


_counted = attrgetter(*_COUNTS)
_sums: Final = Written.from_dict({name: a_number(meaning) for name, meaning in _COUNTS.items()}, name="Sums")
# A worker's counts: what its interfaces count is always there, the rest where somebody counts it.
_counters: Final = Schema.from_dict(
    {
        name: Count(meaning, required=name in ("bytes_in", "bytes_out", "packets_in", "packets_out"))
        for name, meaning in _COUNTS.items()
        if not name.startswith("transfer_")
    },
    name="Counters",
)


def _megabits(meaning: str) -> fields.Float:
    return a_float(f"{meaning}, Mb/s")


class _MegabitsSchema(Written):
    def members(self, value: Rate | Peak) -> dict[str, Any]:
        """The rates in Mb/s."""
        return _in_megabits(value)


def _in_megabits(rates: Rate | Peak) -> dict[str, float]:
    return {name: rate / 1e6 for name, rate in zip(rates._fields, rates, strict=True)}


def counts(usage: Usage) -> dict[str, int | float]:
    """The sums as JSON has them."""
    counts: dict[str, int | float] = dict(zip(_COUNTS, _counted(usage), strict=True))
    counts["throttled_seconds"] = usage.throttled / 1000
    counts["transfer_seconds"] = usage.transfer_millis / 1000
    return counts


class UsageSchema(_sums):  # type: ignore[valid-type, misc]  # its members are those of a table
    """The amounts of use."""

    throttled_seconds = a_float("Time during which its queues held packets back")
    transfer_seconds = a_float("Time in which HTCondor moved files for it")

    def members(self, value: Any) -> dict[str, Any]:
        """The sums."""
        return counts(value)


class RateSchema(_MegabitsSchema):
    """A rate, between the last two readings of the counters."""

    inward = _megabits("To it")
    outward = _megabits("From it")
    wan_inward = _megabits("To it from the WAN")
    wan_outward = _megabits("From it to the WAN")
    transfer_inward = _megabits("Moved to the worker for it by HTCondor; no part of inward")
    transfer_outward = _megabits("Moved from the worker for it by HTCondor; no part of outward")


class PeakSchema(_MegabitsSchema):
    """The highest rates that a job has kept up for at least five seconds."""

    inward = _megabits("To it")
    outward = _megabits("From it")


class JobUsageSchema(UsageSchema):
    """A job's use of the network, and its rate now."""

    rate = fields.Nested(RateSchema, required=True, metadata=meta("Its present rate"))
    peak = fields.Nested(PeakSchema, required=True, metadata=meta("The highest rates that it has kept up"))
    at = Time("Time of the last reading of its counters, null where there was none yet", allow_none=True)
    final = a_flag("It is over, and its last counters are in")
    unread = a_flag("Its rate is not known now, as not read twice since a start or takeover, or not read now")

    def members(self, value: JobUsage) -> dict[str, Any]:
        """The sums, with the rates and their time."""
        at = iso(value.at) if value.at else None
        rates = {"rate": _in_megabits(value.rate), "peak": _in_megabits(value.peak)}
        return {**counts(value.usage), **rates, "at": at, "final": value.final, "unread": value.unread}


class RecentSchema(Written):
    """A job's rates before a reading of its counters."""

    at = Time("Time of the reading")
    rate = fields.Nested(RateSchema, required=True, metadata=meta("The rates since the reading before"))


class RecentListSchema(Written):
    """A live job's last rates."""

    rates = Rows(RecentSchema, "The rates, the oldest first")


class FlowingSchema(Written):
    """The rates of live jobs now."""

    name = a_text("The name of group, user, host or access point, or the job's id")
    group = maybe_text("AcctGroup (by group, user, job)")
    user = maybe_text("User (by user, job)")
    host = maybe_text("Machine (by host, job)")
    global_job_id = maybe_text("GlobalJobId (by job)")
    job_name = maybe_text("CLUSTER.PROC with the access point, as the job is found by it (by job)")
    jobs = a_number("Jobs that send or receive now")
    rate = fields.Nested(RateSchema, required=True, metadata=meta("Their rates added up"))


class FlowingListSchema(Written):
    """The rates of live jobs now, the most first."""

    rates = Rows(FlowingSchema, "The rates")
    away = a_number("Switches that are away, at which rates are not known")
    uncounted = a_number("Live jobs whose rates the policy's `accounting` does not count")
    unread = a_number(UNREAD)


class UsageRowSchema(UsageSchema):
    """One subject's use in one stretch of time."""

    start = Time("Beginning of the bucket, or of the job")
    end = Time("End of the bucket; by job the job's end, or the last reading of one that lives")
    job = maybe_text("The job's id (by job)")
    owner = maybe_text("Owner (by job)")
    user = maybe_text("User (by user, job)")
    group = maybe_text("AcctGroup (by group, user, job)")
    host = maybe_text("Machine (by host, job)")
    final = maybe_flag("The job is over (by job)")

    def members(self, value: UsageRow) -> dict[str, Any]:
        """The sums, after whose they are."""
        named = {name: getattr(value, name) for name in ("job", "owner", "user", "group", "host", "final")}
        return {"start": iso(value.start), "end": iso(value.end), **named, **counts(value.usage)}


class UsagePageSchema(Written):
    """A page of the history of use."""

    start = Time("Beginning of the stretch that is answered: whole buckets")
    end = Time("Its end")
    bucket_seconds = maybe_number("Width of the buckets that were added up, null by job")
    counted = Time("All use until then is in the rows; of later use there may be more to come")
    known_since = Time("Beginning of the installation: nothing was counted before, also in a bucket in which it lies")
    rows = Rows(UsageRowSchema, "The rows")
    next = maybe_text("The next page's URL, null on the last")
    next_cursor = maybe_text("The cursor of the next page")


class _Flag(fields.Boolean):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        if type(value) is not bool:
            raise ValidationError("true or false is accepted")
        return value


class CountersSchema(_counters):  # type: ignore[valid-type, misc]  # the same
    """A worker's counts of a job since the job's start."""

    queue_drops_in = Count("Packets for it that its queue on the worker dropped", required=False)
    queue_drops_out = Count("Packets from it that its queues on the worker dropped", required=False)
    waited_in = Count("Time with packets waiting in the queue towards it, milliseconds", required=False)
    waited_out = Count("Time with packets waiting in its queues at the uplinks, milliseconds", required=False)
    new_within = Count("All that is new since the last post came in so many milliseconds", required=False)
    interval = Count("While the counts change, the next post follows in so many milliseconds", required=False)
    final = _Flag(load_default=False, metadata=meta("Nothing will be counted after this"))


class CountedSchema(Schema):
    """The result of a post of counters."""

    counted = a_flag("False where the job is not accounted, or is over")
