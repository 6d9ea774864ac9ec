"""Asks whether the controller of this environment answers, for a container's health check:
``python -m lark_controller.cli.health``.

It asks ``/healthz`` at the first address of ``LARK_REST_LISTEN``, by TLS where ``LARK_REST_TLS_CERT`` is set, and ends
with status 0 where that answers 200, else with 1 and the reason.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import sys
from collections.abc import Mapping
from typing import Final

from lark_common.errors import SettingError
from lark_controller import settings as settings_module
from lark_controller.settings import Settings

# Seconds; less than the time that a health check is given.
PATIENCE: Final = 4.0
# Addresses at which a server that listens everywhere is reached on its own machine.
_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def why_not(environment: Mapping[str, str]) -> str:
    """The reason why the controller with these settings is not healthy; ``""`` where it is."""
    try:
        settings = settings_module.load(environment)
        status = _status(settings)
    except (SettingError, OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return "" if status == 200 else f"/healthz answers {status}"


def _status(settings: Settings) -> int:
    connection = _connection(settings)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def _connection(settings: Settings) -> http.client.HTTPConnection:
    listen = settings.rest_listen[0]
    if listen.path:
        local = http.client.HTTPConnection("localhost")
        local.sock = socket.socket(socket.AF_UNIX)
        local.sock.settimeout(PATIENCE)
        local.sock.connect(listen.path)
        return local
    host = _HERE.get(listen.host, listen.host)
    if settings.rest_tls_cert is None:
        return http.client.HTTPConnection(host, listen.port, timeout=PATIENCE)
    # The certificate has the host's public name, and nothing secret is sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, listen.port, timeout=PATIENCE, context=context)


if __name__ == "__main__":
    sys.exit(why_not(os.environ) or 0)
