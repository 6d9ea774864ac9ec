"""The shares of reserved flows, on disk before the controller is asked to change a flow for them.

A file for each flow. A share's end is put off all the time and is not in it: a service that starts gives each share as
many seconds as it was given last.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lark_common import log
from lark_worker.records.atomic_file import remove, write_atomically

# Shares of one flow; the communicators of an application are far fewer.
MOST: Final = 64
# Numbers of shares of one flow that are over.
_MOST_OVER: Final = 16 * MOST
# Mb/s; less is nothing. A controller rounds up to whole kb/s.
NOTHING: Final = 0.0005

_ID: Final = re.compile(r"[0-9a-f]{1,32}")

# A job and the job that it sends to.
Ends = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """A share: Mb/s, the seconds that it was given last, its end by the monotonic clock, and whether the rate is the
    most as well."""

    rate: float
    seconds: float
    until: float
    steady: bool


@dataclass(slots=True)
class SharedFlow:
    """The shares of one reservation, by number; without an id it was asked for, and no answer has come.

    ``ends`` are the job and the receiver. ``whole`` if all shares are known; of another flow ``over`` are those that
    have been known. ``doubt`` are the flow's rate and its shares if the last change was made, whose answer has not
    come. ``retry``: what is over is not given back before that time, unless somebody asks for the flow.
    """

    ends: Ends
    id: str
    whole: bool
    shares: dict[int, Share] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    doubt: tuple[float, dict[int, Share]] | None = None
    retry: float = 0.0

    def become(self, shares: dict[int, Share]) -> None:
        """Have these shares from now on; others are over."""
        # Where they are many, no share is taken for one of a former run any more.
        if not self.whole and len(self.over) < _MOST_OVER:
            self.over |= self.shares.keys() - shares.keys()
        self.shares = shares

    def settle(self, rate: float) -> None:
        """Find out by the flow's rate if the change was made whose answer was lost."""
        doubt, self.doubt = self.doubt, None
        if doubt is not None and abs(doubt[0] - rate) < NOTHING:
            self.become(doubt[1])

    def is_partly_over(self, now: float) -> bool:
        """True where some shares are over, and others live."""
        shares = self.shares.values()
        return any(each.until <= now for each in shares) and any(each.until > now for each in shares)

    def may_be_unknown(self, number: int) -> bool:
        """True for a share that may be of a former run of the service."""
        return not self.whole and number not in self.over and len(self.shares) < MOST and len(self.over) < _MOST_OVER


class ShareFiles:
    """The flows with shares, one file each in ``directory``; written whole and renamed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The text of each file, which most renewals leave as it is.
        self._written: dict[Ends, str] = {}
        self._fails = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, flow: SharedFlow) -> None:
        """Keep a flow. A disk that does not take it is no reason to refuse a program its bandwidth: the file goes, and
        after the service has started again each share is known from its renewal on."""
        text = json.dumps(_to_json(flow))
        if self._written.get(flow.ends) == text:
            return
        try:
            write_atomically(self._path(flow.ends), text)
            self._written[flow.ends], self._fails = text, False
        except OSError as error:
            self._failed("shares of a reservation cannot be kept on disk", error, flow.ends)
            self.remove(flow.ends)

    def remove(self, ends: Ends) -> None:
        """Forget a flow; nothing happens where there is none."""
        self._written.pop(ends, None)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path(ends))  # noqa: PTH108  # see _path
        except OSError as error:
            self._failed("shares of a reservation cannot be removed from disk", error, ends)

    def load(self, jobs: Collection[str], now: float) -> list[SharedFlow]:
        """Every flow of these jobs that can be read, at this time of the monotonic clock; others are removed."""
        found = []
        for path in self._directory.iterdir():
            flow = _read(path, now) if path.suffix == ".json" else None
            if flow is None:
                log.event("shares of a reservation cannot be read; removed", level=log.WARNING, path=path)
            if flow is not None and flow.ends[0] in jobs:
                found.append(flow)
                continue
            try:
                remove(path)
            except OSError as error:
                log.failure("a file of shares cannot be removed", error, path=path)
        return found

    def _failed(self, message: str, error: OSError, ends: Ends) -> None:
        """Log the first of several failures: while the disk is full or read-only, each request of a job has one."""
        if not self._fails:
            log.failure(message, error, job=ends[0])
        self._fails = True

    def _path(self, ends: Ends) -> str:
        """The name of a flow's file. No Path: a job chooses its receivers, and may choose ever other ones."""
        return f"{self._directory}/{ends[0]}-{ends[1]}.json"


def _to_json(flow: SharedFlow) -> dict[str, Any]:
    shares, doubt = _listed(flow.shares), flow.doubt
    # A renewal leaves them as they are, whether its answer comes or not.
    changed = None if doubt is None or _listed(doubt[1]) == shares else [doubt[0], _listed(doubt[1])]
    return {"id": flow.id, "whole": flow.whole, "shares": shares, "over": sorted(flow.over), "doubt": changed}


def _listed(shares: dict[int, Share]) -> list[tuple[int, float, float, bool]]:
    return [(number, share.rate, share.seconds, share.steady) for number, share in sorted(shares.items())]


def _read(path: Path, now: float) -> SharedFlow | None:
    try:
        given: Any = json.loads(path.read_text("utf-8"))
        doubt, (job, _, receiver) = given["doubt"], path.stem.partition("-")
        flow = SharedFlow(
            (job, receiver),
            given["id"],
            bool(given["whole"]),
            _shares(given["shares"], now),
            {int(number) for number in given["over"]},
            None if doubt is None else (float(doubt[0]), _shares(doubt[1], now)),
        )
        # A file that a disk has damaged may still be JSON.
        is_known = bool(_ID.fullmatch(flow.id)) or (not flow.id and len(flow.shares) == 1)
    except (OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return None
    return flow if receiver and is_known else None


def _shares(listed: Any, now: float) -> dict[int, Share]:
    found = {
        int(number): Share(float(rate), float(seconds), now + float(seconds), bool(steady))
        for number, rate, seconds, steady in listed
    }
    if not all(0 < share.rate < math.inf and 0 < share.seconds < math.inf for share in found.values()):
        raise ValueError
    return found
