"""A check that jobs cannot get around the wrapper: asks the startd when the service starts, and again and again."""

from __future__ import annotations

from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.errors import StartdError
from lark_worker.identity.startd import StartdView

# Seconds until the startd is asked again: while it cannot be asked or something is wrong, and afterwards.
SOON: Final = 15.0
SELDOM: Final = 300.0

OPEN: Final = (
    "jobs can get around the wrapper into this worker's own network: NO_JOB_NETWORKING is not set; install "
    "etc/condor/50-lark.conf and restart HTCondor"
)
TOO_OLD: Final = (
    "jobs can get around the wrapper into this worker's own network: this HTCondor cannot start them in an empty one; "
    "24.7.3 and later can"
)
UNKNOWN: Final = "whether jobs can get around the wrapper is not known"


def problem_of(gives_its_network: bool | None) -> str:
    """The reason why jobs can get around the wrapper, by the startd's answer; ``""`` where they cannot."""
    if gives_its_network is None:
        return TOO_OLD
    return OPEN if gives_its_network else ""


class WrapperCheck:
    """Looks, from :meth:`start` to :meth:`stop`, whether jobs start in an empty network namespace; logs a change."""

    def __init__(self, startd: StartdView) -> None:
        self._startd = startd
        self._thread = StoppableThread("wrapper check", self._run)
        self._problem: str | None = None

    @property
    def problem(self) -> str:
        """The reason why jobs can get around the wrapper, or that it is not known yet; ``""`` where they cannot."""
        return UNKNOWN if self._problem is None else self._problem

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End; a question that is under way ends by itself."""
        self._thread.stop(patience=0.0)

    def look(self) -> None:
        """Ask the startd now."""
        try:
            found = problem_of(self._startd.gives_jobs_its_network())
        except StartdError as error:
            found = f"{UNKNOWN}: {error}"
        before, self._problem = self._problem, found
        if found == before or (found.startswith(UNKNOWN) and before is not None and before.startswith(UNKNOWN)):
            return
        if found:
            log.event("wrapper check", level=log.WARNING if found.startswith(UNKNOWN) else log.ERROR, problem=found)
        else:
            log.event("jobs start in an empty network namespace")

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as error:
                # An unexpected error must not stop this thread: nobody else looks.
                log.failure("the startd could not be asked", error)
            if self._thread.pause(SOON if self.problem else SELDOM):
                return
