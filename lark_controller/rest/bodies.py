"""Reading a request's body: size, content type, text."""

from __future__ import annotations

import json
import re
from traceback import clear_frames
from typing import Any, Final
from urllib.parse import urlencode

from flask import request
from marshmallow import Schema, ValidationError

from lark_controller.rest.problems import Problem, of_parameters

_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def read(limit: int, accepted: tuple[str, ...], empty: bool = False) -> tuple[bytes, str]:
    """The body and its media type. Raises Problem: 413 over ``limit`` bytes, 415 for a type that is not accepted.

    With ``empty`` a request without a body needs no content type.
    """
    # Without the proxy, which takes three calls for each of its attributes.
    here = request._get_current_object()  # type: ignore[attr-defined]  # of the proxy, and Flask's to be called
    here.max_content_length = limit
    if here.content_length is not None and here.content_length > limit:
        raise too_large(limit)
    body = here.get_data(cache=False)
    media = here.mimetype
    if empty and not body:
        return b"", media
    if media not in accepted:
        given = media or "no content type"
        raise Problem(415, f"{given} is not accepted; accepted: {', '.join(accepted)}.")
    return body, media


def too_large(limit: int) -> Problem:
    """The problem of a body over the limit."""
    return Problem(413, f"The body is larger than {limit} bytes.")


def read_text(limit: int, accepted: tuple[str, ...], empty: bool = False) -> str:
    """The body as text. Raises Problem as :func:`read`, and 400 where it is not UTF-8."""
    body, _ = read(limit, accepted, empty)
    return _decode(body)


def _decode(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(400, f"Byte {error.start} of the body is not UTF-8; the body must be UTF-8 text.") from None


def read_kept_text(limit: int, accepted: tuple[str, ...], empty: bool = False) -> str:
    """The body as text that the store can keep. Raises Problem as :func:`read_text`, and 400 for a NUL character."""
    text = read_text(limit, accepted, empty)
    if "\0" in text:
        raise Problem(400, f"Character {text.index(chr(0))} of the body is NUL, which no text may hold.")
    return text


def printable(text: str) -> str:
    """A worker's sentence as pages, logs and terminals show it, whatever job has a part in it: U+202E, for one, turns
    around what stands behind it."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def parse_json(body: bytes) -> Any:
    """The value of a body in JSON. Raises Problem 400 where it is none, or holds text that no store can keep."""
    text = _decode(body)
    try:
        found = json.loads(text)
        # Half a surrogate pair is a string to Python, and nothing that a database or a log could take.
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode("utf-8")
            if _NUL.search(text):
                raise ValueError("a NUL character, which no text may hold")
    except (ValueError, RecursionError) as error:
        reasons = {RecursionError: "nested too deeply", UnicodeEncodeError: "half of a surrogate pair stands alone"}
        raise Problem(400, f"The body is not JSON: {reasons.get(type(error), error)}.", "json") from None
    return found


def read_json(limit: int, schema: Schema) -> dict[str, Any]:
    """The body, a JSON object that fits a schema. Raises Problem as :func:`read_value`, and 422 with every member that
    does not fit."""
    return fitting(read_value(limit), schema)


def read_value(limit: int) -> Any:
    """The value of the body, which is JSON. Raises Problem as :func:`read`, and 400 where it is not."""
    body, _ = read(limit, ("application/json",))
    return parse_json(body)


def fitting(value: Any, schema: Schema) -> dict[str, Any]:
    """The members of a JSON object that fits a schema. Raises Problem: 422 with every member that does not fit."""
    try:
        found: dict[str, Any] = schema.load(value)
    except ValidationError as error:
        wrong = _messages(error).items()
        # The error and marshmallow's frames have each other, and the whole body: that is garbage collected much later.
        clear_frames(error.__traceback__)
        raise of_parameters(422, (("body" if name == "_schema" else name, why) for name, why in wrong)) from None
    return found


def _messages(error: ValidationError) -> dict[str, Any]:
    """The mistakes, by member; of the body as a whole under ``_schema``."""
    return error.messages if isinstance(error.messages, dict) else {"_schema": error.messages}


def valid_job_id(job_id: str) -> str:
    """The id where it has an id's form; what has not is never asked for. Hooks name their jobs so, and no other way."""
    if len(job_id) != 16 or not set(job_id) <= set("0123456789abcdef"):
        raise Problem(404, "There is no such job; a job's id is 16 hexadecimal digits.")
    return job_id


def next_url(cursor: str | None) -> str | None:
    """This request's path and query with the cursor of the next page."""
    if cursor is None:
        return None
    query = [(name, value) for name, value in request.args.items(multi=True) if name != "cursor"]
    return f"{request.path}?{urlencode([*query, ('cursor', cursor)])}"
