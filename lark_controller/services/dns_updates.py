"""Dynamic updates of the DNS (RFC 2136), signed (TSIG, RFC 8945): one name to one address, added and removed.

A prerequisite goes with each, so that a name that others have made is neither changed nor removed, and each may be
sent again.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Final

import dns.exception
import dns.name
import dns.query
import dns.rcode
import dns.tsig
import dns.update

from lark_common.errors import NameServerError
from lark_controller.jobs.external import Association
from lark_controller.settings import Listen

# Seconds for one question and its answer.
TIMEOUT: Final = 5.0
_MOST_BYTES: Final = 65536
# As tsig-keygen writes it.
_KEY: Final = re.compile(
    r"""\s*key\s+"?([\w.-]{1,253})"?\s*\{\s*algorithm\s+"?([\w.-]{1,64})"?\s*;\s*secret\s+"?([A-Za-z0-9+/=]{1,1024})"?\s*;\s*\}\s*;\s*"""
)
_ALGORITHMS: Final = ("hmac-sha256", "hmac-sha384", "hmac-sha512", "hmac-sha224")
_ABSENT: Final = (dns.rcode.NXRRSET, dns.rcode.NXDOMAIN)


class DnsUpdates:
    """Updates at one server, by the key in a file; the file is read at each update, so a new key needs no restart."""

    def __init__(self, server: Listen | None, key_file: Path | None, timeout: float = TIMEOUT) -> None:
        self._server = server
        self._key_file = key_file
        self.timeout = timeout

    def add(self, to: Association, deadline: float) -> None:
        """Add a name with its address. Nothing is sent after ``deadline`` (seconds since 1970). Raises
        NameServerError."""
        name, kind = _name(to), _kind(to)
        update = self._update(to.zone)
        update.absent(name)
        update.add(name, to.ttl, kind, str(to.address))
        code = self._send(update, deadline)
        if code == dns.rcode.YXDOMAIN:
            # By an attempt of which no answer came, it may be there.
            there = self._update(to.zone)
            there.present(name, kind, str(to.address))
            code = self._send(there, deadline)
            if code in _ABSENT:
                raise NameServerError(f"{to.name} is in the zone already, for something else", untouched=True)
        self._check(code)

    def remove(self, to: Association, deadline: float) -> None:
        """Remove a name, if it leads to its address. Raises NameServerError."""
        name, kind = _name(to), _kind(to)
        update = self._update(to.zone)
        update.present(name, kind, str(to.address))
        update.delete(name, kind)
        code = self._send(update, deadline)
        if code not in _ABSENT:
            self._check(code)

    def _update(self, zone: str) -> dns.update.UpdateMessage:
        key = self._key()
        return dns.update.UpdateMessage(zone + ".", keyring={key.name: key}, keyname=key.name)

    def _key(self) -> dns.tsig.Key:
        if self._server is None or self._key_file is None:
            raise _unsent("LARK_DNS_SERVER and LARK_DNS_KEY are not set")
        try:
            with self._key_file.open("rb") as file:
                text = file.read(_MOST_BYTES).decode("ascii", "replace")
        except OSError as error:
            raise _unsent(f"LARK_DNS_KEY: {self._key_file}: {error.strerror}") from None
        # Nothing of the file is in a reason: others read it.
        found = _KEY.fullmatch(text)
        if found is None or found[2].lower() not in _ALGORITHMS:
            accepted = "a key as tsig-keygen writes it, of " + ", ".join(_ALGORITHMS)
            raise _unsent(f"LARK_DNS_KEY: {self._key_file}: no key; accepted: {accepted}")
        try:
            return dns.tsig.Key(found[1], found[3], found[2].lower())
        except (ValueError, dns.exception.DNSException):
            raise _unsent(f"LARK_DNS_KEY: {self._key_file}: the secret is not in base64") from None

    def _send(self, update: dns.update.UpdateMessage, deadline: float) -> dns.rcode.Rcode:
        server, began = self._server, time.monotonic()
        assert server is not None
        left = min(self.timeout, deadline - time.time())
        if left <= 0:
            raise NameServerError("the attempt has taken too long", untouched=True)
        with self._connected(server, left) as connection:
            try:
                answer = dns.query.tcp(update, server.host, began + left - time.monotonic(), sock=connection)
            except dns.tsig.PeerError as error:
                # Such an answer is not signed: anybody on the way may have sent it.
                raise NameServerError(f"the DNS server {server} refuses the key or its signature: {error}") from None
            except (dns.exception.Timeout, OSError, EOFError) as error:
                raise NameServerError(_unanswered(server, error), away=True) from None
            except (dns.exception.DNSException, ValueError) as error:
                raise NameServerError(f"the DNS server {server}: {type(error).__name__} in its answer") from None
        if not answer.had_tsig:
            said = dns.rcode.to_text(answer.rcode())
            raise NameServerError(f"the DNS server {server} answers {said} without a signature")
        return answer.rcode()

    def _connected(self, server: Listen, left: float) -> socket.socket:
        """A connection to the server, apart from what is sent: where there is none, the zone is as it was. Raises
        NameServerError."""
        try:
            connection = socket.create_connection((server.host, server.port), left)
        except OSError as error:
            raise _unsent(_unanswered(server, error)) from None
        connection.setblocking(False)
        return connection

    def _check(self, code: dns.rcode.Rcode) -> None:
        if code != dns.rcode.NOERROR:
            why = f"the DNS server {self._server} answers {dns.rcode.to_text(code)}"
            raise NameServerError(why, untouched=code != dns.rcode.SERVFAIL)


def _unsent(why: str) -> NameServerError:
    return NameServerError(why, away=True, untouched=True)


def _unanswered(server: Listen, error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return f"the DNS server {server}: {os.strerror(number) if number else 'no answer'}"


def _name(to: Association) -> dns.name.Name:
    return dns.name.from_text(to.name + ".")


def _kind(to: Association) -> str:
    return "A" if to.address.version == 4 else "AAAA"
