"""The exceptions of the worker service.

LarkError
└── WorkerError
    ├── CallerError     the caller is part of no job, or may not ask this
    ├── ForgedError     an ad that contradicts the startd's ad of the slot
    ├── RefusedError    the controller or the site's rules refuse the job
    ├── AwayError       the controller cannot be asked now
    ├── StartdError     the startd cannot be asked, or has no such slot
    ├── StarterError    the starter takes no attributes for its job's ad
    └── NetworkError    a job's network cannot be made or removed
"""

from __future__ import annotations

from lark_common.errors import LarkError


class WorkerError(LarkError):
    """Base of the worker service's exceptions; ``str()`` is a sentence for the user."""


class CallerError(WorkerError):
    """The caller is part of no job on this worker, or asks for something of another job."""


class ForgedError(WorkerError):
    """An ad that contradicts the startd. ``attribute`` is the first at fault."""

    def __init__(self, attribute: str, reason: str) -> None:
        super().__init__(f"{attribute}: {reason}")
        self.attribute = attribute
        self.reason = reason


class RefusedError(WorkerError):
    """The controller or the site's own rules refuse the job.

    ``idle`` is True where the site lets such a job go back to Idle instead of putting it on hold.
    """

    def __init__(self, reason: str, idle: bool = False) -> None:
        super().__init__(reason)
        self.idle = idle


class AwayError(WorkerError):
    """The controller does not answer, or asks to try later."""


class StartdError(WorkerError):
    """The startd cannot be asked, or has no such slot."""


class StarterError(WorkerError):
    """A starter takes no attributes for its job's ad now."""


class NetworkError(WorkerError):
    """A step of making or removing a job's network failed; the sentence names the step."""
