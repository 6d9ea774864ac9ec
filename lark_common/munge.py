"""MUNGE credentials that prove who makes a request: made by ``munge``, verified by ``unmunge``, each by its own daemon.

A credential names the user by the kernel's word, is good for a few minutes, and for one use on each host. Here it also
carries the request, so that one that was seen on its way is good for nothing else. MUNGE's own programs are
called: they find the daemon's socket, and hold no key.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from typing import Final, NamedTuple
from urllib.parse import unquote

from lark_common.errors import LarkError

SCHEME: Final = "MUNGE"
# Bytes of a credential: several times those of one with a long path in it.
MOST: Final = 4096

_PATIENCE: Final = 5.0
_CREDENTIAL: Final = re.compile(r"MUNGE:[A-Za-z0-9+/=]+:")
_FIELD: Final = re.compile(rb"^(STATUS|UID): +([0-9]{1,10})$", re.MULTILINE)
# Codes of libmunge (munge.h), with which unmunge exits.
_REASONS: Final = {
    6: "munged does not answer",
    8: "it is no credential",
    14: "it is of another site, or was changed",
    15: "it has expired",
    16: "its time is ahead: the clocks differ",
    17: "it was shown before",
}


class MungeError(LarkError):
    """No credential can be made, or one proves nothing. The text has nothing of the credential in it."""


class Shown(NamedTuple):
    """The user who made a credential, by the number of the account, and what the credential carries."""

    uid: int
    payload: str


def words(method: str, target: str, body: bytes | None) -> str:
    """Join what a request's credential carries: method, path with its query, and the SHA-256 of the body.

    ``target`` is as it is sent; its path is taken without percent-encoding, as a server sees it.
    """
    path, mark, query = target.partition("?")
    return f"{method} {unquote(path)}{mark}{query} {hashlib.sha256(body or b'').hexdigest()}"


def make(payload: str, socket: str = "") -> str:
    """Make a credential of this process's user; ``socket`` is munged's (``""``: where it usually is). Raises
    MungeError."""
    done = _run(["munge", *_at(socket)], payload)
    if done.returncode != 0:
        output = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise MungeError(f"no MUNGE credential: {output[0] if output else _reason(done.returncode)}")
    return done.stdout.decode("ascii", "replace").strip()


def verify(credential: str, socket: str = "") -> Shown:
    """The user who made a credential. A second time it proves nothing. Raises MungeError."""
    if len(credential) > MOST or not _CREDENTIAL.fullmatch(credential):
        raise MungeError(_reason(8))
    done = _run(["unmunge", *_at(socket), "--keys=STATUS,UID", "--numeric"], credential)
    output, _, payload = done.stdout.partition(b"\n\n")
    found = {name: int(value) for name, value in _FIELD.findall(output)}
    if done.returncode != 0 or found.get(b"STATUS") != 0 or b"UID" not in found:
        raise MungeError(_reason(done.returncode))
    return Shown(found[b"UID"], payload.decode("utf-8", "replace"))


def _at(socket: str) -> list[str]:
    return [f"--socket={socket}"] if socket else []


def _run(command: list[str], text: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=text.encode(), capture_output=True, timeout=_PATIENCE, check=False)
    except OSError as error:
        raise MungeError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise MungeError(_reason(6)) from None


def _reason(code: int) -> str:
    return _REASONS.get(code, f"munged refuses it (code {code})")
