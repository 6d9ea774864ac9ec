"""The origin of a request that one controller hands on to another, in a header that only controllers can make.

The header has a code (HMAC) by the key of the present term, which is in the database: whoever can read it there is one
of the controllers. A caller that sends such a header itself is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

# The header, and its name among the fields of a request that has been parsed.
HEADER: Final = "Lark-Origin"
FIELD: Final = "LARK_ORIGIN"
# The name in the environment of a call: True where the request was handed on by a controller of this term, False where
# the header is another's; absent without a header.
HANDED_ON: Final = "lark.handed_on"
_LONGEST: Final = 16_384
_PARTS: Final = 2
_PURPOSE: Final = b"lark origin 1"


@dataclass(frozen=True, slots=True)
class Origin:
    """The caller of a request, as the controller that it has asked saw it.

    ``address`` is ``""`` for a caller on that controller's own machine. ``names`` are the hosts in its certificate,
    None where it was not asked for one; ``unix``: it came by a Unix socket, where nobody is asked for any.
    """

    address: str
    names: tuple[str, ...] | None = None
    unix: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The request and the token for which alone an origin is good."""

    method: str
    target: str
    authorization: str


# Reads the header of a request; None where no controller of this term has made it.
Origins = Callable[[str, Head], Origin | None]


def nowhere(_header: str, _head: Head) -> Origin | None:
    """Trusts no header."""
    return None


def sealed(key: str, generation: int, origin: Origin, head: Head) -> str:
    """The header's value."""
    words = json.dumps({"generation": generation, **asdict(origin)}, separators=(",", ":"))
    payload = base64.urlsafe_b64encode(words.encode()).decode()
    return f"{payload}.{_code(key, payload, head)}"


def opened(key: str, generation: int, header: str, head: Head) -> Origin | None:
    """The origin in a header; None where it was not made by this key, for this term and this request."""
    parts = header.split(".")
    if not key or len(header) > _LONGEST or len(parts) != _PARTS or not header.isascii():
        return None
    payload, code = parts
    if not hmac.compare_digest(code, _code(key, payload, head)):
        return None
    found: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(payload))
    if found["generation"] != generation:
        return None
    names = found["names"]
    return Origin(found["address"], None if names is None else tuple(names), found["unix"])


def _code(key: str, payload: str, head: Head) -> str:
    whole = hmac.new(bytes.fromhex(key), _PURPOSE, hashlib.sha256)
    for part in (payload, head.method, head.target, head.authorization):
        data = part.encode("utf-8", "surrogatepass")
        whole.update(b"%d:" % len(data))
        whole.update(data)
    return whole.hexdigest()
