"""Authenticates the caller and checks its scopes: bearer tokens and JWTs with scopes, failed attempts and rates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from flask import g, request

from lark_common import log, munge
from lark_common.limits import network_of
from lark_controller.api.joins import ForeignJoin
from lark_controller.rest.context import Context
from lark_controller.rest.identities.identities import Identities, RefusedTokenError, known_callers
from lark_controller.rest.identities.munge import MungeUsers, credential_in
from lark_controller.rest.problems import Problem
from lark_controller.rest.tokens import LONGEST, Scope, Token, is_among, secret_in

# Key in the environment of the call that marks a request as one with a valid token.
AUTHENTICATED = "lark.authenticated"
# The name in the environment of the names in the client's certificate: none where it showed none, and absent where the
# server asks for none (or over a Unix socket).
CERTIFICATE: Final = "lark.certificate"
_NO_CERTIFICATE: Final = "A worker's request needs a certificate of its host (LARK_REST_TLS_CA is set)."
_NO_JOIN: Final = (
    "Nobody joins by this token. Accepted: one with the time at which it was made (iat), its host, and the claims that "
    "give the scope hook, of an issuer with `joins: true` in LARK_JWT_FILE."
)
_NAMED: Final = 5
# A JWT has three parts.
_DOTS: Final = 2
# The scopes whose callers may see all that an operation shows, of every host.
_WITHOUT_BOUNDS: Final = frozenset(Scope) - {Scope.HOOK, Scope.SELF}
_REALM = 'Bearer realm="lark"'
# Bytes of a body that a MUNGE credential may be for.
_MUNGED_BYTES: Final = 1 << 16


def require(context: Context, accepted: tuple[Scope, ...]) -> None:
    """Let the request pass only with a token of one of the scopes, and at its rate. Raises Problem: 401, 403, 429."""
    environ = request.environ
    token = _token(context, environ.get("HTTP_AUTHORIZATION"))
    if token.scopes and (mark := environ.get(AUTHENTICATED)) is not None:
        # Its connection and address are not a stranger's from now on.
        mark()
    if not token.allows(accepted):
        words = " or ".join(accepted)
        challenge = f'{_REALM}, error="insufficient_scope", scope="{" ".join(accepted)}"'
        detail = f"The token {token.name} lacks the scope that this needs: {words}."
        raise Problem(403, detail, "scope", {"WWW-Authenticate": challenge})
    short = context.rates.take(token.name)
    if short:
        detail = f"The token {token.name} makes more than {context.settings.rate_limit:g} requests a second."
        raise Problem(429, detail, "rate", {"Retry-After": _seconds(short)})
    whole = token.allows(_WITHOUT_BOUNDS.intersection(accepted))
    by_hook = not whole and Scope.HOOK in accepted and Scope.HOOK in token.scopes
    # Without the proxy, which takes three calls for each of its attributes.
    own = g._get_current_object()
    own.lark_token = token
    own.lark_by_hook = by_hook
    # The user to whose jobs the request is confined; None for a caller that may see all that the operation shows.
    own.lark_user = None if whole or by_hook else token.user or ""


def recognise(context: Context) -> bool:
    """Count the caller as no stranger where its token is known, and return whether it is; asks no issuer, and refuses
    nobody."""
    known = known_callers(context.tokens, context.identities)
    token = known(request.headers.get("Authorization", ""))
    if token is None or not token.scopes:
        return False
    request.environ.get(AUTHENTICATED, lambda: None)()
    return True


def require_join(context: Context) -> str | ForeignJoin:
    """The id of a request's join token, which is good for nothing else; or a JWT by which its host may join. Raises
    Problem: 401, 429."""
    assert context.joining is not None, "where nobody may join, no join token is looked for"
    secret = secret_in(request.headers.get("Authorization", "")) or ""
    join: str | ForeignJoin | None = None
    if len(secret) <= LONGEST:
        join = context.joining.join_tokens.find(secret) or _foreign_join(context, secret)
    if join is None:
        raise _refused(context, "The join token is not known, or has expired; make one: lark join add.", "join token")
    request.environ.get(AUTHENTICATED, lambda: None)()
    short = context.rates.take(f"join {join if isinstance(join, str) else join.id}")
    if short:
        raise Problem(429, "Too many workers join at once.", "rate", {"Retry-After": _seconds(short)})
    return join


def _foreign_join(context: Context, secret: str) -> ForeignJoin | None:
    """The right to join by a JWT; None of what is none. Raises Problem 401."""
    if context.identities is None or secret.count(".") != _DOTS:
        return None
    token = _identified(context, context.identities, secret)
    if token.joins is None or token.hosts is None:
        raise _refused(context, _NO_JOIN, "no token to join by")
    (host,) = token.hosts
    return ForeignJoin(hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest(), host, token.joins)


def require_host(host: str) -> None:
    """Let a request that is a hook's go on only where its token, and its certificate over mutual TLS, are good for a
    host. Raises Problem 403."""
    if not g.lark_by_hook:
        return
    token: Token = g.lark_token
    if token.hosts is not None and not is_among(host, token.hosts):
        raise _elsewhere(f"The token {token.name} is good for {_listed(token.hosts)}, not for {host}.")
    names = request.environ.get(CERTIFICATE)
    if names is not None and not is_among(host, names):
        shown = f"The certificate is that of {_listed(names)}, not of {host}." if names else _NO_CERTIFICATE
        raise _elsewhere(shown)


def is_bound() -> bool:
    """True if the request is a hook's and its token is good for some hosts alone."""
    return g.lark_by_hook and (g.lark_token.hosts is not None or request.environ.get(CERTIFICATE) is not None)


