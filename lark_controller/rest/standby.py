"""Answers of an instance that stands by: those of the active one, to which it hands each request on.

``/healthz``, ``/readyz``, ``/metrics``, ``/openapi.json`` and ``/v1/instances`` are answered by every instance itself;
``/metrics?of=active`` is not.
Where the active one cannot be reached the answer is 503 with its URL, and a page that leads there; where it has the
request and does not answer, 502.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from flask import Response, request

from lark_common import log
from lark_common.errors import BusyError, StandbyError
from lark_controller.api.instances import Standing
from lark_controller.rest.auth import AUTHENTICATED, CERTIFICATE, recognise
from lark_controller.rest.context import Context
from lark_controller.rest.forwarding.active import NoAnswerError, NotReachedError, Reply, Request
from lark_controller.rest.forwarding.origin import HANDED_ON, HEADER, Head, Origin
from lark_controller.rest.forwarding.questions import COUNTERS
from lark_controller.rest.problems import STANDBY_RETRY, Problem
from lark_controller.rest.server.admission import peer_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_EVERYWHERE: Final = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/instances")
# Of the requests that are handed on at a time, those without a token that is known here have so small a part.
STRANGERS: Final = 8
# Seconds for an answer, beside those for which the caller lets it wait.
ANSWER_SECONDS: Final = 60.0
LONGEST_WAIT: Final = 600.0
# An answer that is longer is passed on piece by piece.
_AT_ONCE: Final = 1 << 18
# Bytes of an answer that does not announce its length.
_MOST: Final = 1 << 24
_UNAUTHORIZED: Final = 401
# Of one connection alone (RFC 9110, section 7.6.1), or made anew.
_OF_CONNECTION: Final = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "host", "content-length", HEADER.lower(),
    }
)  # fmt: skip
# This server names itself, as the other one does.
_OF_ANSWER: Final = (_OF_CONNECTION - {"content-length"}) | {"server"}
# Characters that stand in a target as they are: all of ASCII that may be in one, so that it stays the caller's own.
_TARGET: Final = "%/?#[]@!$&'()*+,;=:-._~\"<>\\^`{|}"
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Lark: {name} stands by</title>
<h1>{name} stands by</h1>
<p>{what}</p>
</html>
"""


def answer(context: Context, environ: WSGIEnvironment) -> Response | None:
    """Have the request answered by the active instance, where this one stands by and the route needs it. Raises
    StandbyError, BusyError, Problem."""
    path = environ["PATH_INFO"]
    if path in _EVERYWHERE and not (path == "/metrics" and request.args.get("of") == "active"):
        return None
    handed_on = environ.get(HANDED_ON)
    standing = context.controls.instances.standing()
    if handed_on is False:
        if path == COUNTERS:
            context.metrics.counters_read.labels("refused").inc()
        words = "The request was handed on by a controller that has not read the present term, or by none."
        raise StandbyError(words, standing.url)
    if standing.active:
        return None
    # It may be asked by all workers as the active one soon, beside strangers who take strangers' places.
    known = recognise(context)
    # A request is handed on once: the active one may be another by now.
    sentence = standing.sentence
    if handed_on is None and standing.key and context.active is not None:
        try:
            return _handed_on(context, standing, known)
        except NotReachedError:
            log.event("request not handed on", level=log.DEBUG, active=standing.url)
            name = standing.name or "another controller"
            sentence = f"stands by; {name} at {standing.url}, the last that was active, is not reached"
    if request.path == "/" or request.path.startswith("/pages/"):
        return _page(standing)
    raise StandbyError(f"This controller {sentence}.", standing.url)


def _handed_on(context: Context, standing: Standing, known: bool) -> Response:
    """The answer of the active instance. Raises NotReachedError, BusyError, Problem."""
    assert context.active is not None, "the caller has seen to it"
    places, counted = context.forwards, context.metrics.handed_on
    most = places.most if known else max(1, places.most // STRANGERS)
    if not places.take(known, most):
        counted.labels("busy").inc()
        raise BusyError(f"{most} requests are handed on to the active controller already; ask again")
    try:
        reply = context.active.ask(standing, _request())
    except BaseException as error:
        places.give(known)
        counted.labels("unreachable" if isinstance(error, NotReachedError) else "broken").inc()
        if isinstance(error, NoAnswerError):
            raise _no_answer(error, standing) from None
        raise

    def close() -> None:
        reply.close()
        places.give(known)

    try:
        response = _response(reply, close)
    except BaseException as error:
        close()
        counted.labels("broken").inc()
        if isinstance(error, NoAnswerError):
            raise _no_answer(error, standing) from None
        raise
    counted.labels("answered").inc()
    if reply.status != _UNAUTHORIZED and "Authorization" in request.headers:
        request.environ.get(AUTHENTICATED, lambda: None)()
    return response


def _no_answer(error: NoAnswerError, standing: Standing) -> Problem:
    words = (
        f"This controller stands by, and has handed the request on: {error}. It may have been carried out; ask again."
    )
    return Problem(502, words, "unanswered", {"Retry-After": STANDBY_RETRY}, active=standing.url or None)


def _request() -> Request:
    body = request.get_data(cache=False)
    headers = {name: value for name, value in request.headers if name.lower() not in _OF_CONNECTION}
    head = Head(request.method, _target(), request.headers.get("Authorization", ""))
    names = request.environ.get(CERTIFICATE)
    peer = request.remote_addr or ""
    local = not peer_of(peer) or peer == "localhost"
    origin = Origin("" if local else peer, names, unix=peer == "localhost")
    return Request(head, headers, body, origin, ANSWER_SECONDS + _wait())


def _target() -> str:
    """Path and query as the caller has written them."""
    raw: str = request.environ.get("REQUEST_URI") or request.environ.get("RAW_URI") or ""
    if not raw.startswith("/"):
        raw = quote(request.path)
        if request.query_string:
            raw += f"?{request.query_string.decode('latin-1')}"
    return quote(raw.encode("latin-1", "replace"), safe=_TARGET)


def _wait() -> float:
    """The seconds for which the caller lets its request wait."""
    try:
        wait = float(request.args.get("wait", "0"))
    except ValueError:
        return 0.0
    return min(wait, LONGEST_WAIT) if wait > 0.0 else 0.0


def _response(reply: Reply, close: Callable[[], None]) -> Response:
    """The answer as it came; ``close`` is called at its end. Raises NoAnswerError where it breaks off early."""
    headers = [(name, value) for name, value in reply.headers if name.lower() not in _OF_ANSWER]
    length = reply.length
    if length is not None and length > _AT_ONCE:
        response = Response(_pieces(reply), reply.status)
        response.call_on_close(close)
    else:
        response = Response(reply.whole(_MOST), reply.status)
        close()
    response.headers.clear()
    response.headers.extend(headers)
    return response


def _pieces(reply: Reply) -> Iterator[bytes]:
    """The body. Where it breaks off, the caller's connection is closed before the length that was announced."""
    try:
        while piece := reply.piece():
            yield piece
    except NoAnswerError as error:
        log.event("an answer of the active controller broke off", level=log.WARNING, error=error)


def _page(standing: Standing) -> Response:
    url, name = escape(standing.url, quote=True), escape(standing.name or standing.url)
    link = f'<a href="{url}">{name}</a>' if standing.url.startswith(("http://", "https://")) else name
    what = f"The active controller is {link}." if link else f"This controller {escape(standing.sentence)}."
    body = _PAGE.format(name="This controller", what=what)
    return Response(body, 503, {"Retry-After": "1"}, content_type="text/html; charset=utf-8")
