"""Limits that the operating system sets a process."""

from __future__ import annotations

import resource

from lark_common.log import event


def raise_open_files() -> int:
    """Raise the soft limit of open files (RLIMIT_NOFILE) to the hard one, and log it; returns the limit now.

    Each switch and each request of a hook takes a file descriptor, and the usual soft limit of 1,024 is for programs
    that use select(2), which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        event("open files", limit=hard, before=soft)
    return hard
