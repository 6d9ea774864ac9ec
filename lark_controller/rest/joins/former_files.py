"""The files in which a former release kept join tokens and the tokens of workers that had joined.

They are taken over into the database once, by the instance that has them when it becomes the active one, and then have
another name. A second time changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lark_common import log
from lark_common.errors import SettingError
from lark_controller.api.joins import Joined, JoinedWorker, JoinRecords, JoinToken
from lark_controller.rest import tokens, whole_files
from lark_controller.rest.tokens import Scope

# The join tokens, and the tokens of workers that have joined, in the state directory.
JOINS: Final = "joins.json"
WORKERS: Final = "workers.yaml"
# The end of their names once they were taken over.
TAKEN: Final = ".taken"
# Hosts in one line of the log.
_NAMED: Final = 10


class FormerFiles:
    """Takes over what a former release has left in a state directory.

    Raises SettingError at construction where a file cannot be read, is open to others, or has what it should not have.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock
        self._read()

    def take(self, records: JoinRecords, instance: str) -> None:
        """Put what is in the files now into the database, then give the files another name. Raises StoreError, and
        SettingError as the construction does."""
        files = [path for path in (self._directory / JOINS, self._directory / WORKERS) if path.exists()]
        if not files:
            return
        join_tokens, workers = self._read()
        taken = records.take_over(join_tokens, workers, f"{instance}:{self._directory}", self._clock())
        log.event(
            "joined workers taken over from files",
            files=",".join(map(str, files)),
            workers=len(taken.workers),
            hosts=",".join(taken.workers[:_NAMED]) or None,
            join_tokens=len(taken.join_tokens),
            known_before=len(workers) - len(taken.workers),
        )
        for path in files:
            try:
                path.replace(path.with_name(path.name + TAKEN))
            except OSError as error:
                # The next start takes it over again, which changes nothing.
                log.event("a file that was taken over stays", level=log.ERROR, file=path, error=error)

    def _read(self) -> tuple[tuple[JoinToken, ...], tuple[JoinedWorker, ...]]:
        join_tokens = _join_tokens(self._directory / JOINS)
        return join_tokens, tuple(_workers(self._directory / WORKERS, join_tokens))


def _workers(path: Path, join_tokens: tuple[JoinToken, ...]) -> Iterator[JoinedWorker]:
    if not path.exists():
        return
    uses = {(host.lower(), used.sha256): (used, each.id) for each in join_tokens for host, used in _used(each)}
    written = path.stat().st_mtime
    for token in tokens.read(path):
        if token.hosts != (token.name,) or token.scopes != {Scope.HOOK} or token.expires is not None:
            raise SettingError(
                f"{path}: {token.name}: joining has not made this line; move it into tokens.yaml (LARK_TOKENS_FILE)"
            )
        used, join_id = uses.get((token.name.lower(), token.sha256), (Joined(written, "", ""), ""))
        yield JoinedWorker(token.name, token.sha256, used.at, used.peer, join_id)


def _used(token: JoinToken) -> Iterator[tuple[str, Joined]]:
    for host, used in token.hosts.items():
        if used is not None:
            yield host, used


def _join_tokens(path: Path) -> tuple[JoinToken, ...]:
    content = whole_files.read(path)
    if content is None:
        return ()
    try:
        document: Mapping[str, Any] = json.loads(content)
        return tuple(
            JoinToken(
                str(name),
                str(each["sha256"]),
                float(each["expires"]),
                str(each["actor"]),
                {
                    str(host): None if used is None else Joined(float(used["at"]), str(used["peer"]), used["sha256"])
                    for host, used in each["hosts"].items()
                },
            )
            for name, each in document.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SettingError(f"{path}: it has no join tokens; remove the file to begin with none") from None
