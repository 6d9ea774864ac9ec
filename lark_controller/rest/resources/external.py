"""``/v1/external-addresses``: addresses at which jobs are reached from outside of the site."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Final

from marshmallow import Schema, fields, validate

from lark_common.errors import AmbiguousError, NotFoundError
from lark_common.turns import by_portions
from lark_controller.api.external import ExternalState, ExternalWish, GatewayWord
from lark_controller.jobs import external_names
from lark_controller.jobs.external import ACCEPTED, MOST_OPENINGS, Association, Opening, openings
from lark_controller.policies.external import FAMILIES
from lark_controller.qos.reservation import Reservation
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import is_bound, require_host_of
from lark_controller.rest.bodies import fitting, next_url, read_value
from lark_controller.rest.context import actor, current
from lark_controller.rest.job_words import job_among, named_job
from lark_controller.rest.own_jobs import is_own, own_user, shown_actor
from lark_controller.rest.problems import Problem
from lark_controller.rest.resources.jobs import check_wait, confirm
from lark_controller.rest.schemas.answers import Page
from lark_controller.rest.schemas.members import a_flag, a_number, a_text, maybe_text, meta, texts
from lark_controller.rest.schemas.queries import ChangeQuery, ExternalQuery, WaitQuery
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.written import Rows, Written
from lark_controller.rest.tokens import Scope

blueprint = resource("external-addresses", "Addresses at which jobs are reached from outside of the site.")

# Bytes of a body, and letters of a reason.
MAX_BODY: Final = 4096
MAX_REASON: Final = 300
# Of one gateway: bytes of its word, networks of its pools, addresses that it lacks, and seconds to its next word.
MAX_WORD: Final = 1 << 16
MOST_NETWORKS: Final = 64
MOST_LACKING: Final = 2048
MAX_WORD_SECONDS: Final = 7200.0
MAX_SECONDS: Final = 100 * 365.25 * 86400
_SECONDS: Final = validate.Range(1, MAX_SECONDS, error="{min} to {max} seconds are accepted")


class ExternalWishSchema(Schema):
    """A request for an external address."""

    job = fields.String(
        required=True, validate=validate.Length(1, 255), metadata=meta("The job: its id, or another word for it")
    )
    open = fields.List(
        fields.String(validate=validate.Length(1, 32)),
        load_default=list,
        validate=validate.Length(max=MOST_OPENINGS),
        metadata=meta(f"What shall be open, empty for all that the policy opens; each {ACCEPTED}"),
    )
    seconds = fields.Float(
        load_default=None,
        allow_none=True,
        validate=_SECONDS,
        metadata=meta("Seconds; without it as long as the policy lets it, and never longer than the job lives"),
    )
    family = fields.String(
        load_default=None,
        allow_none=True,
        validate=validate.OneOf(tuple(FAMILIES)),
        metadata=meta("ipv4, or ipv6, which opens the job's own address; without it IPv4 where the policy gives that"),
    )
    name = fields.String(
        load_default="",
        validate=validate.Length(max=64),
        metadata=meta(f"The label of its name in the DNS, empty for none: {external_names.ACCEPTED}"),
    )
    reservation = fields.String(
        load_default="",
        validate=validate.Length(max=16),
        metadata=meta("The id of a reserved flow of the job, with which the address ends; empty for none"),
    )


class ExternalAddressSchema(Written):
    """An external address of a job."""

    id = a_text("The id of this association, 16 hexadecimal digits")
    address = a_text("The external address")
    inside = maybe_text("The job's own address behind it, null while it has none, or the association is over")
    pool = a_text("Its pool; `own` where it is the job's own address")
    job = a_text("The id of the job whose it is")
    job_name = maybe_text("That job's CLUSTER.PROC")
    owner = a_text("That job's owner")
    group = a_text("That job's accounting group")
    open = texts("The protocols and ports that are open")
    state = fields.String(
        required=True,
        validate=validate.OneOf([str(each) for each in ExternalState]),
        metadata=meta(
            "Pending until the job's switches have confirmed and while its WAN port is down, open, closed where a "
            "switch lacks it, or over"
        ),
    )
    reason = a_text("The reason why it is not open, empty where it is")
    created = Time("Time when it was given")
    until = Time(
        "Time when it ends, also with its reservation; null where nothing does before its job", allow_none=True
    )
    reservation = maybe_text("The id of the reserved flow with which it ends, null where there is none, or it is over")
    released = Time("Time when it has ended, null where it has not", allow_none=True)
    free = Time("Time from which another job may get the address, null where it has not ended", allow_none=True)
    why = a_text("The reason for its end")
    actor = a_text("Name of the token that asked for it")
    name = maybe_text("Its name in the DNS")
    name_state = fields.String(
        required=True,
        validate=validate.OneOf([str(each) for each in external_names.NameState]),
        metadata=meta("How far that name is: to be added to its zone, in it, to be removed from it, or removed"),
    )
    name_reason = a_text("The reason why the name waits")


class ExternalPoolSchema(Written):
    """A pool of external addresses."""

    name = a_text("Its name in the policy")
    total = a_number("All of its addresses")
    used = a_number("Those of jobs")
    quarantined = a_number("Those that rest after a job")
    free = a_number("Those that jobs may get now")


class ExternalPoolListSchema(Written):
    """Pools of external addresses."""

    pools = Rows(ExternalPoolSchema, "The pools of the policy")


class ExternalListSchema(Page):
    """A page of external addresses of live jobs, and the pools."""

    addresses = Rows(ExternalAddressSchema, "The addresses, the oldest first")
    pools = Rows(ExternalPoolSchema, "The pools of the policy, on the first page")


class TranslationSchema(Written):
    """The translation of an external address."""

    address = a_text("The external IPv4 address")
    inside = a_text("The job's own address behind it")
    open = texts("The protocols and ports that are open")


class TranslationsSchema(Written):
    """Changes of translations."""

    revision = a_text("The revision that the reader has with this answer")
    whole = a_flag("Everything follows: what the reader had before is over")
    more = a_flag("There is more, to be asked for with this revision")
    translations = Rows(TranslationSchema, "Those that are new or others, in that order")
    gone = texts("External addresses that lead nowhere any more")


class GatewayWordSchema(Schema):
    """A gateway's word on what it translates."""

    revision = fields.String(
        required=True,
        validate=validate.Length(max=64),
        metadata=meta("The revision of translations that its kernel has, empty for none"),
    )
    pools = fields.List(
        fields.String(validate=validate.Length(1, 32)),
        required=True,
        validate=validate.Length(max=MOST_NETWORKS),
        metadata=meta("The IPv4 networks of its external addresses"),
    )
    seconds = fields.Float(
        required=True,
        validate=validate.Range(0, MAX_WORD_SECONDS, error="{min} to {max} seconds are accepted"),
        metadata=meta("Seconds in which it confirms again; later it is away"),
    )
    lacks = fields.List(
        fields.String(validate=validate.Length(1, 15)),
        load_default=list,
        validate=validate.Length(max=MOST_LACKING),
        metadata=meta("The external addresses that it does not translate all the same"),
    )


