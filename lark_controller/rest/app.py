"""The Flask application: :func:`create_app`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, RequestRedirect

from lark_common.limits import Buckets, Places
from lark_controller.api.controls import Controls
from lark_controller.api.metrics import Metrics
from lark_controller.rest import api, context, problems, standby
from lark_controller.rest.forwarding.active import ActiveController
from lark_controller.rest.identities.identities import Identities
from lark_controller.rest.identities.munge import MungeUsers
from lark_controller.rest.joins.joining import Joining
from lark_controller.rest.matching import Routes
from lark_controller.rest.problems import Problem
from lark_controller.rest.resources import (
    addresses,
    audit,
    drops,
    explain,
    external,
    groups,
    health,
    hosts,
    instances,
    jobs,
    joins,
    network_map,
    overview,
    pages,
    policy,
    reservations,
    switches,
    usage,
)
from lark_controller.rest.scrape import ControlsCollector
from lark_controller.rest.tokens import Tokens
from lark_controller.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from flask.typing import ResponseReturnValue

# After this many wrong tokens at once, a peer gets one more attempt each so many seconds.
FAILURES = 10
FAILURE_SECONDS = 6.0
# Threads that stay free of requests which may take time, so that /healthz and refusals are answered at once.
SPARE_THREADS = 4
# One token that asks switches has so small a part of the places where requests wait for them, one that reads so small a
# part of those where workers wait.
ASKERS = 64
READERS = 16
# All who wait for changes of links and paths have so small a part of these places.
WATCHERS = 4
# All users who see their own jobs alone have so small a part of the places where requests wait for switches: there may
# be as many of them as the pool has users.
USERS = 16
# Reservations that wait have so large a part of the places of posts: jobs ask for them, by their workers' tokens.
RESERVERS = 4
# So many eighths of all threads may hand requests on to the active controller at a time: each has a connection there,
# and that one keeps a half for one address.
FORWARDS = 3
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADERS = {
    "x-content-type-options": ("X-Content-Type-Options", "nosniff"),
    "cache-control": ("Cache-Control", "no-store"),
    "content-security-policy": ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    "referrer-policy": ("Referrer-Policy", "no-referrer"),
}
# Names in the environment of a call: false where all places were taken; Flask's request.
_PLACE = "lark.place"
_REQUEST = "werkzeug.request"


class _App(Flask):
    """An application that counts its answers and gives all of them some headers. Each request has one of ``places``
    while it is answered; /healthz needs none."""

    url_map_class: type[Map] = Routes

    def __init__(self, places: Places, metrics: Metrics) -> None:
        super().__init__("lark_controller.rest", static_folder=None)
        self._places = places
        # Found once for each of their labels.
        self._answers = cache(metrics.http_requests.labels)
        self._seconds = cache(metrics.http_seconds.labels)

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is: no view is a coroutine, for which Flask looks a dozen times a request."""
        return func

    def handle_http_exception(self, e: HTTPException) -> HTTPException | ResponseReturnValue:
        """As Flask's. A redirect, which is the answer itself there, would be held by its own traceback."""
        return e.get_response(request.environ) if isinstance(e, RequestRedirect) else super().handle_http_exception(e)

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request. Outside of Flask, whose own ways to headers and counts take longer than some views do."""
        began = time.perf_counter()

        def begin(status: str, headers: list[tuple[str, str]], *error: Any) -> Callable[[bytes], object]:
            self._count(environ, status, time.perf_counter() - began)
            # Its traceback has the request, which has it: all that a path without a rule took would wait for a
            # collection of garbage.
            environ[_REQUEST].routing_exception = None
            lacking = _HEADERS.copy()
            for name, _ in headers:
                lacking.pop(name.lower(), None)
            return start_response(status, [*headers, *lacking.values()], *error)

        if environ["PATH_INFO"] == "/healthz":
            return super().wsgi_app(environ, begin)
        environ[_PLACE] = taken = self._places.take()
        try:
            return super().wsgi_app(environ, begin)
        finally:
            if taken:
                self._places.give()

    def _count(self, environ: WSGIEnvironment, status: str, seconds: float) -> None:
        rule = environ[_REQUEST].url_rule
        route = rule.rule if rule else "none"
        method = environ["REQUEST_METHOD"]
        method = method if method in _METHODS else "other"
        self._answers(route, method, status[:3]).inc()
        self._seconds(route, method).observe(seconds)


def create_app(
    controls: Controls,
    settings: Settings,
    tokens: Tokens,
    metrics: Metrics | None = None,
    identities: Identities | None = None,
    joining: Joining | None = None,
    active: ActiveController | None = None,
) -> Flask:
    """The REST API of a controller.

    ``metrics`` is the registry that the controller counts in; without one the application makes its own.
    ``identities`` are the bearers of JWTs; without them none is accepted. Without ``joining`` no
    worker may join; without ``active`` no request is handed on to another controller.
    """
    counted = metrics or Metrics()
    counted.registry.register(ControlsCollector(controls))
    places = Places(settings.rest_threads + settings.waiting_workers - SPARE_THREADS)
    app = _App(places, counted)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["PROPAGATE_EXCEPTIONS"] = False
    shared = app.extensions[context.KEY] = context.Context(
        controls=controls,
        settings=settings,
        tokens=tokens,
        identities=identities,
        munge=None if settings.munge_socket is None else MungeUsers(settings.munge_socket),
        joining=joining,
        metrics=counted,
        rates=Buckets(settings.rate_limit, settings.rate_burst),
        failures=Buckets(1 / FAILURE_SECONDS, FAILURES),
        notes=Buckets(context.NOTES_A_SECOND, context.NOTES),
        waits=Places(settings.waiting_posts),
        polls=Places(settings.waiting_workers),
        asks=Places(max(1, settings.waiting_posts // ASKERS)),
        users=Places(max(1, settings.waiting_posts // USERS)),
        reserves=Places(max(1, settings.waiting_posts // RESERVERS)),
        watches=Places(max(1, settings.waiting_workers // READERS)),
        changes=Places(max(1, settings.waiting_workers // WATCHERS)),
        requests=places,
        active=active,
        forwards=Places(max(1, (settings.rest_threads + settings.waiting_workers) * FORWARDS // 8)),
    )
    app.before_request(partial(_enter, shared))
    modules = (
        jobs, addresses, switches, policy, explain, groups, usage, drops, audit, hosts, overview, health, reservations,
        network_map, joins, instances, external,
    )  # fmt: skip
    api.register(app, tuple(module.blueprint for module in modules))
    app.register_blueprint(pages.blueprint())
    problems.register(app)
    return app


def _enter(shared: context.Context) -> Response | None:
    """Refuse a request where all places are taken, and where the query string has bytes that are no UTF-8, at which the
    parsing of parameters fails; have it answered by the active controller where this one stands by. Raises Problem."""
    environ = request.environ
    query = environ["QUERY_STRING"]
    if query and not query.isascii():
        try:
            query.encode("latin-1").decode()
        except UnicodeDecodeError as error:
            detail = f"The query string is not UTF-8 (byte {error.start}); write other bytes as %XX of UTF-8."
            raise Problem(400, detail, "parameters") from None
    if not environ.get(_PLACE, True):
        raise Problem(503, "All threads are busy; ask again.", "busy", {"Retry-After": "1"})
    return standby.answer(shared, environ)
