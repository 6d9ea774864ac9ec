"""``/v1/instances``: the controllers on one database. Every one of them answers."""

from __future__ import annotations

from typing import Any, Final

from flask import Response, request

from lark_controller.accounting.shares.messages import LONGEST_ANSWER
from lark_controller.api.instances import Instance, Instances
from lark_controller.api.missed_switches import LONGEST_QUESTION
from lark_controller.rest.api import operation, resource
from lark_controller.rest.bodies import read
from lark_controller.rest.context import actor, current
from lark_controller.rest.forwarding.origin import HANDED_ON
from lark_controller.rest.forwarding.questions import COUNTERS, MEDIA, READER, SWITCHES, is_good
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.described import schema_of
from lark_controller.rest.tokens import Scope

blueprint = resource("instances", "The controllers on one database: one is active, the others stand by.")

InstanceSchema: Final = schema_of(Instance, "InstanceSchema")
InstancesSchema: Final = schema_of(Instances, "InstancesSchema")


@operation(blueprint, "GET", "/instances", name="list_instances", scopes=(Scope.READ,), answers={200: InstancesSchema})
def index() -> Any:
    """List the instances, the active one first, with the number of the term and the reason for the last takeover."""
    return current().controls.instances.all()


@operation(
    blueprint,
    "POST",
    "/instances/<instance>/drain",
    name="drain_instance",
    scopes=(Scope.OPERATE,),
    answers={200: InstancesSchema},
    problems=(404, 409),
)
def drain(instance: str) -> Any:
    """Have the active instance, by name or id, let go, so that one that stands by takes over."""
    return current().controls.instances.drain(instance, actor())


@operation(
    blueprint,
    "POST",
    "/instances/counters",
    name="exchange_counters",
    scopes=(),
    bodies={MEDIA: {"type": "string", "format": "binary", "description": "The answer to the last order"}},
    body_required=False,
    answers={200: None},
    texts={200: (MEDIA,)},
    problems=(400, 403, 413, 415, 503),
)
def counters() -> Response:
    """Take the counters that an instance which stands by has read, and order it to read more.

    For instances of this release alone: the request has a code by the key of the present term.
    """
    reader, body = _question(COUNTERS, LONGEST_ANSWER)
    if body is None:
        current().metrics.counters_read.labels("refused").inc()
        raise Problem(403, "Only an instance that stands by in the present term, of this release, reads counters.")
    try:
        order = current().controls.counters.exchange(reader, body)
    except ValueError as error:
        raise Problem(400, f"The body is no answer to an order: {error}.") from None
    return Response(order, content_type=MEDIA)


@operation(
    blueprint,
    "POST",
    "/instances/switches",
    name="exchange_switches",
    scopes=(),
    bodies={MEDIA: {"type": "string", "format": "binary", "description": "Datapath ids, 8 bytes each"}},
    body_required=False,
    answers={200: None},
    texts={200: (MEDIA,)},
    problems=(400, 403, 413, 415, 503),
)
def switches() -> Response:
    """Take the switches that an instance which stands by is connected to, and answer those that it is to hand on.

    For instances of this release alone: the request has a code by the key of the present term.
    """
    reader, body = _question(SWITCHES, LONGEST_QUESTION)
    if body is None:
        raise Problem(403, "Only an instance that stands by in the present term, of this release, hands switches on.")
    try:
        answer = current().controls.missed_switches.exchange(reader, body)
    except ValueError as error:
        raise Problem(400, f"The body is no list of switches: {error}.") from None
    return Response(answer, content_type=MEDIA)


def _question(path: str, most: int) -> tuple[str, bytes | None]:
    """The id of the instance that asks, and the body of its question; None instead of that of anybody else."""
    instance = request.environ.get(HANDED_ON) is True
    # Of strangers no body is read.
    body = read(most, (MEDIA,), empty=True)[0] if instance else b""
    reader, field = request.headers.get(READER, ""), request.headers.get("Authorization", "")
    good = instance and is_good(field, current().controls.instances.standing(), path, reader, body)
    return reader, body if good else None
