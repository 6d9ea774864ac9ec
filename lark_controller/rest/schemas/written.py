"""Schemas whose values are written at once: what is documented is what is written, in a part of marshmallow's time.

marshmallow looks for each member of each value in several ways. Posts, ends and renewals come hundreds of times a
second, and lists have a thousand values.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Final, cast

from marshmallow import Schema, fields

from lark_common.turns import by_portions
from lark_controller.rest.schemas.members import meta

_NONE: Final[frozenset[type]] = frozenset()
# The types of values that each kind of member leaves as they are.
_AS_THEY_ARE: Final[Mapping[type, frozenset[type]]] = {
    fields.String: frozenset({str, NoneType}),
    fields.Integer: frozenset({int, NoneType}),
    fields.Float: frozenset({float, NoneType}),
    fields.Boolean: frozenset({bool, NoneType}),
}


class Written(Schema):
    """A schema of values that have an attribute for each member, or of dicts that have them all."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        found = self.dump_fields.items()
        self._members = [(name, _AS_THEY_ARE.get(type(each), _NONE), each._serialize) for name, each in found]
        names = [each.attribute or name for name, each in found]
        # Two names at least, so that each returns a tuple.
        self._values = attrgetter(*names, "__class__")
        self._of_dict = itemgetter(*names, names[0])

    def dump(self, obj: Any, *, many: bool | None = None) -> Any:
        """The members of a value, or of each of ``many``."""
        return list(map(self.members, obj)) if (self.many if many is None else many) else self.members(obj)

    def members(self, value: Any) -> dict[str, Any]:
        """The members of a value."""
        values = self._of_dict(value) if type(value) is dict else self._values(value)
        return {
            name: each if type(each) in kept else write(each, name, value)
            for (name, kept, write), each in zip(self._members, values, strict=False)
        }


class Rows(fields.List[Any]):
    """A list of values of a schema that may be long: what goes ahead does so between its portions."""

    def __init__(self, schema: type[Schema], meaning: str, **options: Any) -> None:
        super().__init__(fields.Nested(schema), required=True, metadata=meta(meaning), **options)

    def _serialize(self, value: Any, attr: str | None, obj: Any, **kwargs: Any) -> list[Any] | None:
        return None if value is None else cast("fields.Nested", self.inner).schema.dump(by_portions(value), many=True)
