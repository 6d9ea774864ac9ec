"""The keys by which JWTs are verified: public ones of a JWKS, and the signing keys of an HTCondor pool."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jwt import PyJWK, PyJWTError

from lark_common import log
from lark_common.errors import SettingError, UnreadableError
from lark_common.rereading import Rereading
from lark_controller.rest.identities.file import CONDOR_ALGORITHM, KINDS

Key = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | bytes

# The longest JWKS, and the most keys of one that are looked at.
MAX_BYTES: Final = 262_144
MAX_KEYS: Final = 64
# Bits of an RSA key's modulus: fewer prove nothing, more take long.
_LEAST_BITS: Final = 2048
_MOST_BITS: Final = 8192
# Base64 characters of the longest member of a key that is accepted.
_MEMBER: Final = 2048
# The members of public keys; a private key's others are not looked at.
_PUBLIC: Final = ("kty", "n", "e", "crv", "x", "y")

# HTCondor's names of signing keys are those of files.
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_POOL: Final = "POOL"
_SCRAMBLE: Final = b"\xde\xad\xbe\xef"
_MOST_SECRET: Final = 65_536


class Keys(Protocol):
    """The keys of an issuer. Thread-safe, and never waits for a network."""

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key of that id for an algorithm; without an id the only one there is for it."""


class KeySet:
    """The usable keys of a JWKS, by id and algorithm."""

    def __init__(self, keys: Mapping[tuple[str | None, str], Key]) -> None:
        self._keys = dict(keys)

    def __len__(self) -> int:
        return len({kid for kid, _ in self._keys})

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """As :meth:`Keys.find`."""
        if kid is not None:
            return self._keys.get((kid, algorithm))
        fitting = [key for (_, of), key in self._keys.items() if of == algorithm]
        return fitting[0] if len(fitting) == 1 else None


NONE: Final = KeySet({})


def keys_in(text: bytes, algorithms: tuple[str, ...]) -> KeySet:
    """The keys of a JWKS that verify one of these algorithms. Raises ValueError where there is none."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"a JWKS of more than {MAX_BYTES} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no JWKS: an object with the member keys")
    found: dict[tuple[str | None, str], Key] = {}
    for entry in entries[:MAX_KEYS]:
        if not isinstance(entry, dict) or not _is_for_signatures(entry):
            continue
        kid = entry.get("kid")
        for algorithm in algorithms:
            key = _key(entry, algorithm) if isinstance(kid, str | None) else None
            if key is not None:
                found.setdefault((kid, algorithm), key)
    if not found:
        raise ValueError(f"a JWKS without a key for {' or '.join(algorithms)}")
    return KeySet(found)


def _is_for_signatures(entry: Mapping[str, Any]) -> bool:
    operations = entry.get("key_ops", ["verify"])
    return entry.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _key(entry: Mapping[str, Any], algorithm: str) -> Key | None:
    kind, curve = KINDS[algorithm]
    if entry.get("kty") != kind or entry.get("alg", algorithm) != algorithm:
        return None
    if curve is not None and entry.get("crv") != curve:
        return None
    public = {name: entry[name] for name in _PUBLIC if name in entry}
    if any(not isinstance(value, str) or len(value) > _MEMBER for value in public.values()):
        return None
    try:
        key = PyJWK(public, algorithm).key
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey):
        return key if _LEAST_BITS <= key.key_size <= _MOST_BITS else None
    return key if isinstance(key, EllipticCurvePublicKey | Ed25519PublicKey) else None


class KeysFile:
    """The keys of a JWKS on disk, read again when the file changes; one that became unusable changes nothing.

    Raises SettingError at construction.
    """

    def __init__(self, path: Path, algorithms: tuple[str, ...]) -> None:
        self._path = path
        self._algorithms = algorithms
        self._lock = threading.Lock()
        self._file = Rereading(mark(path))
        try:
            self._keys = self._read()
        except (OSError, ValueError) as error:
            kind = UnreadableError if isinstance(error, OSError) else SettingError
            raise kind(f'{path}: {error}; accepted: a JWKS ({{"keys": […]}})') from None

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """As :meth:`Keys.find`."""
        if self._file.is_due(mark(self._path)):
            with self._lock:
                self._reload()
        return self._keys.find(kid, algorithm)

    def _reload(self) -> None:
        now = mark(self._path)
        if not self._file.is_due(now):
            return
        try:
            self._keys = self._read()
            log.event("keys read", file=self._path, keys=len(self._keys))
        except (OSError, ValueError) as error:
            if self._file.failed(now, error, again=isinstance(error, OSError)):
                log.event("keys not read, the former stay", level=log.ERROR, file=self._path, error=error)
            return
        self._file.done(now)

    def _read(self) -> KeySet:
        with self._path.open("rb") as file:
            return keys_in(file.read(MAX_BYTES + 1), self._algorithms)


def mark(path: Path) -> tuple[int, ...]:
    """The file's identity, which changes when the file does; empty where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_ctime_ns


class SigningKeys:
    """The signing keys of an HTCondor pool (``SEC_PASSWORD_DIRECTORY``), a file each, by whose name tokens name them.

    What HTCondor signs with is derived from the file's secret. Files that group or others may read or write are not
    used. Raises SettingError at construction, where there is no such directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            names = [entry.name for entry in directory.iterdir()]
        except OSError as error:
            raise SettingError(f"{directory}: {error.strerror}; accepted: a directory of HTCondor's keys") from None
        if not any(self.find(name, CONDOR_ALGORITHM) for name in names):
            raise SettingError(f"{directory}: no usable key; accepted: files of mode 0600, such as {_POOL}")

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """As :meth:`Keys.find`."""
        name = _POOL if kid is None else kid
        if algorithm != CONDOR_ALGORITHM or not _FILE.fullmatch(name):
            return None
        secret = self._secret(name)
        if not secret:
            return None
        # HTCondor uses the pool's own key twice over, as it was when it was a password.
        whole = secret * 2 if name == _POOL else secret
        return HKDF(SHA256(), 32, b"htcondor", b"master jwt").derive(whole)

    def _secret(self, name: str) -> bytes | None:
        try:
            # A pipe would be waited for without end.
            descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode) or mode & (stat.S_IRWXG | stat.S_IRWXO):
                return None
            stored = file.read(_MOST_SECRET)
        return bytes(byte ^ _SCRAMBLE[place % len(_SCRAMBLE)] for place, byte in enumerate(stored))
