"""``/v1/reservations`` and ``/v1/links``: bandwidth that is promised, and what is left of each link."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from flask import g
from marshmallow import Schema, fields, validate

from lark_common.errors import NotFoundError
from lark_controller.api.reservations import Change, FlowDelivery, LinkStatus, PathStatus, Wish
from lark_controller.jobs.job import JobState, Standing
from lark_controller.qos.reservation import Reservation, ReservationKind
from lark_controller.qos.topology import KILO, MAX_RATE
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import is_bound, require_host, require_host_of
from lark_controller.rest.bodies import next_url, read_json
from lark_controller.rest.context import actor, current
from lark_controller.rest.job_words import is_address, job_among, job_or_host, named_host, named_job
from lark_controller.rest.own_jobs import own_user, shown_job, shown_reservation
from lark_controller.rest.resources.jobs import check_wait, confirm
from lark_controller.rest.schemas.answers import Page
from lark_controller.rest.schemas.described import schema_of
from lark_controller.rest.schemas.members import a_flag, a_float, a_text, maybe_text, meta, texts
from lark_controller.rest.schemas.queries import ChangeQuery, ReservationQuery, WaitQuery, Whole
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.written import Rows, Written
from lark_controller.rest.tokens import Scope, Token

blueprint = resource("reservations", "Bandwidth that is promised, and what is left of each link.")

# Bytes of a body; a wish is a line.
MAX_BODY: Final = 4096
MIN_MEGABITS: Final = 0.001
MAX_MEGABITS: Final = MAX_RATE / KILO
# A hundred years: an end that a database and a date can hold.
MAX_SECONDS: Final = 100 * 365.25 * 86400

_END: Final = [validate.Length(1, 255), Whole(r"^[!-~]+$", error="printable ASCII is accepted")]
_RATE: Final = validate.Range(MIN_MEGABITS, MAX_MEGABITS, error="{min} to {max} Mb/s are accepted")
_SECONDS: Final = validate.Range(1, MAX_SECONDS, error="{min} to {max} seconds are accepted")


class WishSchema(Schema):
    """A flow to reserve bandwidth for."""

    source = fields.String(
        required=True, validate=_END, metadata=meta("The sender: a job's id or address, or a host of the topology")
    )
    destination = fields.String(
        required=True,
        validate=_END,
        metadata=meta("The receiver: a job's id or address, a host or WAN of the topology, an address or network"),
    )
    rate = fields.Float(required=True, validate=_RATE, metadata=meta("Mb/s of L2 bytes"))
    duration = fields.Float(
        load_default=None,
        allow_none=True,
        validate=_SECONDS,
        metadata=meta("Seconds; without it the reservation ends with its jobs"),
    )
    steady = fields.Boolean(
        load_default=False, metadata=meta("The rate is the most as well; else the flow may use what is free, too")
    )


class ReservationChangeSchema(Schema):
    """A change of a reservation."""

    rate = fields.Float(validate=_RATE, metadata=meta("The new rate, Mb/s of L2 bytes"))
    duration = fields.Float(
        allow_none=True, validate=_SECONDS, metadata=meta("Seconds from now on; null: until its jobs end")
    )
    steady = fields.Boolean(metadata=meta("The rate is the most as well"))


class HoldSchema(Written):
    """A reservation's share of a link."""

    channel = a_text("The link, and its direction where it has two")
    rate = a_float("Mb/s")


class ReservationSchema(Written):
    """A promise of bandwidth."""

    id = a_text("Its id, 16 hexadecimal digits")
    kind = a_text("job: a job's RequestBandwidth; flow: one that was reserved")
    rate = a_float("Mb/s of L2 bytes")
    steady = a_flag("The rate is the most as well; else the flow may use what is free, too")
    source = a_text("The sender's node in the topology")
    destination = a_text("The receiver's node in the topology; wan: the WAN by which the sender's packets leave")
    job = maybe_text("The id of the job whose it is, or that sends")
    job_name = maybe_text("That job's CLUSTER.PROC")
    peer = maybe_text("The id of the job that receives")
    peer_name = maybe_text("That job's CLUSTER.PROC")
    addresses = texts("The receiver's addresses, empty for all of the WAN")
    until = Time("Time when it ends, null where its jobs end it", allow_none=True)
    created = Time("Time when it was made")
    actor = a_text("Name of the token that made it")
    holds = Rows(HoldSchema, "Its share of each link")
    state = maybe_text(
        "How far it is enforced, as it was seen last: registering while that is under way, pending or quarantined where"
        " it is not, enforced; null where its sender is no live job, and nobody enforces it"
    )
    reason = a_text("Why it is not enforced; empty where it is")


