"""The client's log of what was asked and what was acknowledged, and what follows from it. Pure.

It says nothing of what goes on inside the controller: an answer with 2xx is a promise, one with 4xx says that nothing
was done, and after any other, or none, either may be the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

# States of a job that its switches or its slot have turned away.
_OVER: Final = frozenset({"ended", "refused"})


class Asked(StrEnum):
    """The kinds of requests."""

    POST = "post"
    RENEW = "renew"
    END = "end"
    RESERVE = "reserve"
    RELEASE = "release"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Run:
    """A run as its ads describe it. ``name`` is its GlobalJobId; ``rate`` its RequestBandwidth in Mb/s."""

    name: str
    owner: str
    worker: int
    slot: str
    port: str
    started: int
    address: str | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One request. Times are of one clock that is never set; ``status`` is 0 where no answer came.

    ``run`` is the name of the run that it is about, ``said`` what the answer says: a post's address, a reservation's
    id (also of the one to be released), a policy's text; ``state`` the job's.
    """

    asked: Asked
    run: str
    sent: float
    answered: float
    status: int
    said: str = ""
    state: str = ""

    @property
    def done(self) -> bool:
        """True where the request was acknowledged."""
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """True where the answer denies any effect of the request."""
        return 400 <= self.status < 500


@dataclass
class Log:
    """All runs and requests. ``patience`` is for how many seconds an acknowledged post or renewal surely stands."""

    patience: float
    runs: dict[str, Run] = field(default_factory=dict)
    of_run: dict[str, list[Entry]] = field(default_factory=dict)
    others: list[Entry] = field(default_factory=list)
    at_slot: dict[str, list[str]] = field(default_factory=dict)

    def begin(self, run: Run) -> None:
        """A run is about to be posted for the first time."""
        self.runs[run.name] = run
        self.of_run[run.name] = []
        self.at_slot.setdefault(run.slot, []).append(run.name)

    def add(self, entry: Entry) -> None:
        """Keep a request that is over."""
        (self.of_run[entry.run] if entry.run in self.runs else self.others).append(entry)

    def entries(self) -> Iterator[Entry]:
        """All requests."""
        for entries in self.of_run.values():
            yield from entries
        yield from self.others

    # what follows

    def standing(self, now: float) -> Mapping[str, Entry]:
        """The runs that live, whatever became of requests without an answer; each with its last acknowledged post."""
        return {name: post for name in self.runs if (post := self.stood(name, now)) is not None}

    def stood(self, name: str, at: float) -> Entry | None:
        """The last acknowledged post of a run if the run lives at a time for certain, None otherwise."""
        acknowledged = [each for each in self._until(name, at) if each.done]
        posts = [each for each in acknowledged if each.asked is Asked.POST]
        if not posts or posts[-1].state in _OVER or self._leaves(name) < at:
            return None
        kept = max(each.answered for each in acknowledged if each.asked in (Asked.POST, Asked.RENEW))
        return posts[-1] if at - kept <= self.patience else None

    def gone(self) -> set[str]:
        """The runs that live no more, or never did."""
        found = set()
        for name, entries in self.of_run.items():
            posts = [each for each in entries if each.asked is Asked.POST]
            if posts and all(each.refused for each in posts):
                found.add(name)
            last = max((each.sent for each in posts), default=0.0)
            if any(each.asked is Asked.END and each.done and each.sent >= last for each in entries):
                found.add(name)
        return found

    def denied(self) -> Iterator[Entry]:
        """Requests about a run that were answered with 404, though the run lived for certain at the time."""
        for name, entries in self.of_run.items():
            for each in entries:
                if each.status == 404 and self.stood(name, each.answered) is not None:
                    yield each

    def holdings(self) -> Iterator[tuple[str, str, float, float]]:
        """(address, run, from, to): during that time the run surely has the address."""
        for name, entries in self.of_run.items():
            leaves = self._leaves(name)
            address = ""
            for each in entries:
                if not each.done or each.asked not in (Asked.POST, Asked.RENEW):
                    continue
                if each.asked is Asked.POST:
                    address = "" if each.state in _OVER else each.said
                until = min(each.answered + self.patience, leaves)
                if address and each.answered < until:
                    yield address, name, each.answered, until

    def reserved(self, standing: Iterable[str]) -> dict[str, str]:
        """The reservations that stand, each with its run: acknowledged, of a run that lives, not to be released."""
        found = {}
        for name in standing:
            entries = self.of_run[name]
            asked_back = {each.said for each in entries if each.asked is Asked.RELEASE and not each.refused}
            made = (each.said for each in entries if each.asked is Asked.RESERVE and each.done)
            found.update({each: name for each in made if each not in asked_back})
        return found

    def released(self) -> set[str]:
        """The reservations whose release was acknowledged."""
        return {each.said for each in self.entries() if each.asked is Asked.RELEASE and each.done}

    def policy(self) -> str | None:
        """The policy that is in force for certain."""
        puts = [each for each in self.others if each.asked is Asked.POLICY and not each.refused]
        return puts[-1].said if puts and puts[-1].done else None

    def _until(self, name: str, at: float) -> Sequence[Entry]:
        return [each for each in self.of_run[name] if each.answered <= at]

    def _leaves(self, name: str) -> float:
        """From when on a run may be over because somebody wanted it: it was ended, or its slot went on."""
        own = [each.sent for each in self.of_run[name] if each.asked is Asked.END and not each.refused]
        run = self.runs[name]
        after = [
            each.sent
            for other in self.at_slot[run.slot]
            if self.runs[other].started > run.started
            for each in self.of_run[other]
            if each.asked is Asked.POST and not each.refused
        ]
        return min([*own, *after], default=float("inf"))
