"""Errors as RFC 9457 problem documents: one shape for every answer that is not a success.

``type`` is ``about:blank`` where the status is enough, else ``urn:lark:problem:<kind>``; ``title``, ``status`` and
``detail`` are always there. Extension members carry what a program needs: ``attribute``, ``reason``, ``holder``,
``mistakes``, ``errors``, ``links``, ``refused``, ``candidates``, ``active``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.wrappers import Response as WerkzeugResponse

from lark_common import log
from lark_common.errors import (
    AddressError,
    AdError,
    AdmissionError,
    AmbiguousError,
    ApartError,
    BusyError,
    CapacityError,
    ChangedError,
    ExternalAddressError,
    LarkError,
    NotFoundError,
    PathError,
    PolicyError,
    RuleLimitError,
    Shortage,
    StandbyError,
    StateError,
    StoreError,
    SwitchError,
    UnsupportedError,
)
from lark_controller.policies.model import Refused

CONTENT_TYPE: Final = "application/problem+json"
# Busy is over as soon as one waiting request is answered; a database takes longer to come back.
_BUSY_RETRY: Final = "1"
_STORE_RETRY: Final = "5"
STANDBY_RETRY: Final = "1"
# Refused parameters or members in an answer, and letters of the name and of the reason of each.
MOST_ERRORS: Final = 100
MOST_LETTERS: Final = 1000


class Problem(Exception):
    """An answer that is not a success; raised anywhere in a view.

    ``kind`` is the last part of the problem type, ``""`` for about:blank.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        **members: object,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind
        self.headers = dict(headers or {})
        self.members = members


def document(status: int, detail: str, kind: str = "", **members: object) -> dict[str, object]:
    """The problem document itself."""
    title = HTTPStatus(status).phrase if not kind else _TITLES[kind]
    return {
        "type": f"urn:lark:problem:{kind}" if kind else "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        **members,
    }


def of_error(error: LarkError) -> Problem:
    """The problem that one of Lark's own errors is to a client."""
    match error:
        case AdError():
            return Problem(422, str(error), "ad", attribute=error.attribute, reason=error.reason)
        case AddressError():
            return Problem(
                409,
                str(error),
                "address",
                attribute=error.attribute,
                reason=error.reason,
                holder=error.holder,
            )
        case PolicyError():
            return Problem(422, _count(len(error.mistakes)), "policy", mistakes=mistakes(error.mistakes))
        case CapacityError():
            return Problem(409, str(error), "capacity", links=shortages(error.shortages), refused=_refused(error))
        case ExternalAddressError():
            return Problem(409, str(error), "external-address", refused=_refused(error))
        case ApartError():
            return Problem(409, str(error), "apart", refused=_refused(error))
        case PathError():
            return Problem(422, str(error), "topology", refused=_refused(error))
        case AmbiguousError():
            return Problem(409, str(error), "ambiguous", candidates=[asdict(each) for each in error.candidates])
        case NotFoundError():
            return Problem(404, str(error))
        case ChangedError():
            return Problem(412, str(error), "changed")
        case BusyError():
            return Problem(503, str(error), "busy", {"Retry-After": _BUSY_RETRY})
        case StateError():
            return Problem(409, str(error), "state")
        case StandbyError():
            return Problem(503, str(error), "standby", {"Retry-After": STANDBY_RETRY}, active=error.active or None)
        case StoreError():
            return Problem(503, str(error), "store", {"Retry-After": _STORE_RETRY})
        case RuleLimitError():
            return Problem(409, str(error), "rule-limit")
        case UnsupportedError():
            return Problem(409, str(error), "unsupported")
        case SwitchError():
            return Problem(502, str(error), "switch")
        case _:
            return _unexpected(error)


def of_parameters(status: int, found: Iterable[tuple[object, Any]]) -> Problem:
    """The problem of parameters or members that were refused: each with its reasons, the first of them all."""
    each = (
        (name, reason) for name, reasons in found for reason in (reasons if isinstance(reasons, list) else [reasons])
    )
    wrong = [
        {"parameter": str(name)[:MOST_LETTERS], "problem": str(reason)[:MOST_LETTERS]}
        for name, reason in islice(each, MOST_ERRORS)
    ]
    detail = "; ".join(f"{entry['parameter']}: {entry['problem']}" for entry in wrong)
    return Problem(status, detail, "parameters", errors=wrong)


