"""The jobs that requests name: a path's or a parameter's word, as the services' one resolver takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final

from flask import g

from lark_common.errors import NotFoundError
from lark_controller.policies.switches import RESERVED
from lark_controller.rest.bodies import valid_job_id
from lark_controller.rest.context import current

# CLUSTER, CLUSTER.PROC and GlobalJobId, which nothing but a job is called: a host may be called as an id begins.
_ONLY_A_JOB: Final = re.compile(r"[^#]+#.+|[0-9]+(\.[0-9]+)?(@.+)?")

# The ids of jobs and datapaths, as the audit trail has them.
_ID: Final = re.compile(r"[0-9a-f]{16}")

# A job's end waits for its switch's last word so long, and then does without.
FRESH_SECONDS: Final = 2.0


def named_job(word: str, any_node: bool = False) -> str:
    """The id of the job that a word names; with ``any_node`` the first node where it is a parallel job. A hook's
    requests name jobs by id alone, so that a token that is good for one host reveals nothing of another's jobs; a
    request of the scope self finds its user's alone. Raises Problem 404, NotFoundError, AmbiguousError."""
    return valid_job_id(word) if g.lark_by_hook else current().controls.jobs.named(word, g.lark_user, any_node)


def named_host(word: str) -> str:
    """The host that a path names, with or without its domain; a hook's requests name hosts in full alone."""
    return word if g.lark_by_hook else current().controls.jobs.host_called(word)


def read_now(job_id: str) -> None:
    """Read a live job's counters at its switch now, as far as that answers in time."""
    context = current()
    with context.waiting() as timeout:
        context.controls.jobs.read_counters(job_id, min(timeout, FRESH_SECONDS))


def job_or_word(word: str) -> str:
    """The id of the job that a word names, or the word where it names none. Raises AmbiguousError."""
    with suppress(NotFoundError):
        return current().controls.jobs.named(word)
    return word


def subject_of(word: str) -> str:
    """The subject of the audit trail that a word names: a job's id, the datapath id of a switch of that name, or the
    word itself; those that are kept for what is neither come first, whatever calls itself so. Raises AmbiguousError."""
    if _ID.fullmatch(word) or word in RESERVED:
        return word
    found = job_or_word(word)
    if found == word:
        with suppress(NotFoundError):
            return current().controls.switches.find(word).datapath
    return found


def job_or_host(word: str) -> str:
    """The same for a word that may be a host's name: the first digits of an id are none of a job's here."""
    return job_or_word(word) if _ONLY_A_JOB.fullmatch(word) else word


def job_among(query: Mapping[str, Any]) -> str | None:
    """The id of the job that the parameter ``job`` names, None where it is not given. Raises NotFoundError,
    AmbiguousError."""
    word = query.get("job")
    return None if word is None else named_job(word)


def job_or_address(word: str) -> str:
    """The same where an address is accepted too, and nothing else. Raises NotFoundError, AmbiguousError."""
    try:
        return word if is_address(word) else current().controls.jobs.named(word, g.lark_user)
    except NotFoundError as error:
        raise NotFoundError(f"{error}; an address is accepted too") from None


def is_address(text: str) -> bool:
    """True for an IPv4 or IPv6 address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
