"""Members of schemas, each with its meaning, which the OpenAPI document shows."""

from __future__ import annotations

from typing import Any, Final

from marshmallow import ValidationError, fields

# The largest number that the store and the arithmetic can hold.
LARGEST: Final = 2**63 - 1
# Wrong entries of a list that are reported.
MOST_WRONG: Final = 16


def meta(meaning: str, **more: object) -> dict[str, object]:
    """The metadata of a member."""
    return {"description": meaning, **more}


def a_text(meaning: str, **options: Any) -> fields.String:
    """A text."""
    return fields.String(required=True, metadata=meta(meaning), **options)


def maybe_text(meaning: str) -> fields.String:
    """A text or null."""
    return fields.String(required=True, allow_none=True, metadata=meta(meaning))


def a_number(meaning: str, **options: Any) -> fields.Integer:
    """A whole number."""
    return fields.Integer(required=True, metadata=meta(meaning), **options)


def maybe_number(meaning: str) -> fields.Integer:
    """A whole number or null."""
    return fields.Integer(required=True, allow_none=True, metadata=meta(meaning))


def a_float(meaning: str) -> fields.Float:
    """A number."""
    return fields.Float(required=True, metadata=meta(meaning))


def maybe_float(meaning: str) -> fields.Float:
    """A number or null."""
    return fields.Float(required=True, allow_none=True, metadata=meta(meaning))


def a_flag(meaning: str) -> fields.Boolean:
    """True or false."""
    return fields.Boolean(required=True, metadata=meta(meaning))


def maybe_flag(meaning: str) -> fields.Boolean:
    """True, false or null."""
    return fields.Boolean(required=True, allow_none=True, metadata=meta(meaning))


def texts(meaning: str) -> fields.List[Any]:
    """A list of texts."""
    return fields.List(fields.String(), required=True, metadata=meta(meaning))


class Many(fields.List[Any]):
    """A list in a request's body that may be long. The first wrong entries are enough of a reason: each takes a hundred
    times the memory of its text."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self.make_error("invalid")
        found: list[Any] = []
        wrong: dict[int, Any] = {}
        for place, each in enumerate(value):
            try:
                found.append(self.inner.deserialize(each, **kwargs))
            except ValidationError as error:
                wrong[place] = error.messages
                if len(wrong) == MOST_WRONG:
                    break
        if wrong:
            raise ValidationError(wrong)
        return found


class Count(fields.Integer):
    """A whole number that is not negative, and neither a text nor a truth that could be taken for one."""

    def __init__(self, meaning: str, *, required: bool = True) -> None:
        super().__init__(required=required, metadata=meta(meaning, minimum=0, maximum=LARGEST))

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        if type(value) is not int or not 0 <= value <= LARGEST:
            raise ValidationError(f"a whole number from 0 to {LARGEST} is accepted")
        return value
