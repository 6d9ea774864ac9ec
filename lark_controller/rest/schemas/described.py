"""Schemas of values that describe themselves (``api/described.py``)."""

from __future__ import annotations

from collections.abc import Collection
from types import UnionType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from marshmallow import Schema, fields

from lark_controller.accounting.usage import Rate, Usage
from lark_controller.api.described import Form
from lark_controller.rest.schemas.times import Time
from lark_controller.rest.schemas.usage import RateSchema, UsageSchema
from lark_controller.rest.schemas.written import Written

_PLAIN: Final[dict[object, type[fields.Field[Any]]]] = {
    str: fields.String,
    int: fields.Integer,
    float: fields.Float,
    bool: fields.Boolean,
}
_SCHEMAS: Final[dict[object, type[Schema]]] = {Rate: RateSchema, Usage: UsageSchema}


class Datapath(fields.String):
    """A datapath id, written as 16 hexadecimal digits."""

    def __init__(self, meaning: str, **options: Any) -> None:
        super().__init__(required=True, metadata={"description": meaning, "pattern": r"^[0-9a-f]{16}$"}, **options)

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        return f"{value:016x}" if isinstance(value, int) else value


def schema_of(value: type, name: str, *, without: Collection[str] = (), **more: fields.Field[Any]) -> type[Schema]:
    """The schema of a value's members, in their order; ``more`` are members that it calculates."""
    hints = get_type_hints(value, include_extras=True)
    members = {member: _field(hint) for member, hint in hints.items() if member not in without}
    made: type[Schema] = Written.from_dict({**members, **more}, name=name)
    _SCHEMAS.setdefault(value, made)
    return made


def _field(hint: Any) -> fields.Field[Any]:
    kind, *words = get_args(hint)
    options: dict[str, Any] = {}
    if get_origin(kind) is UnionType or type(None) in get_args(kind):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
        options["allow_none"] = True
    if get_origin(kind) is Annotated:
        kind, *forms = get_args(kind)
        words = [*forms, *words]
    meaning = words[-1]
    if Form.TIME in words:
        return Time(meaning, **options)
    if Form.DATAPATH in words:
        return Datapath(meaning, **options)
    options |= {"required": True, "metadata": {"description": meaning}}
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return fields.List(_PLAIN[inner]() if inner in _PLAIN else fields.Nested(_SCHEMAS[inner]), **options)
    if kind in _PLAIN:
        return _PLAIN[kind](**options)
    return fields.Nested(_SCHEMAS[kind], **options)