class ReservationPageSchema(Page):
    """A page of reservations."""

    reservations = Rows(ReservationSchema, "The reservations")


LinkSchema = schema_of(
    LinkStatus,
    "LinkSchema",
    best_effort=a_float("Rest for traffic without a reservation, Mb/s; below 0 where the policy made the link smaller"),
)


def _versioned(name: str, member: str, schema: type[Schema], shown: str, another: str) -> type[Schema]:
    """The schema of a list that callers may wait for, until it is another one."""
    version = a_text(f"Another word where {another}")
    words = f"The {shown}; null where the version is that of `after`"
    return Written.from_dict({"version": version, member: Rows(schema, words, allow_none=True)}, name=name)


_ANOTHER: Final = "anything below is another"
_IN_ORDER: Final = "flows, in order of number"
DeliverySchema = schema_of(FlowDelivery, "DeliverySchema")
PathSchema = schema_of(PathStatus, "PathSchema")
LinkListSchema = _versioned("LinkListSchema", "links", LinkSchema, "links, both directions", _ANOTHER)
DeliveryListSchema = _versioned("DeliveryListSchema", "flows", DeliverySchema, _IN_ORDER, "more was delivered")
PathListSchema = _versioned("PathListSchema", "paths", PathSchema, _IN_ORDER, _ANOTHER)


@operation(
    blueprint,
    "POST",
    "/reservations",
    name="make_reservation",
    scopes=(Scope.HOOK, Scope.OPERATE),
    query=WaitQuery,
    bodies={"application/json": WishSchema},
    answers={201: ReservationSchema},
    problems=(400, 404, 409, 413, 415, 422),
)
def reserve(query: dict[str, Any]) -> tuple[dict[str, object], int, dict[str, str]]:
    """Reserve bandwidth for a flow.

    With a hook's token only for what a live job of its hosts sends. ``wait`` waits until the sender's switch has the
    flow's queue.
    """
    check_wait(query)
    body = read_json(MAX_BODY, WishSchema())
    body["source"] = _own_sender(body["source"])
    if not g.lark_by_hook:
        body |= {end: job_or_host(body[end]) for end in ("source", "destination")}
    made = current().controls.reservations.reserve(Wish(**body), actor(), _of_job())
    if made.job is not None and query["wait"]:
        # Jobs ask for these through their workers' tokens, and must leave places to the hooks of jobs that start.
        with current().reserves.place() as free:
            confirm(made.job, query["wait"] if free else 0.0, of_flows=True)
    document = shown(made) if query["wait"] else _begun(made)
    return document, 201, {"Location": f"/v1/reservations/{made.id}"}


@operation(
    blueprint,
    "GET",
    "/reservations",
    name="list_reservations",
    scopes=(Scope.READ, Scope.SELF),
    query=ReservationQuery,
    answers={200: ReservationPageSchema},
    problems=(404, 409, 422),
)
def index(query: dict[str, Any]) -> dict[str, object]:
    """List reservations."""
    page = current().controls.reservations.page(job_among(query), query.get("cursor"), query["limit"], own_user())
    return {
        "reservations": _shown(page.reservations),
        "next": next_url(page.next_cursor),
        "next_cursor": page.next_cursor,
    }


@operation(
    blueprint,
    "GET",
    "/reservations/<reservation_id>",
    name="show_reservation",
    scopes=(Scope.HOOK, Scope.READ, Scope.SELF),
    query=WaitQuery,
    answers={200: ReservationSchema},
    problems=(404, 422, 502),
)
def show(query: dict[str, Any], reservation_id: str) -> dict[str, object]:
    """Show a reservation.

    ``wait`` waits until its sender's switch or worker enforces it, no longer than LARK_WAIT_LIMIT; when too many wait
    already, the answer comes at once.
    """
    found, wait = _own(reservation_id), min(query["wait"], current().settings.wait_limit)
    if wait and found.job is not None:
        with current().watching(wait) as wait:
            current().controls.jobs.confirm(found.job, wait, of_flows=found.kind is ReservationKind.FLOW)
        # It may be another meanwhile, or over.
        found = _own(reservation_id)
    return shown(found)


