"""The one decorator that makes a view an operation of the API: route, scope, schemas, documentation.

flask-smorest publishes no types; it is used here alone, and everything else sees the typed functions below.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any, Final, TypeVar

from flask import Flask, Response, request
from flask_smorest import Api, Blueprint  # type: ignore[import-untyped]  # it publishes no types
from marshmallow import Schema

from lark_controller import __version__
from lark_controller.rest.auth import require
from lark_controller.rest.context import current
from lark_controller.rest.json_portions import written
from lark_controller.rest.problems import CONTENT_TYPE
from lark_controller.rest.schemas.answers import ProblemSchema
from lark_controller.rest.tokens import Scope

View = TypeVar("View", bound=Callable[..., Any])

# Texts of queries that each operation remembers, and the length of one.
QUERIES: Final = 256
QUERY_BYTES: Final = 128

# A body, by its schema or by its description in OpenAPI.
Described = type[Schema] | Mapping[str, object]

# Errors of every operation that needs a token.
_COMMON: Final = (401, 403, 429, 503)
_DESCRIPTION: Final = (
    "The controller that makes the network a managed resource of an HTCondor pool. Errors are problem documents "
    "(RFC 9457); times are ISO 8601 in UTC; datapath ids are 16 hexadecimal digits."
)


class _Api(Api):  # type: ignore[misc]  # flask-smorest publishes no types, so its class is Any
    ERROR_SCHEMA = ProblemSchema
    DEFAULT_ERROR_RESPONSE_NAME = None
    DEFAULT_RESPONSE_CONTENT_TYPE = CONTENT_TYPE


def resource(name: str, description: str, prefix: str = "/v1") -> Blueprint:
    """A blueprint for one resource."""
    return Blueprint(name, __name__, url_prefix=prefix, description=description)


def register(app: Flask, blueprints: tuple[Blueprint, ...]) -> None:
    """Register the blueprints, and serve their OpenAPI document at ``/openapi.json``."""
    for blueprint in blueprints:
        app.register_blueprint(blueprint)
    app.add_url_rule("/openapi.json", "openapi", lambda: Response(_document(blueprints), mimetype="application/json"))


_making: Final = threading.Lock()
_made: Final = dict[tuple[Blueprint, ...], bytes]()


def _document(blueprints: tuple[Blueprint, ...]) -> bytes:
    """The OpenAPI document, made when it is asked for: few ask, and it takes longer than the rest of an application."""
    with _making:
        if blueprints not in _made:
            _made[blueprints] = _described(blueprints)
        return _made[blueprints]


def _described(blueprints: tuple[Blueprint, ...]) -> bytes:
    app = Flask(__name__)
    app.config.update(
        API_TITLE="Lark",
        API_VERSION=__version__,
        OPENAPI_VERSION="3.1.0",
        API_SPEC_OPTIONS={"info": {"description": _DESCRIPTION, "license": {"name": "Apache-2.0"}}},
    )
    api = _Api(app)
    described = "A token made by `lark token`, or a JWT of an issuer that the controller accepts (LARK_JWT_FILE)."
    api.spec.components.security_scheme("bearer", {"type": "http", "scheme": "bearer", "description": described})
    for blueprint in blueprints:
        api.register_blueprint(blueprint)
    return json.dumps(api.spec.to_dict(), indent=2).encode()


def operation(
    blueprint: Blueprint,
    method: str,
    path: str,
    *,
    name: str,
    scopes: tuple[Scope, ...],
    answers: Mapping[int, type[Schema] | None],
    problems: tuple[int, ...] = (),
    query: type[Schema] | None = None,
    bodies: Mapping[str, Described] | None = None,
    body_required: bool = True,
    texts: Mapping[int, tuple[str, ...]] | None = None,
) -> Callable[[View], View]:
    """Make a view an operation.

    ``name`` is its operationId, after which generated clients call their functions. ``scopes`` are the scopes that are
    accepted, empty for a public operation. ``answers`` maps success statuses to their schemas; the first one serialises
    what the view returns: a value, or one with a status and headers. A view may make its response itself. ``query``
    describes the query parameters (others are refused), passed to the view as its first argument. It reads each text of
    a query once: a schema library takes longer than some views do. ``bodies`` and ``texts`` document content types of
    the request and of text answers.
    """

    def decorate(view: View) -> View:
        described: Any = view
        for status in dict.fromkeys((*problems, *(_COMMON if scopes else ()))):
            described = blueprint.alt_response(status, response=HTTPStatus(status).name)(described)
        for status, kinds in (texts or {}).items():
            for kind in kinds:
                schema = {"type": "object" if kind.endswith("json") else "string"}
                described = blueprint.alt_response(status, schema=schema, content_type=kind, success=True)(described)
        first, *others = answers.items()
        for status, other in others:
            described = blueprint.alt_response(status, schema=other, content_type="application/json", success=True)(
                described
            )
        if first[1] is not None:
            described = blueprint.response(first[0], first[1], content_type="application/json")(described)
        made: Callable[..., Any] = view
        if query is not None:
            read: dict[bytes, dict[str, Any]] = {}
            whole = _documented(_remembered(view, read), described)
            described = blueprint.arguments(query, location="query", unknown="raise")(whole)
            made = _read_once(view, described, read)
        described = blueprint.doc(operationId=name, **_manual(scopes, bodies, body_required))(described)
        made = _guarded(_answered(made, *first), scopes)
        blueprint.route(path, methods=[method])(_documented(made, described))
        return view

    return decorate


def _documented(view: Callable[..., Any], described: Any) -> Callable[..., Any]:
    """The view with another's description: what describes a view adds a call to each of its requests."""
    view._apidoc = described._apidoc  # type: ignore[attr-defined]  # where flask-smorest looks for it
    return view


