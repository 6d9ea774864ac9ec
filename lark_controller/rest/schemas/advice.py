"""The JSON of advice on a job's RequestBandwidth."""

from __future__ import annotations

from marshmallow import fields, validate

from lark_controller.policies.model import BandwidthMode
from lark_controller.qos.advice import Reason, Verdict
from lark_controller.qos.pair_advice import PairReason
from lark_controller.rest.schemas.members import (
    a_flag,
    a_float,
    a_number,
    a_text,
    maybe_float,
    maybe_number,
    maybe_text,
    meta,
)
from lark_controller.rest.schemas.written import Rows, Written


class BothWaysSchema(Written):
    """Rates in both directions."""

    inward = a_float("To it, Mb/s")
    outward = a_float("From it, Mb/s")


class PairsSummarySchema(Written):
    """Advice for the pairs of a job in short."""

    sentence = a_text("All of it in a sentence of at most 240 characters")
    advised = maybe_number("A rate that is enough for each pair, whole Mb/s, null where there is no advice")


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
    pairs = fields.Nested(
        PairsSummarySchema,
        required=True,
        allow_none=True,
        metadata=meta(
            "Where it sends with bandwidth reserved for that, in short; of node 0 of a parallel job with the other "
            "nodes' pairs. Null where there is no pair, and of other nodes"
        ),
    )


class PairSchema(Written):
    """One pair: what was reserved from a job to another end, against what was used and lost."""

    name = a_text("Both ends in words")
    job = a_text("The id of the job that sends")
    node = maybe_number("Its number among the nodes of a parallel job, null where it is none")
    peer = maybe_text("The id of the job at the other end, null where that is no job, or another user's")
    peer_node = maybe_number("Its number among the nodes of the same parallel job, null where it is none of them")
    destination = a_text("The other end in the topology")
    verdict = a_text("The comparison", validate=validate.OneOf([str(each) for each in Verdict]))
    reason = a_text("Reason why nothing can be compared", validate=validate.OneOf([str(each) for each in PairReason]))
    sentence = a_text("All of it in a sentence")
    asked = a_float("The highest rate that was reserved, Mb/s")
    asked_least = a_float("The lowest")
    steady = a_flag("The rate is the most as well; else free bandwidth may be used on top")
    advised = maybe_number("The rate to ask for, whole Mb/s, null where there is no advice")
    bounded_by = a_text("The reason why it is not more, empty where there is none")
    seconds = a_float("Seconds for which its queue was counted")
    mean = a_float("Its mean rate over that time, Mb/s")
    highest = a_float("The highest rate that it has kept up, Mb/s")
    highest_seconds = a_float("Seconds that the highest rate is the mean of")
    throttled = a_float("Share of the time at the highest reserved rate, 0 to 1, during which packets waited")
    dropped = a_number("Packets that its queue dropped")
    so_far = a_flag("The job is not over, or its last counters are not in")


class PairsSchema(Written):
    """Advice for each pair of a job, or of its application."""

    job = a_text("The job's id")
    jobs = a_number("Number of jobs whose pairs these are")
    sentence = a_text("All of it in a sentence of at most 240 characters")
    advised = maybe_number("A rate that is enough for each pair, whole Mb/s, null where there is no advice")
    left_out = a_number("Number of reservations that are in no pair, since so many are not kept")
    pairs = Rows(PairSchema, "The pairs, by node")