def mistakes(found: tuple[Any, ...]) -> list[dict[str, object]]:
    """Mistakes of a policy as JSON objects."""
    return [
        {
            "line": mistake.line,
            "column": mistake.column,
            "key": mistake.key,
            "problem": mistake.problem,
            "accepted": mistake.accepted,
        }
        for mistake in found
    ]


def shortages(found: tuple[Shortage, ...]) -> list[dict[str, object]]:
    """Links that are short as JSON objects."""
    return [
        {
            "link": each.link,
            "source": each.source,
            "target": each.target,
            "capacity": each.capacity,
            "reserved": each.reserved,
            "available": each.available,
            "asked": each.asked,
            "held": each.held,
            "own": each.own,
        }
        for each in found
    ]


def _refused(error: AdmissionError) -> str:
    return str(Refused.IDLE if error.idle else Refused.HOLD)


def register(app: Flask) -> None:
    """Answer every error of ``app`` with a problem document, those of Flask and webargs too."""
    app.register_error_handler(Problem, respond)
    app.register_error_handler(LarkError, lambda error: respond(of_error(error)))
    app.register_error_handler(HTTPException, _of_http)
    app.register_error_handler(Exception, lambda error: respond(_unexpected(error)))


def respond(problem: Problem) -> Response:
    """The problem as a response."""
    body = document(problem.status, problem.detail, problem.kind, **problem.members)
    return Response(json.dumps(body), problem.status, problem.headers, content_type=CONTENT_TYPE)


def _of_http(error: HTTPException) -> WerkzeugResponse:
    status = error.code or 500
    if status < 400:
        return error.get_response()
    # webargs puts what was wrong with each parameter here, by where it stood.
    data = getattr(error, "data", None) or {}
    found = data.get("messages")
    if found:
        return respond(of_parameters(status, (each for where in found.values() for each in where.items())))
    response = respond(Problem(status, _detail(error, status)))
    for name, value in error.get_headers():
        if name.lower() not in ("content-type", "content-length"):
            response.headers[name] = value
    return response


def _detail(error: HTTPException, status: int) -> str:
    match error:
        case NotFound():
            return f"There is nothing at {request.path}."
        case MethodNotAllowed():
            return (
                f"{request.method} is not accepted at {request.path}; accepted: {', '.join(error.valid_methods or ())}."
            )
        case _:
            return error.description or HTTPStatus(status).phrase


def _unexpected(error: BaseException) -> Problem:
    """An error that is the controller's own fault: its id in the answer is the id in the log, where the rest stands."""
    instance = f"urn:uuid:{uuid.uuid4()}"
    log.failure("request failed", error, instance=instance)
    return Problem(500, "The controller failed on this request; its log has the reason.", instance=instance)


def _count(number: int) -> str:
    return "The policy has 1 mistake." if number == 1 else f"The policy has {number} mistakes."


_TITLES: Final[Mapping[str, str]] = {
    "ad": "An ad cannot be accepted",
    "address": "The address cannot be used",
    "capacity": "The network has no room",
    "apart": "Nothing of the flow would pass",
    "external-address": "The job cannot have an external address",
    "topology": "The declared topology has no such path",
    "policy": "The policy has mistakes",
    "busy": "Too much is waiting already",
    "store": "The database cannot be reached",
    "standby": "This controller stands by",
    "unanswered": "The active controller has not answered",
    "ambiguous": "Several jobs have this name",
    "changed": "The policy in force has changed",
    "state": "The job is not in the state that this is for",
    "rule-limit": "A switch's rule limit would be exceeded",
    "unsupported": "A switch lacks a feature that the policy needs",
    "switch": "A switch does not do what it was asked",
    "parameters": "Parameters cannot be accepted",
    "json": "The body is not JSON",
    "rate": "Too many requests",
    "token": "A valid token is needed",
    "scope": "The token does not allow this",
    "host": "The token is for another host",
    "join": "The worker cannot join",
}
KINDS: Final = tuple(_TITLES)
