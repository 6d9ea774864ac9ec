"""The questions of a controller that stands by, and how the active one recognises them.

It asks for counters to read, and which of its switches the active one misses.

The Authorization field has a code (HMAC) by the key of the present term, for this body alone. The origin's code would
not do: a controller that stands by makes one for whatever a stranger sends to it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from lark_controller import __version__
from lark_controller.accounting.shares.messages import LONGEST_ANSWER
from lark_controller.accounting.shares.steps import FORMAT
from lark_controller.api.instances import Standing
from lark_controller.rest.forwarding.active import ActiveController, NoAnswerError, NotReachedError, Request
from lark_controller.rest.forwarding.origin import Head, Origin

COUNTERS: Final = "/v1/instances/counters"
SWITCHES: Final = "/v1/instances/switches"
PATHS: Final = (COUNTERS, SWITCHES)
MEDIA: Final = "application/octet-stream"
# The field with the id of the one that asks.
READER: Final = "Lark-Reader"
_SCHEME: Final = "Lark-Instance"
_PURPOSE: Final = b"lark question 1\n"
# Seconds for the active one's answer.
SECONDS: Final = 5.0


def authorization(standing: Standing, path: str, reader: str, body: bytes) -> str:
    """The Authorization field of a question, in the present term. Another release may calculate otherwise."""
    words = f"{path}\n{standing.generation} {__version__} {FORMAT}\n{reader}\n"
    whole = hmac.new(bytes.fromhex(standing.key), _PURPOSE + words.encode(), hashlib.sha256)
    whole.update(body)
    return f"{_SCHEME} {whole.hexdigest()}"


def is_good(field: str, standing: Standing, path: str, reader: str, body: bytes) -> bool:
    """True where the field is this question's, of an instance of this term and release whose accounts have this
    form."""
    if not (standing.active and standing.key):
        return False
    return hmac.compare_digest(field.encode(), authorization(standing, path, reader, body).encode())


class Questions:
    """Asks the active controller on one path; for one thread."""

    def __init__(self, active: ActiveController, standing: Callable[[], Standing], path: str, reader: str) -> None:
        self._active = active
        self._path = path
        self._standing = standing
        self._reader = reader

    def ask(self, body: bytes) -> bytes | None:
        """Bring a body, and return that of the answer; None where there is none to be had: nobody is active, this
        instance is, or the active one has another release."""
        standing = self._standing()
        if standing.active or not standing.key:
            return None
        field = authorization(standing, self._path, self._reader, body)
        headers = {"Authorization": field, "Content-Type": MEDIA, READER: self._reader}
        request = Request(Head("POST", self._path, field), headers, body, Origin(""), SECONDS)
        try:
            reply = self._active.ask(standing, request)
        except (NotReachedError, NoAnswerError):
            return None
        try:
            found = reply.whole(LONGEST_ANSWER)
        except NoAnswerError:
            return None
        finally:
            reply.close()
        return found if reply.status == HTTPStatus.OK else None
