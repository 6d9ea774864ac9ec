"""``/v1/overview`` and ``/v1/token``: the data that the operator's pages poll, in one small answer each."""

from __future__ import annotations

import heapq
import time
from typing import Final, cast

from flask import g
from marshmallow import fields

from lark_controller.api.drops import CORES_UNREAD, DOWN, UNREAD
from lark_controller.api.jobs import JobCounts
from lark_controller.api.policy import PolicyVersion
from lark_controller.api.switches import IN_SYNC, SwitchStatus
from lark_controller.rest.api import operation, resource
from lark_controller.rest.context import current
from lark_controller.rest.schemas.answers import DropsByDownSchema, SwitchSchema
from lark_controller.rest.schemas.described import schema_of
from lark_controller.rest.schemas.members import a_flag, a_float, a_number, a_text, maybe_text, meta, texts
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.written import Rows, Written
from lark_controller.rest.tokens import Scope, Token

blueprint = resource("overview", "The whole pool in a few numbers, and what asks for attention.")

# Switches named in an overview: of a thousand the first ones are enough.
NAMED: Final = 20
# A switch needs attention when this part of its rule limit is used.
NEARLY_FULL: Final = 0.9


class DropCountsSchema(Written):
    """The packets that are dropped now."""

    jobs = a_number("Jobs whose packets are dropped")
    groups = a_number("Groups of which cores drop packets, of jobs that are not told apart")
    packets_per_second = a_float("Packets a second")
    uncounted = a_number("Live jobs whose drops the policy's `accounting` does not count")
    unread = a_number(UNREAD)
    cores_unread = a_number(CORES_UNREAD)
    down = Rows(DropsByDownSchema, DOWN)


class SwitchCountsSchema(Written):
    """The number of switches."""

    known = a_number("Declared, or connected once")
    connected = a_number("Connected now")
    in_sync = a_number("In sync")
    desired = a_number("Flows wanted on all of them")
    installed = a_number("Flows on all of them")


JobCountsSchema = schema_of(JobCounts, "JobCountsSchema")
PolicyHeadSchema = schema_of(PolicyVersion, "PolicyHeadSchema", without=("text",))


class OverviewSchema(Written):
    """The pool, summed up."""

    at = Time("Time of these values")
    ready = a_flag("The controller can do its work")
    reasons = texts("The faults where it cannot")
    jobs = fields.Nested(JobCountsSchema, required=True, metadata=meta("Live jobs by state"))
    drops = fields.Nested(DropCountsSchema, required=True, metadata=meta("Packets that are dropped now"))
    switches = fields.Nested(SwitchCountsSchema, required=True, metadata=meta("Switches"))
    shown = Rows(
        SwitchSchema, f"{NAMED} switches: those that ask for attention first, then cores, then by rules in use and jobs"
    )
    policy = fields.Nested(PolicyHeadSchema, required=True, metadata=meta("The policy in force"))


class TokenSchema(Written):
    """The token that the request carries."""

    name = a_text("Its name")
    scopes = texts("Its scopes: hook, read, operate, self, gateway")
    expires = Time("Time when it expires", allow_none=True)
    hosts = fields.List(
        fields.String(),
        required=True,
        allow_none=True,
        metadata=meta("The hosts whose jobs a hook's token is good for, names or patterns; null: every host"),
    )
    user = maybe_text("The user whose jobs a token with the scope self shows")


@operation(blueprint, "GET", "/overview", name="show_overview", scopes=(Scope.READ,), answers={200: OverviewSchema})
def show() -> dict[str, object]:
    """Sum up the whole pool, with the switches that need attention."""
    controls = current().controls
    switches = controls.switches.all()
    readiness = controls.health.ready()
    return {
        "at": time.time(),
        "ready": readiness.ready,
        "reasons": readiness.reasons,
        "jobs": controls.jobs.counts(),
        "drops": controls.drops.now(0),
        "switches": {
            "known": len(switches),
            "connected": sum(switch.connected for switch in switches),
            "in_sync": sum(switch.in_sync for switch in switches),
            "desired": sum(switch.desired for switch in switches),
            "installed": sum(switch.installed for switch in switches),
        },
        "shown": heapq.nsmallest(NAMED, switches, key=_rank),
        "policy": controls.policy.version,
    }


@operation(
    blueprint,
    "GET",
    "/token",
    name="show_token",
    scopes=(Scope.HOOK, Scope.READ, Scope.SELF, Scope.GATEWAY),
    answers={200: TokenSchema},
)
def token() -> dict[str, object]:
    """Show what the token of this request allows."""
    held = cast("Token", g.lark_token)
    return {
        "name": held.name,
        "scopes": sorted(map(str, held.scopes)),
        "expires": held.expires,
        "hosts": held.hosts,
        "user": held.user,
    }


def _rank(switch: SwitchStatus) -> tuple[bool, bool, int, int, str]:
    return not needs_attention(switch), switch.role != "core", -switch.desired, -switch.jobs, switch.name


def needs_attention(switch: SwitchStatus) -> bool:
    """True if a switch needs an operator's attention."""
    full = switch.max_rules > 0 and switch.desired >= NEARLY_FULL * switch.max_rules
    return switch.state != IN_SYNC or full or switch.drift > 0
