"""Tables of the rates of jobs and of drops, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from lark_controller.cli.printing import is_down, several, table

Answer = Mapping[str, Any]

# The heading of each rate, and its field in REST's answers.
_RATES: Final = {
    "OUT": "outward",
    "IN": "inward",
    "WAN OUT": "wan_outward",
    "WAN IN": "wan_inward",
    "MOVED OUT": "transfer_outward",
    "MOVED IN": "transfer_inward",
}


class Unknown(NamedTuple):
    """The number of switches that are away, of jobs that are not counted or not read, and of cores not read, as an
    answer has them."""

    away: int = 0
    uncounted: int = 0
    unread: int = 0
    cores_unread: int = 0

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """Those of an answer; a controller of an earlier release does not say all."""
        return cls(*(answer.get(name) or 0 for name in cls._fields))


def rates(found: Sequence[Answer], by: str, unknown: Unknown) -> None:
    """A table of rates, Mb/s, and that some are ``unknown``."""
    more = {"user": ("group",), "job": ("user", "group", "host")}.get(by, ())
    head = (by.upper().replace("_", " "), *(name.upper() for name in more), "ACTIVE", *_RATES)
    rows = [
        (
            _subject(each, by),
            *(each[name] for name in more),
            each["jobs"],
            *(f"{each['rate'].get(name, 0.0):.2f}" for name in _RATES.values()),
        )
        for each in found
    ]
    table(head, rows)
    if not rows:
        print(_none("No job sends or receives anything now.", unknown))
    _say_away("what jobs send and receive", unknown.away)
    say_uncounted("what is sent and received by", unknown.uncounted)
    say_unread("what is sent and received by", unknown.unread)


def drops(answer: Answer) -> None:
    """A table of what is dropped now, that some is unknown, and which WAN ports are down."""
    found, unknown = answer["drops"], Unknown.of(answer)
    # A controller before this one has none.
    down = answer.get("down") or ()
    rows = [
        (
            f"{each['packets_per_second']:.1f}{'~' if each['estimated'] else ''}",
            each["source"],
            each["destination"],
            each["rule"],
            each["host"] or each.get("switch") or each["datapath"],
        )
        for each in found
    ]
    if rows:
        table(("PACKETS/S", "FROM", "TO", "BY", "AT"), rows)
    else:
        # Drops that nobody counts are some.
        print(_none("Nothing is dropped now.", unknown, bool(down)))
    for each in down:
        lost = f"what {several(each['jobs'], 'job')} would send by it is dropped, and not counted"
        print(f"{is_down(each)}: {lost}")
    if any(each["estimated"] for each in found):
        print("~ several rules drop packets there and are not counted apart for each job; this is a share of them")
    _say_away("what is dropped", unknown.away)
    say_uncounted("what is dropped of", unknown.uncounted)
    say_unread("what is dropped of", unknown.unread)
    if cores := unknown.cores_unread:
        where = several(cores, "core switch", "core switches")
        print(f"Not known: what is dropped of groups at {where} not looked at twice yet, or not answering")


def _none(words: str, unknown: Unknown, uncounted: bool = False) -> str:
    """The words for an empty table, as far as they are known to be so."""
    return f"Of what is known: {words[0].lower()}{words[1:]}" if uncounted or any(unknown) else words


def _say_away(what: str, away: int) -> None:
    if away:
        print(f"Not known: {what} at {several(away, 'switch', 'switches')} that cannot be asked (`lark switches`)")


def say_uncounted(what: str, jobs: int) -> None:
    """Say of how many jobs the policy does not count that."""
    if jobs:
        print(f"Not counted under this policy: {what} {several(jobs, 'job')} (`accounting`)")


def say_unread(what: str, jobs: int) -> None:
    """Say of how many jobs that is not known."""
    if jobs:
        print(f"Not known: {what} {several(jobs, 'job')} whose counters are not read twice yet, or not read now")


def _subject(rates: Answer, by: str) -> str:
    """The name of a group, user, host or access point; of a job ``submit1#103.0``, by which it is found."""
    if by == "job" and rates.get("job_name"):
        return str(rates["job_name"])
    return str(rates["name"] or "(none)")
