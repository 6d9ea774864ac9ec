"""Requests of whoever reaches the API: answered, and never by an error of the controller's own."""

from __future__ import annotations

import io
import logging
import tempfile
from pathlib import Path
from typing import Final, NoReturn

from waitress.adjustments import Adjustments
from werkzeug.test import run_wsgi_app

from lark_controller.rest.server.request_parser import RequestParser
from tests.fixtures.fake_controls import TOKENS
from tests.fixtures.rest_app import make_api

MAX_BYTES: Final = 4096
DICTIONARY: Final = tuple(
    word.encode()
    for word in (
        "GET /v1/jobs", "POST /v1/jobs", "DELETE /v1/jobs/", "PUT /v1/policy", "POST /v1/policy/plan",
        "POST /v1/policy/check", "GET /v1/explain?src=10.0.0.1&dst=", "POST /v1/reservations", "GET /v1/hosts",
        "PATCH /v1/reservations/", "GET /v1/usage", "GET /v1/switches/", "GET /v1/addresses/", "GET /metrics", "/renew",
        "/counters", "/rules", " HTTP/1.1\r\n", "Content-Length: ", "Content-Type: application/json",
        "Transfer-Encoding: chunked", "Authorization: Bearer ", "If-Match: ",
        "Accept: text/plain", "\r\n\r\n", "?wait=", "&limit=", "&cursor=",
        '{"', '": ', "\n------\n", 'Owner = "x"', "%00", "%ff", "..", "ſ", "1e999", "-1", "T00:00:00Z",
    )
)  # fmt: skip
logging.disable(logging.CRITICAL)
_FOLDER: Final = tempfile.TemporaryDirectory(prefix="lark-fuzz-")
_API: Final = make_api(Path(_FOLDER.name), rate_limit="1000000", rate_burst="1000000")
_API.tokens.write_text(_API.tokens.read_text().replace("scopes: [read]", "scopes: [hook, operate]"))
# An error of the controller's own comes out as it is, so that a finding says where.
_API.app.config["PROPAGATE_EXCEPTIONS"] = True
_ADJUSTMENTS: Final = Adjustments(max_request_header_size=32768, max_request_body_size=1 << 20)


def _raise(error: Exception) -> NoReturn:
    raise error


_API.app.register_error_handler(Exception, _raise)


def run(data: bytes) -> None:
    """Send ``data`` as one request, with a token unless it brings its own."""
    parser = RequestParser(_ADJUSTMENTS)
    parser.received(data)
    if parser.error is not None or parser.empty or not parser.headers_finished:
        return
    body = parser.get_body_stream().read() if parser.completed else b""
    environ = {
        "REQUEST_METHOD": parser.command.upper(),
        "SCRIPT_NAME": "",
        "PATH_INFO": parser.path,
        "QUERY_STRING": parser.query,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": "fuzz",
        "SERVER_PORT": "8080",
        "REMOTE_ADDR": "192.0.2.1",
        "HTTP_AUTHORIZATION": f"Bearer {TOKENS['read']}",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    # As waitress names them.
    for name, value in parser.headers.items():
        environ[name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"] = value
    environ["CONTENT_LENGTH"] = str(len(body))
    answer, status, _ = run_wsgi_app(_API.app, environ)
    text = b"".join(answer)
    code = int(status.split()[0])
    assert code < 500 or code == 503, text
