"""The controllers that ``lark-worker setup`` is given: their URLs, and the look whether each is one of the site's
before it gets anything."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from lark_common.client import Client, ProblemError, UnreachableError
from lark_common.controllers import UNAVAILABLE, urls
from lark_common.errors import SettingError
from lark_worker.errors import RefusedError

# Seconds that a request may take, and the largest answer.
TIMEOUT: Final = 15.0
MOST: Final = 1 << 20
_HTTPS: Final = 443
_ACCEPTED: Final = (
    "accepted: https://NAME:PORT, since tokens go there; of several controllers all, with commas or spaces between"
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificates of the authority that controllers show: those ``there`` show the right ones, those ``away`` did
    not answer, with the reason of each."""

    authority: str
    there: tuple[str, ...]
    away: Mapping[str, str]


def given(text: str) -> tuple[str, ...]:
    """The URLs of controllers in a list, each controller once. Raises SettingError."""
    found: dict[tuple[str, int, str], str] = {}
    if not re.sub(r"[\s,]", "", text):
        raise SettingError(f"--controller: {_ACCEPTED}")
    for url in urls(text):
        bare = url.rstrip("/")
        try:
            parts = urlsplit(bare)
            fits = parts.scheme == "https" and parts.hostname and parts.port != 0 and "@" not in parts.netloc
        except ValueError as error:
            raise SettingError(f"--controller {url}: {error}; {_ACCEPTED}") from None
        if not fits or parts.query or parts.fragment:
            raise SettingError(f"--controller {url}: {_ACCEPTED}")
        found.setdefault(endpoint_of(bare), bare)
    return tuple(found.values())


def endpoint_of(url: str) -> tuple[str, int, str]:
    """The name or address of a URL, its port and its path: the same for two texts of one. Raises nothing."""
    try:
        parts = urlsplit(url.rstrip("/"))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url, 0, ""
    with suppress(ValueError):
        host = str(ip_address(host))
    return (host if parts.scheme == "https" else f"{parts.scheme}:{host}"), port or _HTTPS, parts.path


def has_all(known: Iterable[str], wanted: Iterable[str]) -> bool:
    """True where a list of URLs has each of others."""
    return {*map(endpoint_of, wanted)} <= {*map(endpoint_of, known)}


def digest(authority: str) -> bytes:
    """The hash by which a join token names certificates."""
    return hashlib.sha256(authority.encode("utf-8", "surrogatepass")).digest()


def seen(controllers: Iterable[str], pin: bytes, named: str) -> Shown:
    """Ask each controller, unverified, for the certificates of its authority, which nobody else can have sent: ``pin``
    is their hash, and ``named`` is what has it. Nothing else is sent to any.

    Raises RefusedError where an answer is another's.
    """
    authority, there, away = "", [], {}
    for url in controllers:
        try:
            authority = Client(url, timeout=TIMEOUT, whole=True, most=MOST, unverified=True).authority()
        except UnreachableError as error:
            away[url] = str(error)
            continue
        except ProblemError as error:
            if error.status not in UNAVAILABLE:
                raise RefusedError(f"{url}: {error}") from None
            away[url] = f"{url}: {error}"
            continue
        if digest(authority) != pin:
            raise RefusedError(
                f"{url} shows another authority than {named}: somebody else answers there, or the token is of another "
                "site or of before its authority was renewed. Compare --controller, and make a new token: lark join add"
            )
        there.append(url)
    return Shown(authority, tuple(there), away)
