"""``/v1/joins`` and ``/v1/join``: workers get what they need by a join token, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from flask import request

from lark_common import log
from lark_common.errors import NotFoundError, SettingError, StateError
from lark_controller.api.joins import ForeignJoin, JoinToken
from lark_controller.rest.api import operation, resource
from lark_controller.rest.auth import require_join
from lark_controller.rest.bodies import read_json
from lark_controller.rest.context import actor, current
from lark_controller.rest.joins.joining import Admission, Joining
from lark_controller.rest.problems import Problem
from lark_controller.rest.schemas.joins import (
    AdmissionSchema,
    AuthoritySchema,
    JoinedWorkersSchema,
    JoinSchema,
    JoinTokensSchema,
    JoinWishSchema,
    NewJoinTokenSchema,
)
from lark_controller.rest.tokens import Scope, is_among

blueprint = resource("joins", "Workers that join by a join token.")

# Bytes of the largest list of hosts, and of what a worker sends.
MAX_WISH: Final = 524_288
MAX_JOIN: Final = 16_384
_OPERATOR: Final = "operator"


@operation(
    blueprint,
    "POST",
    "/joins",
    name="add_join_token",
    scopes=(Scope.OPERATE,),
    bodies={"application/json": JoinWishSchema},
    answers={201: NewJoinTokenSchema},
    problems=(400, 409, 413, 415, 422),
)
def add() -> dict[str, object]:
    """Make a join token for some hosts; each may join once by it."""
    joining = _joining()
    wish = read_json(MAX_WISH, JoinWishSchema())
    _refuse_own_names(joining, wish["hosts"])
    made, secret = joining.join_tokens.add(wish["hosts"], wish["seconds"], actor())
    log.event("join token made", id=made.id, actor=made.actor, hosts=len(made.hosts))
    return {**_shown(made), "token": joining.token(secret)}


@operation(
    blueprint,
    "GET",
    "/joins",
    name="list_join_tokens",
    scopes=(Scope.OPERATE,),
    answers={200: JoinTokensSchema},
    problems=(409,),
)
def index() -> dict[str, object]:
    """List the join tokens that are good, each with the hosts that have joined by it."""
    return {"tokens": [_shown(token) for token in _joining().join_tokens.listed()]}


@operation(
    blueprint,
    "DELETE",
    "/joins/<join_id>",
    name="remove_join_token",
    scopes=(Scope.OPERATE,),
    answers={200: JoinTokensSchema},
    problems=(404, 409),
)
def remove(join_id: str) -> dict[str, object]:
    """Take a join token out of force; workers that have joined by it stay. Lists those that are left."""
    _joining().join_tokens.remove(join_id, actor())
    log.event("join token removed", id=join_id, actor=actor())
    return index()


@operation(
    blueprint,
    "GET",
    "/joined",
    name="list_joined_workers",
    scopes=(Scope.OPERATE,),
    answers={200: JoinedWorkersSchema},
    problems=(409,),
)
def joined() -> dict[str, object]:
    """List the workers whose tokens are good because they have joined."""
    workers = _joining().join_tokens.workers()
    return {
        "workers": [
            {
                "host": each.host,
                "joined_at": each.at,
                "joined_from": each.peer or None,
                "join_token": each.join_id or None,
            }
            for each in workers
        ]
    }


@operation(
    blueprint,
    "DELETE",
    "/joined/<host>",
    name="revoke_joined_worker",
    scopes=(Scope.OPERATE,),
    answers={200: JoinedWorkersSchema},
    problems=(404, 409),
)
def revoke(host: str) -> dict[str, object]:
    """Refuse the token of a worker that has joined, at every instance. Lists those that are left."""
    revoked = _joining().join_tokens.revoke(host, actor())
    log.event("worker's token revoked", host=revoked, actor=actor())
    return joined()


@operation(
    blueprint, "GET", "/authority", name="read_authority", scopes=(), answers={200: AuthoritySchema}, problems=(409,)
)
def authority() -> dict[str, str]:
    """Show the certificates that a worker is to trust, which it compares with its join token."""
    return {"authority": _joining().authority}


@operation(
    blueprint,
    "POST",
    "/join",
    name="join",
    scopes=(),
    bodies={"application/json": JoinSchema},
    answers={200: AdmissionSchema},
    problems=(400, 401, 403, 409, 413, 415, 422, 429),
)
def join() -> Admission:
    """Let a worker join; the bearer token is the last part of its join token, or a JWT by whose issuer workers join."""
    joining = _joining()
    bearer = require_join(current())
    sent = read_json(MAX_JOIN, JoinSchema())
    peer = request.remote_addr or "unix"
    host = sent["host"]
    join_id = bearer
    if isinstance(bearer, ForeignJoin):
        # Of join tokens that was looked at when they were made.
        _refuse_own_names(joining, (host,))
        join_id = bearer.id
    if sent["request"] is not None and not joining.signs:
        raise Problem(
            409,
            "This controller signs no certificates (LARK_JOIN_KEY is not set). Put the key and the certificate of "
            f"{host}, signed by the site's authority, into /etc/lark/switch.key and /etc/lark/switch.pem of the "
            "worker, and run lark-worker setup again.",
            "join",
        )
    try:
        admitted = joining.admit(bearer, host, peer, sent["sha256"], sent["request"])
    except ValueError as error:
        detail = f"request: {error}"
        raise Problem(422, detail, "parameters", errors=[{"parameter": "request", "problem": str(error)}]) from None
    except NotFoundError as error:
        log.event("join refused", level=log.WARNING, id=join_id, host=host, peer=peer, reason="another host")
        raise Problem(403, _sentence(error), "join") from None
    except StateError as error:
        log.event("join refused", level=log.WARNING, id=join_id, host=host, peer=peer, reason="used before, or revoked")
        raise Problem(409, _sentence(error), "join") from None
    log.event("worker joined", id=join_id, host=admitted.host, peer=peer, signed=admitted.certificate is not None)
    return admitted


def _refuse_own_names(joining: Joining, hosts: Iterable[str]) -> None:
    """Refuse names of controllers. Raises Problem 409."""
    others = _other_controllers()
    for host in hosts:
        if joining.is_own_name(host) or is_among(host, others) or host == _OPERATOR:
            raise Problem(409, f"{host} is a name of a controller, which no worker may join under.", "join")


def _other_controllers() -> set[str]:
    """The names of the controllers beside this one, whose certificates this one does not have."""
    known = current().controls.instances.all()
    own = {each.name for each in known.instances if each.id == known.active}
    others = [each for each in known.instances if each.name not in own]
    return {each.name for each in others} | {urlsplit(each.url).hostname or "" for each in others}


def _joining() -> Joining:
    found = current().joining
    if found is None:
        raise Problem(
            409, "Workers cannot join here: LARK_JOIN_SETTINGS is not set (lark setup --joins sets it).", "join"
        )
    return found


def _sentence(error: NotFoundError | StateError | SettingError) -> str:
    text = str(error)
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _shown(token: JoinToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "expires_at": token.expires,
        "actor": token.actor,
        "hosts": [
            {"host": host, "joined_at": used and used.at, "joined_from": used and used.peer}
            for host, used in token.hosts.items()
        ],
    }