@operation(
    blueprint,
    "PATCH",
    "/reservations/<reservation_id>",
    name="change_reservation",
    scopes=(Scope.HOOK, Scope.OPERATE),
    bodies={"application/json": ReservationChangeSchema},
    answers={200: ReservationSchema},
    problems=(400, 404, 409, 413, 415, 422),
)
def change(reservation_id: str) -> dict[str, object]:
    """Change the rate of a reservation, its end, or whether it is steady.

    It happens as a whole or not at all; traffic is not interrupted.
    """
    body = read_json(MAX_BODY, ReservationChangeSchema())
    before = _own(reservation_id)
    wanted = Change(body.get("rate"), body.get("duration"), "duration" in body, body.get("steady"))
    made = current().controls.reservations.change(reservation_id, wanted, actor(), _of_job())
    return shown(made) if (before.kbps, before.steady) == (made.kbps, made.steady) else _begun(made)


@operation(
    blueprint,
    "DELETE",
    "/reservations/<reservation_id>",
    name="release_reservation",
    scopes=(Scope.HOOK, Scope.OPERATE),
    answers={200: ReservationSchema},
    problems=(404, 422),
)
def release(reservation_id: str) -> dict[str, object]:
    """Release a reservation."""
    _own(reservation_id)
    return shown(current().controls.reservations.release(reservation_id, actor(), _of_job()))


@operation(
    blueprint,
    "GET",
    "/reservations/<reservation_id>/delivered",
    name="show_reservation_delivered",
    scopes=(Scope.HOOK, Scope.READ, Scope.SELF),
    query=ChangeQuery,
    answers={200: DeliveryListSchema},
    problems=(404, 422, 502),
)
def delivered(query: dict[str, Any], reservation_id: str) -> dict[str, object]:
    """Show what a reserved flow has delivered: in the last second or two, and since its queue was made.

    With ``after`` and ``wait`` the answer comes when it is more; with a ``wait`` of two seconds and more the rate is of
    the last second or two in any case. When too many wait already, it comes at once.
    """
    found = _own(reservation_id)
    return _delivered([found] if found.kind is ReservationKind.FLOW else [], query)


@operation(
    blueprint,
    "GET",
    "/jobs/<job_id>/delivered",
    name="list_job_delivered",
    scopes=(Scope.HOOK, Scope.READ, Scope.SELF),
    query=ChangeQuery,
    answers={200: DeliveryListSchema},
    problems=(404, 409, 422, 502),
)
def job_delivered(query: dict[str, Any], job_id: str) -> dict[str, object]:
    """List what the flows have delivered that a live job has reserved and sends, in the same way."""
    known = named_job(job_id)
    require_host_of(current(), known)
    return _delivered(current().controls.reservations.sent_by(known), query)


def _delivered(flows: Sequence[Reservation], query: dict[str, Any]) -> dict[str, object]:
    after = query["after"]
    with current().watching(query["wait"]) as wait:
        found = current().controls.usage.delivered(list(map(shown_reservation, flows)), after, wait)
    return {"version": found.version, "flows": None if found.version == after else found.items}


@operation(
    blueprint,
    "GET",
    "/links",
    name="list_links",
    scopes=(Scope.HOOK, Scope.READ),
    query=ChangeQuery,
    answers={200: LinkListSchema},
    problems=(422,),
)
def links(query: dict[str, Any]) -> dict[str, object]:
    """List the links of the declared topology, and what is left of each for traffic without a reservation.

    With ``after`` and ``wait`` the answer comes when there is another version; when too many wait already, it comes at
    once.
    """
    after = query["after"]
    with current().watching(query["wait"]) as wait:
        found = current().controls.reservations.links(after, wait)
    return {"version": found.version, "links": None if found.version == after else found.items}


