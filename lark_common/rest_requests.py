"""Requests of the REST API, with a token or MUNGE, to one controller or to the active one of several."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from lark_common import munge
from lark_common.controllers import Controllers, urls
from lark_common.endpoint import Endpoint, UnreachableError
from lark_common.errors import SettingError

Answer = dict[str, Any]
Value = TypeVar("Value")

TIMEOUT: Final = 30.0
# Bytes of an answer that are read: more than the longest page has.
MAX_ANSWER: Final = 1 << 28


class RestRequests:
    """Requests, each on a connection of its own; the arguments are those of :class:`lark_common.client.Client`."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        timeout: float = TIMEOUT,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        *,
        whole: bool = False,
        most: int = MAX_ANSWER,
        unverified: bool = False,
        munge_socket: str | None = None,
    ) -> None:
        if token is not None and not (token.isascii() and token.isprintable()):
            raise SettingError("The token has characters that no token has.")
        ends = (Endpoint(each, ca, cert, key, whole=whole, most=most, unverified=unverified) for each in urls(url))
        self._controllers = Controllers(list(ends))
        self._token = token
        self._munge = munge_socket
        self._timeout = timeout
        self._ahead = 0.0

    @property
    def ahead(self) -> float:
        """Seconds by which the server's clock was ahead of this machine's at the last answer, to within a second; 0
        where it had no Date. Times in an answer are by the server's clock."""
        return self._ahead

    def _pages(self, path: str, member: str, chosen: Mapping[str, str | None]) -> Iterator[Answer]:
        query: dict[str, object] = {name: value for name, value in chosen.items() if value is not None}
        while True:
            page = self._json("GET", path, {**query, "limit": 1000})
            yield from page[member]
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: str | None = None,
        kind: str = "text/plain",
        *,
        wait: float | None = None,
        again: bool = True,
    ) -> Answer:
        return self._request(_object, method, path, query, body, kind, wait, again)

    def _request(
        self,
        read: Callable[[bytes], Value],
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: str | None = None,
        kind: str = "text/plain",
        wait: float | None = None,
        again: bool = True,
    ) -> Value:
        headers = {"Accept": "application/json, text/plain;q=0.5", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = f"{kind}; charset=utf-8" if kind != "application/json" else kind
        content = None if body is None else body.encode("utf-8")

        def ask(endpoint: Endpoint, seconds: float, held: float) -> Value:
            asked = (query or {}) if wait is None else {**(query or {}), "wait": held}
            target = path + (f"?{urlencode(asked)}" if asked else "")
            if self._token is None and self._munge is not None:
                # Each is for one request, and for one use.
                made = munge.make(munge.words(method, target, content), self._munge)
                headers["Authorization"] = f"{munge.SCHEME} {made}"
            reply = endpoint.ask(method, target, headers, content, seconds, poll=held > 0)
            self._ahead = reply.ahead
            try:
                return read(reply.data)
            except (ValueError, RecursionError):
                raise UnreachableError(f"{endpoint.url} does not answer as a Lark controller does.", True) from None

        return self._controllers.ask(ask, self._timeout, wait or 0.0, again)


def _object(data: bytes) -> Answer:
    """The JSON object. Raises ValueError, RecursionError."""
    answer = json.loads(data)
    if not isinstance(answer, dict):
        raise ValueError("no JSON object")
    return answer