def require_host_of(context: Context, job_id: str) -> None:
    """As :func:`require_host`, for the host of a job. Raises Problem 403, NotFoundError."""
    if is_bound():
        require_host(context.controls.jobs.host_of(job_id))


def _elsewhere(detail: str) -> Problem:
    return Problem(403, detail, "host")


def _listed(hosts: Sequence[str]) -> str:
    named = ", ".join(hosts[:_NAMED])
    return f"{named} and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else named


def _token(context: Context, header: str | None) -> Token:
    if header is None:
        raise Problem(401, "A bearer token is needed: Authorization: Bearer ….", "token", {"WWW-Authenticate": _REALM})
    if context.munge is not None and (credential := credential_in(header)) is not None:
        return _munged(context, context.munge, credential)
    secret = secret_in(header)
    if secret is None:
        raise _refused(context, "Only bearer tokens are accepted: Authorization: Bearer ….", "no bearer token")
    token = context.tokens.find(secret)
    if token is None and context.identities is not None and secret.count(".") == _DOTS:
        return _identified(context, context.identities, secret)
    if token is None:
        raise _refused(context, "The token is not known.", "unknown token")
    if context.tokens.expired(token):
        raise _refused(context, f"The token {token.name} has expired.", "expired token")
    return token


def _identified(context: Context, identities: Identities, secret: str) -> Token:
    """The rights by a JWT. Raises Problem 401, 429."""
    try:
        return identities.token(secret)
    except RefusedTokenError as error:
        raise _refused(context, f"The token is not accepted: {error}.", str(error)) from None


def _munged(context: Context, users: MungeUsers, credential: str) -> Token:
    """The rights by a MUNGE credential, which is for this request alone."""
    if (request.content_length or 0) > _MUNGED_BYTES:
        raise Problem(413, f"The body is larger than {_MUNGED_BYTES} bytes, the most with a MUNGE credential.")
    target = f"{quote(request.path)}?{request.query_string.decode('latin-1')}".removesuffix("?")
    try:
        return users.token(credential, munge.words(request.method, target, request.get_data()))
    except RefusedTokenError as error:
        raise _refused(context, f"The MUNGE credential is not accepted: {error}.", f"MUNGE: {error}") from None


def _refused(context: Context, detail: str, reason: str) -> Problem:
    """A refusal; a peer that was refused too often gets no more than that.

    A valid token is accepted all the same, so that no client is locked out by another behind the same address:
    guessing 256 random bits is hopeless at any rate, and it is the log and the processor that want protection.
    """
    peer = request.remote_addr or "unix"
    short = context.failures.take(network_of(peer))
    if short:
        return Problem(429, "Too many refused tokens from this address.", "rate", {"Retry-After": _seconds(short)})
    log.event("token refused", level=log.WARNING, peer=peer, reason=reason)
    challenge = f'{_REALM}, error="invalid_token", error_description="{reason}"'
    return Problem(401, detail, "token", {"WWW-Authenticate": challenge})


def _seconds(short: float) -> str:
    return str(max(1, math.ceil(short)))
