"""The Flask application: :func:`create_app`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, g, request

from lark_common.limits import Buckets, Places
from lark_controller.api.controls import Controls
from lark_controller.api.metrics import Metrics
from lark_controller.rest import api, context, problems, standby
from lark_controller.rest.forwarding.active import ActiveController
from lark_controller.rest.identities.identities import Identities
from lark_controller.rest.identities.munge import MungeUsers
from lark_controller.rest.joins.joining import Joining
from lark_controller.rest.json_portions import PortionedJson
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
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class _App(Flask):
    """An application without coroutines among its views, for which Flask looks a dozen times a request."""

    def ensure_sync(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is."""
        return func


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
    app = _App("lark_controller.rest", static_folder=None)
    app.json = PortionedJson(app)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["PROPAGATE_EXCEPTIONS"] = False
    counted = metrics or Metrics()
    counted.registry.register(ControlsCollector(controls))
    app.extensions[context.KEY] = context.Context(
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
        requests=Places(settings.rest_threads + settings.waiting_workers - SPARE_THREADS),
        active=active,
        forwards=Places(max(1, (settings.rest_threads + settings.waiting_workers) * FORWARDS // 8)),
    )
    app.before_request(_enter)
    app.before_request(standby.answer)
    app.teardown_request(_leave)
    app.after_request(_finish)
    modules = (
        jobs, addresses, switches, policy, explain, groups, usage, drops, audit, hosts, overview, health, reservations,
        network_map, joins, instances, external,
    )  # fmt: skip
    api.register(app, tuple(module.blueprint for module in modules))
    app.register_blueprint(pages.blueprint())
    problems.register(app)
    return app


def _enter() -> None:
    """Take a place among the requests that are answered at a time; /healthz needs none.

    Raises Problem 400 for a query string with bytes that are no UTF-8, at which the parsing of parameters fails.
    """
    g.lark_began = time.perf_counter()
    try:
        request.query_string.decode()
    except UnicodeDecodeError as error:
        detail = f"The query string is not UTF-8 (byte {error.start}); write other bytes as %XX of UTF-8."
        raise Problem(400, detail, "parameters") from None
    if request.path == "/healthz":
        return
    if not context.current().requests.take():
        raise Problem(503, "All threads are busy; ask again.", "busy", {"Retry-After": "1"})
    g.lark_place = True


def _leave(error: BaseException | None) -> None:
    if g.pop("lark_place", False):
        context.current().requests.give()


def _finish(response: Response) -> Response:
    # setdefault looks for each by an exception, which takes longer than some views do.
    present = {name.lower() for name, _ in response.headers}
    for name, value in _HEADERS.items():
        if name.lower() not in present:
            response.headers.add(name, value)
    route = request.url_rule.rule if request.url_rule else "none"
    method = request.method if request.method in _METHODS else "other"
    metrics = context.current().metrics
    metrics.http_requests.labels(route, method, str(response.status_code)).inc()
    metrics.http_seconds.labels(route, method).observe(time.perf_counter() - g.lark_began)
    return response