def _remembered(view: Callable[..., Any], read: dict[bytes, dict[str, Any]]) -> Callable[..., Any]:
    """The view, which keeps what a schema has made of the query's text."""

    @wraps(view)
    def remembered(found: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        text = request.query_string
        if len(text) <= QUERY_BYTES:
            if len(read) >= QUERIES:
                read.clear()
            read[text] = dict(found)
        return view(found, *args, **kwargs)

    return remembered


def _read_once(
    view: Callable[..., Any], whole: Callable[..., Any], read: Mapping[bytes, dict[str, Any]]
) -> Callable[..., Any]:
    """The view without a schema where the query's text was ``read`` before."""

    @wraps(view)
    def read_once(*args: Any, **kwargs: Any) -> Any:
        found = read.get(request.query_string)
        return whole(*args, **kwargs) if found is None else view(dict(found), *args, **kwargs)

    return read_once


def _answered(view: Callable[..., Any], status: int, schema: type[Schema] | None) -> Callable[..., Any]:
    """Serialise what the view returns, where it is no response."""
    if schema is None:
        return view
    dump = schema().dump

    @wraps(view)
    def answered(*args: Any, **kwargs: Any) -> Response:
        found = view(*args, **kwargs)
        if isinstance(found, Response):
            return found
        # A NamedTuple is a value.
        value, *rest = found if type(found) is tuple else (found, status)
        return written(dump(value), *rest)

    return answered


def _manual(
    scopes: tuple[Scope, ...], bodies: Mapping[str, Described] | None, body_required: bool
) -> dict[str, object]:
    manual: dict[str, object] = {"security": [{"bearer": []}], "x-lark-scopes": list(scopes)} if scopes else {}
    if bodies:
        content = {
            kind: {"schema": schema if isinstance(schema, type) else dict(schema)} for kind, schema in bodies.items()
        }
        manual["requestBody"] = {"required": body_required, "content": content}
    return manual


def _guarded(view: Callable[..., Any], scopes: tuple[Scope, ...]) -> Callable[..., Any]:
    """Check the token before anything else of the request."""
    if not scopes:
        return view

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        require(current(), scopes)
        return view(*args, **kwargs)

    return guarded
