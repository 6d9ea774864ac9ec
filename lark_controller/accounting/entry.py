"""An entry of the history: what is written of one job's account."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from typing import Final, NamedTuple

from lark_controller.accounting.account import PEAK, PORT, STRETCH, SUMS, Account
from lark_controller.accounting.usage import FLAT, Peak, Usage, usage_of

_COUNTERS: Final = ",".join(["%d"] * (STRETCH - PORT))


class Entry(NamedTuple):
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
    numbers = account.numbers.tolist()
    usage = usage_of(numbers[:SUMS])
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
        new=usage_of(map(sub, usage, numbers[SUMS:PORT])),
        readings="" if account.final else _readings(account, numbers[PORT:STRETCH]),
        final=account.final,
        peak=Peak(*numbers[PEAK:STRETCH]),
    )


def _readings(account: Account, counters: Sequence[int]) -> str:
    """The readings to go on from, as JSON: written by hand, since a writer of any value takes six times as long."""
    started, reported = "true" if account.started else "false", "true" if account.reported else "false"
    numbers = _COUNTERS % tuple(counters)
    return f'{{"at":{account.at!r},"started":{started},"reported":{reported},"counters":[{numbers}]}}'
