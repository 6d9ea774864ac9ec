"""An entry of the history: what is written of one job's account."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lark_controller.accounting.account import PORT, STRETCH, Account
from lark_controller.accounting.usage import FLAT, Peak, Usage


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry to write for a job: all its use, the new part of it, and the readings to go on from.

    The new part is of the time from ``begun`` to ``at`` (seconds since 1970).
    """

    number: int
    job_id: str
    owner: str
    user: str
    group: str
    host: str
    since: float
    begun: float
    at: float
    usage: Usage
    new: Usage
    readings: str
    final: bool
    peak: Peak = FLAT


def entry_of(number: int, account: Account) -> Entry:
    """The entry to write for an account now."""
    usage = account.usage
    readings = {
        "at": account.at,
        "started": account.started,
        "reported": account.reported,
        "counters": list(account.numbers[PORT:STRETCH]),
    }
    return Entry(
        number=number,
        job_id=account.id,
        owner=account.owner,
        user=account.user,
        group=account.group,
        host=account.host,
        since=account.created,
        begun=account.unwritten or account.created,
        at=max(account.last, account.moved_at),
        usage=usage,
        new=usage.minus(account.written),
        readings="" if account.final else json.dumps(readings, separators=(",", ":")),
        final=account.final,
        peak=account.peak,
    )