@operation(
    blueprint,
    "POST",
    "/external-addresses",
    name="associate_external_address",
    scopes=(Scope.HOOK, Scope.OPERATE, Scope.SELF),
    query=WaitQuery,
    bodies={"application/json": ExternalWishSchema},
    answers={201: ExternalAddressSchema, 200: ExternalAddressSchema},
    problems=(400, 404, 409, 413, 415, 422),
)
def associate(query: dict[str, Any]) -> tuple[dict[str, object], int, dict[str, str]]:
    """Give a live job an external address.

    A job that has one keeps it, and the answer is 200. ``wait`` waits until the switches have it.
    """
    check_wait(query)
    wish = _wish()
    job_id = wish.job
    given = current().controls.external.associate(wish, actor())
    if query["wait"]:
        # As with reservations: those who ask must leave places to the hooks of jobs that start.
        with current().reserves.place() as free:
            confirm(job_id, query["wait"] if free else 0.0)
    place = f"/v1/external-addresses/{given.association.id}"
    return _shown([given.association])[0], 201 if given.created else 200, {"Location": place}


@operation(
    blueprint,
    "GET",
    "/external-addresses",
    name="list_external_addresses",
    scopes=(Scope.READ, Scope.OPERATE, Scope.SELF),
    query=ExternalQuery,
    answers={200: ExternalListSchema},
    problems=(404, 409, 422),
)
def index(query: dict[str, Any]) -> dict[str, object]:
    """List the external addresses of live jobs, and the state of each pool."""
    controls, cursor = current().controls.external, query.get("cursor")
    page = controls.page(job_among(query), own_user(), cursor, query["limit"])
    pools = () if cursor is not None else controls.pools()
    return {
        "addresses": _shown(page.associations),
        "pools": pools,
        "next": next_url(page.next_cursor),
        "next_cursor": page.next_cursor,
    }


