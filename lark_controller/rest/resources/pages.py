"""The operator's pages: files of this package, the same for everybody. All data comes from the API, with a token.

The files are read once, when the application is made; a request names one of them or gets 404.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from flask import Blueprint, Response, abort, redirect, request
from werkzeug.wrappers import Response as WerkzeugResponse

# Scripts and style sheets come from here alone, nothing stands inline, and no script can make markup out of a text.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    # Asked for again each time, and answered by 304: a new version of the controller is a new version of its pages.
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# The machine's own table of these types differs from system to system.
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file: its bytes, its content type, and a tag that changes with the bytes."""

    data: bytes
    kind: str
    tag: str


def blueprint() -> Blueprint:
    """The routes ``/`` (leads to ``/pages/``), ``/pages/`` and ``/pages/<file>``."""
    made = Blueprint("pages", __name__)
    assets = read(resources.files("lark_controller.rest") / "assets")

    def root() -> WerkzeugResponse:
        # Relative, so that it holds behind a proxy that serves the controller below a path of its own.
        return redirect("pages/")

    def asset(name: str = "index.html") -> Response:
        found = assets.get(name)
        if found is None:
            abort(404)
        response = Response(found.data, content_type=found.kind, headers=_HEADERS)
        response.set_etag(found.tag)
        response.make_conditional(request)
        return response

    made.add_url_rule("/", "root", root)
    made.add_url_rule("/pages/", "index", asset)
    made.add_url_rule("/pages/<path:name>", "asset", asset)
    return made


def read(folder: Traversable, prefix: str = "") -> Mapping[str, Asset]:
    """All files of a folder and those below, by path."""
    found: dict[str, Asset] = {}
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            found |= read(entry, f"{name}/")
            continue
        data = entry.read_bytes()
        suffix = f".{name.rpartition('.')[2]}"
        kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        found[name] = Asset(data, kind, hashlib.sha256(data).hexdigest()[:32])
    return found
