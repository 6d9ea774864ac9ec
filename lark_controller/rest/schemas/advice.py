"""The JSON of advice on a job's RequestBandwidth."""

from __future__ import annotations

from marshmallow import fields, validate

from lark_controller.policies.model import BandwidthMode
from lark_controller.qos.advice import Reason, Verdict
from lark_controller.rest.schemas.members import a_flag, a_float, a_number, a_text, maybe_float, maybe_number, meta
from lark_controller.rest.schemas.written import Written


class BothWaysSchema(Written):
    """Rates in both directions."""

    inward = a_float("To it, Mb/s")
    outward = a_float("From it, Mb/s")


class AdviceSchema(Written):
    """A job's request against its use and losses, and the rate to ask for."""

    job = a_text("The job's id")
    verdict = a_text("The comparison", validate=validate.OneOf([str(each) for each in Verdict]))
    reason = a_text("Reason why nothing can be compared", validate=validate.OneOf([str(each) for each in Reason]))
    sentence = a_text("All of it in a sentence")
    asked = maybe_float("RequestBandwidth, Mb/s, null where it asked for nothing")
    mode = fields.String(
        required=True,
        allow_none=True,
        validate=validate.OneOf([str(each) for each in (BandwidthMode.CAP, BandwidthMode.GUARANTEE)]),
        metadata=meta("The meaning of its request, null where no rule of the policy enforces it"),
    )
    counts = maybe_float("The part of its request that counts, by default and maximum of the policy, Mb/s")
    advised = maybe_number("The RequestBandwidth to ask for, Mb/s, null where there is no advice")
    bounded_by = a_text("The reason why it is not more, empty where there is none")
    seconds = a_float("Seconds for which it was counted")
    mean = fields.Nested(BothWaysSchema, required=True, metadata=meta("Its mean rates over that time"))
    highest = fields.Nested(BothWaysSchema, required=True, metadata=meta("The highest rates that it has kept up"))
    throttled = a_float("Share of that time, 0 to 1, during which its queues held packets back")
    dropped_in = a_number("Packets for it that its own queue or port dropped")
    dropped_out = a_number("Packets from it that its own queues or port dropped")
    so_far = a_flag("It is not over, or its last counters are not in")
    wan_bytes_in = maybe_number("Bytes that it has received from the WAN, null where they are not counted")
    wan_bytes_out = maybe_number("Bytes that it has sent there, null where they are not counted")