@operation(
    blueprint,
    "GET",
    "/external-pools",
    name="list_external_pools",
    scopes=(Scope.HOOK, Scope.READ, Scope.OPERATE, Scope.SELF),
    answers={200: ExternalPoolListSchema},
)
def pools() -> dict[str, object]:
    """List the pools of external addresses, with what is left in each."""
    return {"pools": current().controls.external.pools()}


@operation(
    blueprint,
    "GET",
    "/external-translations",
    name="list_external_translations",
    scopes=(Scope.READ, Scope.GATEWAY),
    query=ChangeQuery,
    answers={200: TranslationsSchema},
    problems=(422,),
)
def translations(query: dict[str, Any]) -> dict[str, object]:
    """List what has changed of the translations, for gateways: since the revision ``after``, or all of them.

    With ``wait`` the answer comes when anything has; when too many wait already, it comes at once.
    """
    with current().watching(query["wait"]) as wait:
        found = current().controls.external.translations(query["after"], wait)
    return {
        "revision": found.revision,
        "whole": found.whole,
        "more": found.more,
        "translations": [
            {"address": str(each.external), "inside": str(each.inside), "open": list(map(str, each.openings))}
            for each in by_portions(found.translations)
        ],
        "gone": list(map(str, found.gone)),
    }


@operation(
    blueprint,
    "POST",
    "/external-translations",
    name="confirm_external_translations",
    scopes=(Scope.GATEWAY,),
    bodies={"application/json": GatewayWordSchema},
    answers={200: GatewayWordSchema},
    problems=(400, 413, 415, 422),
)
def confirm_translations() -> dict[str, object]:
    """Confirm the translations of a gateway, whose name is the token's.

    Until a gateway has confirmed it, an address that no core translates is pending.
    """
    body = fitting(read_value(MAX_WORD), GatewayWordSchema())
    try:
        pools, lacks = tuple(map(IPv4Network, body["pools"])), frozenset(map(IPv4Address, body["lacks"]))
    except ValueError as error:
        raise Problem(422, f"pools, lacks: {error}", "parameters") from None
    current().controls.external.translated(GatewayWord(actor(), pools, body["revision"], body["seconds"], lacks))
    return body


@operation(
    blueprint,
    "GET",
    "/external-addresses/<association_id>",
    name="show_external_address",
    scopes=(Scope.HOOK, Scope.READ, Scope.OPERATE, Scope.SELF),
    answers={200: ExternalAddressSchema},
    problems=(404,),
)
def show(association_id: str) -> dict[str, object]:
    """Show an association, also one that is over."""
    return _shown([_own(association_id)])[0]


@operation(
    blueprint,
    "DELETE",
    "/external-addresses/<association_id>",
    name="release_external_address",
    scopes=(Scope.HOOK, Scope.OPERATE, Scope.SELF),
    answers={200: ExternalAddressSchema},
    problems=(404,),
)
def release(association_id: str) -> dict[str, object]:
    """Release an external address. One that is released may be released again."""
    _own(association_id, "its release asked for by another than its job's user or host")
    return _shown([current().controls.external.release(association_id, actor())])[0]


