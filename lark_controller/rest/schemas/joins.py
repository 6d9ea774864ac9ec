"""Schemas of join tokens, and of workers that join by them."""

from __future__ import annotations

from typing import Any, Final

from marshmallow import Schema, ValidationError, fields, validate

from lark_controller.api.joins import MOST_HOSTS
from lark_controller.rest.joins.certificates import LONGEST_NAME
from lark_controller.rest.joins.join_tokens import LONGEST, SHORTEST
from lark_controller.rest.schemas.members import a_flag, a_number, a_text, maybe_number, maybe_text, meta
from lark_controller.rest.schemas.queries import Whole
from lark_controller.rest.schemas.times import Time

HOST: Final = r"^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"
# Characters of a request for a certificate; one with an RSA key of 4,096 bits has 1,700.
MOST_REQUEST: Final = 8192
_HOST: Final = [validate.Length(1, LONGEST_NAME), Whole(HOST, error="a host's name in full is accepted")]
_DIGEST: Final = [validate.Length(64, 64), Whole(r"^[0-9a-f]{64}$", error="64 hexadecimal digits are accepted")]


def _once(hosts: list[Any]) -> None:
    if len({str(each).lower() for each in hosts}) < len(hosts):
        raise ValidationError("each host is accepted once")


class JoinWishSchema(Schema):
    """A join token to be made."""

    hosts = fields.List(
        fields.String(validate=_HOST),
        required=True,
        validate=[validate.Length(1, MOST_HOSTS), _once],
        metadata=meta("The hosts that may join, each once"),
    )
    seconds = fields.Float(
        required=True,
        validate=validate.Range(SHORTEST, LONGEST, error="{min} to {max} seconds are accepted"),
        metadata=meta("For how long it is good"),
    )


class JoinedSchema(Schema):
    """A host of a join token."""

    host = a_text("The host")
    joined_at = Time("When it has joined; null: it has not", allow_none=True)
    joined_from = maybe_text("The address from which it has joined; null: it has not")


class JoinTokenSchema(Schema):
    """A join token without its secret."""

    id = a_text("Its id, by which it is removed")
    expires_at = Time("When it ends")
    actor = a_text("By whose token it was made")
    hosts = fields.List(fields.Nested(JoinedSchema), required=True, metadata=meta("Its hosts"))


class NewJoinTokenSchema(JoinTokenSchema):
    """A join token that was just made."""

    token = a_text("The join token, which is shown this once")


class JoinTokensSchema(Schema):
    """The join tokens that are good now."""

    tokens = fields.List(fields.Nested(JoinTokenSchema), required=True, metadata=meta("The first to end first"))


class JoinedWorkerSchema(Schema):
    """A worker that has joined."""

    host = a_text("The host")
    joined_at = Time("When it has joined")
    joined_from = maybe_text("The address from which it has joined; null where that is not known")
    join_token = maybe_text("The id of its join token; null where that is not known")


class JoinedWorkersSchema(Schema):
    """The workers that have joined."""

    workers = fields.List(fields.Nested(JoinedWorkerSchema), required=True, metadata=meta("By host"))


class AuthoritySchema(Schema):
    """The certificates that a worker is to trust."""

    authority = a_text("The certificates (PEM); a join token has the SHA-256 of this text")


class JoinSchema(Schema):
    """A worker that joins."""

    host = fields.String(required=True, validate=_HOST, metadata=meta("Its name"))
    sha256 = fields.String(
        required=True, validate=_DIGEST, metadata=meta("The SHA-256 of the token that the worker has made for itself")
    )
    request = fields.String(
        load_default=None,
        allow_none=True,
        validate=validate.Length(1, MOST_REQUEST),
        metadata=meta("A request (PKCS #10, PEM) for a certificate; null where the worker has one"),
    )


class AdmissionSchema(Schema):
    """A worker that has joined."""

    host = a_text("The host's name as its token and certificate have it")
    certificate = maybe_text("Its certificate (PEM); null where none was asked for")
    settings = fields.Dict(
        keys=fields.String(), values=fields.String(), required=True, metadata=meta("Settings of its worker service")
    )
    openflow_port = a_number("The port to which its switch connects")
    ovsdb_port = maybe_number("The port on which its switch's database is to listen; null: on none")
    shows_certificate = a_flag("True where the worker service is to show the certificate, too")
