"""Answers of an instance that stands by: 503 with the active one's URL, and a page that leads there.

``/healthz``, ``/readyz``, ``/metrics``, ``/openapi.json`` and ``/v1/instances`` are answered by every instance.
"""

from __future__ import annotations

from html import escape
from typing import Final

from flask import Response, request

from lark_common.errors import StandbyError
from lark_controller.api.instances import Standing
from lark_controller.rest.auth import recognise
from lark_controller.rest.context import current

_EVERYWHERE: Final = ("/healthz", "/readyz", "/metrics", "/openapi.json")
_INSTANCES: Final = "/v1/instances"
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Lark: {name} stands by</title>
<h1>{name} stands by</h1>
<p>{what}</p>
</html>
"""


def refuse() -> Response | None:
    """Answer the request where this instance stands by and the route needs the active one. Raises StandbyError."""
    path = request.path
    if path in _EVERYWHERE or path == _INSTANCES or path.startswith(f"{_INSTANCES}/"):
        return None
    standing = current().controls.instances.standing()
    if standing.active:
        return None
    if path == "/" or path.startswith("/pages/"):
        return _page(standing)
    # It may be asked by all workers as the active one soon, beside strangers who take strangers' places.
    recognise(current())
    raise StandbyError(f"This controller {standing.sentence}.", standing.url)


def _page(standing: Standing) -> Response:
    url, name = escape(standing.url, quote=True), escape(standing.name or standing.url)
    link = f'<a href="{url}">{name}</a>' if standing.url.startswith(("http://", "https://")) else name
    what = f"The active controller is {link}." if link else f"This controller {escape(standing.sentence)}."
    body = _PAGE.format(name="This controller", what=what)
    return Response(body, 503, {"Retry-After": "1"}, content_type="text/html; charset=utf-8")
