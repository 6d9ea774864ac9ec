"""The facts of two ads: the attributes that the running policy refers to, as values."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import classad2

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.classads.evaluation import evaluate, is_plain
from lark_common.classads.parts import Ad
from lark_common.classads.text import literal
from lark_common.classads.values import PREFIXED
from lark_common.errors import AdError
from lark_controller.jobs.job import Facts, shared_facts

# Characters of a fact. Facts are kept in memory for each job, and remembered with what was decided for them; an ad may
# hold a string of 250 kB.
MAX_FACT: Final = 4096
# The same of all facts of a job together.
MAX_FACTS: Final = 32768


class Known(NamedTuple):
    """The values that are read of a job ad when it is posted; the group is ``""`` for none."""

    owner: str
    user: str
    group: str
    inbound: bool | None
    outbound: bool | None


def facts(job_ad: JobAd, machine_ad: MachineAd, names: tuple[frozenset[str], frozenset[str]]) -> Facts:
    """The facts of ads that are posted, see :func:`taken`."""
    known = Known(job_ad.owner, job_ad.user, job_ad.group, job_ad.inbound, job_ad.outbound)
    return taken(known, job_ad.ad, machine_ad.ad, names)


def taken(known: Known, job_ad: Ad, machine_ad: Ad, names: tuple[frozenset[str], frozenset[str]]) -> Facts:
    """The values of the attributes ``names`` (of the job ad, of the machine ad; in lower case).

    An attribute that is an expression is evaluated here, once, with the other ad as TARGET, so a fact needs no other
    attribute. Attributes that are absent or Undefined are left out; one that cannot be evaluated, or is longer than
    :data:`MAX_FACT` or than what :data:`MAX_FACTS` leaves, is ``error``.
    Owner, User, AcctGroup and the attributes of connectivity are those of ``known``, and machine attributes are found
    with or without the prefix Lark.
    """
    read: dict[str, Any] = {
        "owner": known.owner,
        "acctgroup": known.group or None,
        "user": known.user,
        "inboundconnectivity": known.inbound,
        "outboundconnectivity": known.outbound,
    }
    room = Room()
    job = []
    for name in sorted(names[0]):
        value = read[name] if name in read else _value(job_ad, name, machine_ad)
        if value is not None:
            job.append((name, room.fact(value)))
    machine = []
    for name in sorted(names[1]):
        bare = name.removeprefix("lark")
        value = None
        for candidate in (f"lark{bare}", bare) if bare in PREFIXED else (name,):
            value = _value(machine_ad, candidate, job_ad)
            if value is not None:
                break
        if value is not None:
            machine.append((name, room.fact(value)))
    return shared_facts(Facts(tuple(job), tuple(machine)))


class Room:
    """The characters that are left for a job's facts."""

    def __init__(self) -> None:
        self._left = MAX_FACTS

    def fact(self, value: Any) -> str:
        """A value as a fact; ``error`` where it is too long."""
        text = literal(value)
        if len(text) > min(MAX_FACT, self._left):
            return literal(classad2.Value.Error)
        self._left -= len(text)
        return text


def _value(ad: Ad, name: str, target: Ad) -> Any:
    try:
        value = evaluate(ad, name, target)
        return value if is_plain(value) else classad2.Value.Error
    except AdError:
        return classad2.Value.Error
