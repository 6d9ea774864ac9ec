"""Work on the database whose failure must stop no thread."""

from __future__ import annotations

from collections.abc import Callable

from lark_common.errors import StoreError
from lark_common.log import ERROR, WARNING, event, failure


class Attempts:
    """Does work that may fail; for each subject the first failure in a row is logged, and the first success after it.

    ``failing`` and ``again`` are the events' words.
    """

    def __init__(self, failing: str, again: str) -> None:
        self._failing = failing
        self._again = again
        self._failed: set[str | None] = set()

    def succeed(self, work: Callable[[], object], subject: str | None = None) -> bool:
        """Do the work; False where it failed."""
        try:
            work()
        except Exception as error:
            # The thread serves all jobs: an unexpected error about one must not stop it.
            if subject not in self._failed:
                self._log(error, subject)
            self._failed.add(subject)
            return False
        if subject in self._failed:
            event(self._again, level=WARNING, at=subject)
        self._failed.discard(subject)
        return True

    def _log(self, error: Exception, subject: str | None) -> None:
        if isinstance(error, StoreError):
            event(self._failing, level=ERROR, at=subject, error=str(error))
        else:
            failure(self._failing, error, at=subject)
