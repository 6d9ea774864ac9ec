"""An entry of the history: what is written of one job's account."""

from __future__ import annotations

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
        readings="" if account.final else _readings(account),
        final=account.final,
        peak=account.peak,
    )


def _readings(account: Account) -> str:
    """The readings to go on from, as JSON: written by hand, since a writer of any value takes three times as long."""
    started, reported = ("true" if each else "false" for each in (account.started, account.reported))
    counters = ",".join(map(str, account.numbers[PORT:STRETCH]))
    return f'{{"at":{account.at!r},"started":{started},"reported":{reported},"counters":[{counters}]}}'