def _wish() -> ExternalWish:
    """The body's request. One for an own job that no request can be, such as for a certain address, is in the audit
    trail. Raises Problem, NotFoundError, AmbiguousError."""
    sent = read_value(MAX_BODY)
    try:
        body = fitting(sent, ExternalWishSchema())
        opened, label = _openings(body["open"]), _label(body["name"])
    except Problem as problem:
        if problem.status == 422 and isinstance(sent, dict) and isinstance(word := sent.get("job"), str):
            current().controls.external.refused(_asked_for(word), actor(), str(problem)[:MAX_REASON])
        raise
    family = FAMILIES.get(body["family"])
    return ExternalWish(_asked_for(body["job"]), opened, body["seconds"], family, label, body["reservation"])


def _asked_for(word: str) -> str:
    """The id of the job that a word names, if the caller may ask for it. Who asks for another's is in the audit trail.
    Raises Problem 403, 404, NotFoundError, AmbiguousError."""
    try:
        job_id = named_job(word)
        require_host_of(current(), job_id)
    except (NotFoundError, Problem):
        controls = current().controls
        with suppress(NotFoundError, AmbiguousError):
            named = controls.jobs.named(word)
            # An id is taken as it is, of whatever job it may be.
            controls.jobs.host_of(named)
            controls.external.refused(named, actor(), "asked for by another than its own user or host", foreign=True)
        raise
    return job_id


def _openings(words: list[str]) -> tuple[Opening, ...]:
    try:
        return openings(words)
    except ValueError as error:
        wrong = {"parameter": "open", "problem": str(error)}
        raise Problem(422, f"open: {error}", "parameters", errors=[wrong]) from None


def _label(word: str) -> str:
    if not word:
        return ""
    try:
        return external_names.label(word)
    except ValueError as error:
        wrong = {"parameter": "name", "problem": str(error)}
        raise Problem(422, f"name: {error}", "parameters", errors=[wrong]) from None


def _own(association_id: str, refusal: str = "") -> Association:
    """An association that the token may use; where it may not, the audit trail gets the ``refusal``. Raises Problem
    403, 404, NotFoundError."""
    external = current().controls.external
    found = external.find(association_id)
    try:
        if not is_own(found.job):
            raise Problem(404, f"no external address was given under the id {association_id}")
        if is_bound():
            require_host_of(current(), found.job)
    except Problem:
        if refusal:
            external.refused(found.job, actor(), f"{found.address}: {refusal}", foreign=True)
        raise
    return found


def _inside(association: Association) -> str | None:
    """A live job's own address of the same version, as it is now: one that came by DHCP may go."""
    job = None if association.released is not None else current().controls.jobs.live(association.job)
    if job is None:
        return None
    own = next((each for each in job.addresses if each.version == association.address.version), None)
    return None if own is None else str(own)


def _reservation(association: Association) -> Reservation | None:
    """The reserved flow with which an address ends, as it is now: its time may have been changed."""
    if association.reservation is None or association.released is not None:
        return None
    flows = current().controls.reservations.at(association.job)
    return next((each for each in flows if each.number == association.reservation), None)


def _until(association: Association, reservation: Reservation | None) -> float | None:
    ends = association.until, None if reservation is None else reservation.until
    return min((each for each in ends if each is not None), default=None)


def _shown(found: Collection[Association]) -> list[dict[str, object]]:
    names = current().controls.jobs.names({each.job for each in found})
    standings = {each.id: current().controls.external.standing(each) for each in found}
    flows = {each.id: _reservation(each) for each in found}
    return [
        {
            "id": each.id,
            "address": str(each.address),
            "inside": _inside(each),
            "pool": each.pool,
            "job": each.job,
            "job_name": names.get(each.job),
            "owner": each.owner,
            "group": each.group,
            "open": [str(one) for one in each.openings],
            "state": str(standings[each.id].state),
            "reason": standings[each.id].reason,
            "created": each.created,
            "until": _until(each, flow := flows[each.id]),
            "reservation": None if flow is None else flow.id,
            "released": each.released,
            "free": each.free,
            "why": each.why,
            "actor": shown_actor(each.actor),
            "name": each.name or None,
            "name_state": str(each.name_state),
            "name_reason": each.name_reason,
        }
        for each in found
    ]
