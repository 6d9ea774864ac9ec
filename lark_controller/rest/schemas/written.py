"""Schemas whose values are written at once: what is documented is what is written, in a part of marshmallow's time.

marshmallow looks for each member of each value in several ways. Posts, ends and renewals come hundreds of times a
second, and lists have a thousand values.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import NoneType
from typing import Any, Final

from marshmallow import Schema, fields

_NONE: Final[frozenset[type]] = frozenset()
# The types of values that each kind of member leaves as they are.
_AS_THEY_ARE: Final[Mapping[type, frozenset[type]]] = {
    fields.String: frozenset({str, NoneType}),
    fields.Integer: frozenset({int, NoneType}),
    fields.Float: frozenset({float, NoneType}),
    fields.Boolean: frozenset({bool, NoneType}),
}


class Written(Schema):
    """A schema of values that have an attribute for each member."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        found = self.dump_fields.items()
        self._members = [(name, _AS_THEY_ARE.get(type(each), _NONE), each._serialize) for name, each in found]
        # Two names at least, so that it returns a tuple.
        self._values = attrgetter(*(each.attribute or name for name, each in found), "__class__")

    def dump(self, obj: Any, *, many: bool | None = None) -> Any:
        """The members of a value, or of each of ``many``."""
        return list(map(self.members, obj)) if (self.many if many is None else many) else self.members(obj)

    def members(self, value: Any) -> dict[str, Any]:
        """The members of a value."""
        return {
            name: each if type(each) in kept else write(each, name, value)
            for (name, kept, write), each in zip(self._members, self._values(value), strict=False)
        }