@operation(
    blueprint,
    "GET",
    "/hosts/<host>/paths",
    name="list_paths",
    scopes=(Scope.HOOK, Scope.READ),
    query=ChangeQuery,
    answers={200: PathListSchema},
    problems=(422,),
)
def paths(query: dict[str, Any], host: str) -> dict[str, object]:
    """List the reserved flows that a host's live jobs send, and what is free beside each.

    With ``after`` and ``wait`` as for links.
    """
    require_host(host)
    known, after = named_host(host), query["after"]
    with current().watching(query["wait"]) as wait:
        found = current().controls.reservations.paths(known, after, wait)
    return {"version": found.version, "paths": None if found.version == after else found.items}


def _own(reservation_id: str) -> Reservation:
    """A reservation that the token may use. Raises Problem 403, NotFoundError."""
    found = current().controls.reservations.find(reservation_id, own_user())
    if found.job is not None:
        require_host_of(current(), found.job)
    return found


def _own_sender(source: str) -> str:
    """The end that sends, by its job's id where the token is good for that job's host alone. Raises Problem 403."""
    if not is_bound():
        return source
    with suppress(NotFoundError):
        # By its id: an address may be another job's a moment later.
        sender = current().controls.jobs.at(source).job.id if is_address(source) else source
        require_host_of(current(), sender)
        return sender
    return source


def shown(reservation: Reservation) -> dict[str, object]:
    """A reservation as its schema has it."""
    return _shown([reservation])[0]


def _begun(reservation: Reservation) -> dict[str, object]:
    """A reservation that was made or changed a moment ago: of its job is known what was before."""
    document = shown(reservation)
    if document["state"] is None or _why_no_rule(reservation):
        return document
    return document | {"state": str(JobState.REGISTERING), "reason": ""}


def _shown(reservations: Collection[Reservation]) -> list[dict[str, object]]:
    reservations = [shown_reservation(each) for each in reservations]
    ids = {each for one in reservations for each in (one.job, one.peer) if each is not None}
    names = current().controls.jobs.names(ids)
    return [_with_names(each, names) for each in reservations]


def _with_names(reservation: Reservation, names: Mapping[str, str]) -> dict[str, object]:
    standing = _standing(reservation)
    return {
        "id": reservation.id,
        "kind": str(reservation.kind),
        "rate": reservation.rate,
        "steady": reservation.steady,
        "source": reservation.source,
        "destination": reservation.destination,
        "job": reservation.job,
        "job_name": names.get(reservation.job or ""),
        "peer": reservation.peer,
        "peer_name": names.get(reservation.peer or ""),
        "addresses": [str(network) for network in reservation.target],
        "until": reservation.until,
        "created": reservation.created,
        "actor": reservation.actor,
        "holds": [{"channel": key, "rate": kbps / KILO} for key, kbps in reservation.holds.items()],
        "state": None if standing is None else str(standing.state),
        "reason": "" if standing is None else standing.reason,
    }


def _standing(reservation: Reservation) -> Standing | None:
    """Tell how far it is enforced, as it was seen last; a job's RequestBandwidth as far as the job. None where nobody
    does so."""
    if reservation.job is None:
        return None
    jobs, apart = current().controls.jobs, current().controls.reservations.apart
    if reservation.kind is ReservationKind.FLOW:
        found = jobs.reserved(reservation.job)
        return None if found is None else found.unenforced_for(apart.why(reservation.id))
    if (job := jobs.live(reservation.job)) is None:
        return None
    own = Standing(job.state, shown_job(job).reason)
    if job.state is JobState.ENFORCED and (nothing := jobs.why_nothing_passes(job)):
        own = Standing(JobState.PENDING, nothing)
    return own.unenforced_for(_why_no_rule(reservation))


def _why_no_rule(reservation: Reservation) -> str:
    """The reason why nobody is to enforce a job's RequestBandwidth: the policy has no rule for it; "" where it has."""
    if reservation.kind is ReservationKind.FLOW or reservation.job is None:
        return ""
    jobs = current().controls.jobs
    return "" if (job := jobs.live(reservation.job)) is None else jobs.why_rate_unenforced(job)


def _of_job() -> bool:
    """True if the token allows no more than a job may do for itself."""
    return not cast("Token", g.lark_token).allows((Scope.OPERATE,))
