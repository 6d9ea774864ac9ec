"""The keys of an issuer that is asked for them: :class:`IssuerKeys`."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
from typing import Final
from urllib.parse import urlsplit

from lark_common import log
from lark_common.endpoint import AnswerInTime
from lark_common.errors import SettingError
from lark_common.threads import StoppableThread
from lark_controller.rest.identities.keys import MAX_BYTES, NONE, Key, keys_in

# Keys are asked for so often; after a failure, and for an id that is unknown, so often at most.
REFRESH_SECONDS: Final = 900.0
LEAST_SECONDS: Final = 30.0
# The time limit of one answer, from the connection on.
ANSWER_SECONDS: Final = 10.0
_DISCOVERY: Final = "/.well-known/openid-configuration"


class IssuerKeys:
    """The keys that an issuer publishes, read by a thread of its own over HTTPS. The last ones stay when it is away.

    Callers never wait for the issuer: a key id that is unknown makes the thread ask again, at most every
    :data:`LEAST_SECONDS`, however many unknown ids there are.
    """

    def __init__(
        self, issuer: str, algorithms: tuple[str, ...], ca: str | os.PathLike[str] | None, least: float = LEAST_SECONDS
    ) -> None:
        self._issuer = issuer
        self._algorithms = algorithms
        self._least = least
        try:
            self._tls = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"{issuer}: ca: {ca}: cannot be used: {error}") from None
        self._keys = NONE
        self._requested = threading.Event()
        self.thread = StoppableThread(f"lark-keys {urlsplit(issuer).hostname}", self._work, wake=self._requested.set)

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key of that id for an algorithm; without an id the only one there is for it."""
        found = self._keys.find(kid, algorithm)
        if found is None:
            self._requested.set()
        return found

    def _work(self) -> None:
        while True:
            self._requested.clear()
            began = time.monotonic()
            pause = REFRESH_SECONDS if self._read() else self._least
            self._requested.wait(pause)
            if self.thread.stopping or self.thread.pause(max(0.0, began + self._least - time.monotonic())):
                return

    def _read(self) -> bool:
        try:
            keys = keys_in(self._get(self._address()), self._algorithms)
        except (OSError, ValueError, http.client.HTTPException) as error:
            held = len(self._keys)
            log.event("keys not read", level=log.WARNING, issuer=self._issuer, error=error, former_keys=held)
            return False
        if not len(self._keys):
            log.event("keys read", issuer=self._issuer, keys=len(keys))
        self._keys = keys
        return True

    def _address(self) -> str:
        """The address of the keys, as the issuer's own description has it."""
        text = self._get(self._issuer.rstrip("/") + _DISCOVERY)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"{_DISCOVERY} is no JSON") from None
        if not isinstance(document, dict) or document.get("issuer") != self._issuer:
            raise ValueError(f"{_DISCOVERY} is another issuer's")
        address = document.get("jwks_uri")
        if not isinstance(address, str):
            raise ValueError(f"{_DISCOVERY} has no jwks_uri")
        return address

    def _get(self, address: str) -> bytes:
        """A document over HTTPS, of a bounded size and in a bounded time; no redirection is followed. Raises OSError,
        ValueError, HTTPException."""
        parts = urlsplit(address)
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError(f"{address!a} is no address over HTTPS")
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=ANSWER_SECONDS, context=self._tls)
        connection.response_class = type("", (AnswerInTime,), {"seconds": ANSWER_SECONDS})
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": "application/json", "Connection": "close"})
            with connection.getresponse() as answer:
                text = answer.read(MAX_BYTES + 1)
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(f"{address!a} answers with status {answer.status}")
        return text
