"""Transactions of Open vSwitch's database (RFC 7047, section 4.1.3): operations, and what a server answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lark_controller.switches.ovsdb.rows import Operation, where_uuid

# Letters of an error in the words of a database.
MOST_WORDS: Final = 500
# In the database's own record of its changes.
_COMMENT: Final[Operation] = {"op": "comment", "comment": "lark: queues"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a transaction. ``again``: a condition did not hold, or the connection was lost. ``error``: in the
    words of the database."""

    again: bool = False
    error: str = ""


LOST: Final = Outcome(again=True)


def requested(operations: Iterable[Operation], root: str) -> list[Operation]:
    """The operations with the request to put what they change into force; ``root`` is the row of Open_vSwitch."""
    mutations = [["next_cfg", "+=", 1]]
    into_force = {"op": "mutate", "table": "Open_vSwitch", "where": where_uuid(root), "mutations": mutations}
    return [*operations, into_force, _COMMENT]


def outcome(results: Any, error: Any = None) -> Outcome:
    """The end of a transaction by a server's answer: the results of its operations, or an error of all."""
    if error is not None or not isinstance(results, list):
        return Outcome(error=_words(error if error is not None else "an answer without results"))
    errors = [each.get("error") for each in results if isinstance(each, dict)]
    hard = [each for each in errors if each not in (None, "timed out", "aborted")]
    if hard:
        at = next(each for each in results if isinstance(each, dict) and each.get("error") == hard[0])
        return Outcome(error=_words(at))
    if any(errors) or any(each is None for each in results):
        return LOST
    return Outcome()


def _words(error: Any) -> str:
    return (error if isinstance(error, str) else json.dumps(error))[:MOST_WORDS]
