"""The source of the policy in force: the file that the operator edits, or a PUT over REST, whichever came last.

Both are kept as versions in the store. At start the file wins if it has another text than when it was read last;
otherwise the newest version stays in force, so a policy that was put over REST survives a restart. Each instance of the
controller has a file of its own, on its machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lark_common.errors import LarkError, SettingError, StoreError, UnreadableError
from lark_common.log import ERROR, WARNING, event, failure
from lark_common.threads import StoppableThread
from lark_controller.api.policy import PolicyVersion
from lark_controller.policies.file import load
from lark_controller.store import Store

FILE_ACTOR: Final = "policy file"
WATCH_SECONDS: Final = 1.0


def first_policy(store: Store, path: Path, instance: str = "") -> PolicyVersion:
    """The policy to start with, of an instance with this name. Raises PolicyError or SettingError where the file is bad
    and the store has none."""
    latest = store.trail.latest_policy()
    try:
        text = read(path)
        policy = load(text, str(path))
    except LarkError as error:
        if latest is None:
            raise
        event("policy file not used", level=ERROR, error=str(error), version=latest.version)
        return latest
    if latest is None or _has_changed(store, path, instance, policy.digest):
        return store.trail.put_policy(text, policy.digest, FILE_ACTOR, time.time(), file_of=instance)
    store.trail.note_file(instance, policy.digest)
    return latest


def _has_changed(store: Store, path: Path, instance: str, digest: str) -> bool:
    """True if an instance's file has another text than when that instance has read it last.

    Where other instances have files, too, one may be older than what was put since: then it counts only if its text was
    never in force. One that this instance has never read may be of anybody, a package's example for one.
    """
    read_last = dict(store.trail.files_read())
    if not read_last:
        # Written before instances were: there was one file.
        seen = store.trail.latest_policy(FILE_ACTOR)
        return seen is None or seen.digest != digest
    before = read_last.pop(instance, None)
    if before == digest:
        return False
    if read_last and before is None:
        event(
            "policy file not used: other controllers have read theirs, and this one none before",
            level=WARNING,
            file=path,
            hint="lark policy put, or change the file of the active controller",
        )
        return False
    return not read_last or not store.trail.has_policy(digest)


def read(path: Path) -> str:
    """The file's text. Raises SettingError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}; LARK_POLICY_FILE names the policy") from None


class PolicyFile:
    """Watches the policy file: a change (or :meth:`reload`, on SIGHUP) puts it in force, a bad one changes nothing."""

    def __init__(self, path: Path, put: Callable[[str, str], PolicyVersion]) -> None:
        self._path = path
        self._put = put
        self._wake = threading.Event()
        self._reload_requested = threading.Event()
        self._seen = self._mark()
        self._taken = self._text()
        self._last_error = ""
        self._thread = StoppableThread("lark-policy-file", self._watch, wake=self._wake.set)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._thread.stop(patience=5.0)

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return (self._thread,)

    def reload(self) -> None:
        """Read the file now (once the watch has begun), whether it changed or not."""
        self._reload_requested.set()
        self._wake.set()

    def _mark(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _text(self) -> str | None:
        try:
            return read(self._path)
        except LarkError:
            return None

    def _watch(self) -> None:
        while True:
            self._wake.wait(WATCH_SECONDS)
            self._wake.clear()
            if self._thread.stopping:
                return
            requested = self._reload_requested.is_set()
            self._reload_requested.clear()
            mark = self._mark()
            # A file that is being replaced may be away for a moment.
            if requested or mark not in (None, self._seen):
                self._seen = mark
                self._take(requested)

    def _take(self, requested: bool) -> None:
        try:
            text = read(self._path)
            if text == self._taken and not requested:
                # Written again as it was: what an operator has put since then stays in force.
                return
            self._taken = text
            version = self._put(text, FILE_ACTOR)
        except (StoreError, UnreadableError) as error:
            # The database will be back, or a descriptor; the file is read again then.
            self._seen = self._taken = None
            if str(error) != self._last_error:
                event("policy file not used", level=ERROR, error=str(error))
            self._last_error = str(error)
            return
        except LarkError as error:
            for line in str(error).splitlines():
                event("policy file not used, the running policy stays", level=ERROR, error=line)
        except Exception as error:
            # The next version of the file may be used again.
            failure("policy file not used", error)
        else:
            event("policy file in force", version=version.version)
        self._last_error = ""
