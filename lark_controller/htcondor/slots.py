"""Startd ads as values: which slot runs which job, by the pool's own word. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from lark_common.classads.ads import group_of

# The attributes that the collector is asked for. Owner, AcctGroup, AcctGroupUser, JobCurrentStartDate and JobUniverse
# are there where STARTD_JOB_ATTRS of the workers names them (etc/condor/50-lark.conf does); the others HTCondor writes
# by itself.
ATTRIBUTES: Final = (
    "Name", "Machine", "LastHeardFrom", "MyCurrentTime", "State", "GlobalJobId", "RemoteOwner", "AccountingGroup",
    "Owner", "AcctGroup", "AcctGroupUser", "JobCurrentStartDate", "JobUniverse", "SlotType", "NumDynamicSlots",
    "ChildName",
)  # fmt: skip
PARALLEL: Final = 11
# Slots of one job that are kept: as many as a parallel job has nodes at most. Each of its runs may be compared with all
# of them, and whoever may advertise slots may name one job in ever so many.
MOST_OF_JOB: Final = 4096

AdValues = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot as its ad describes it.

    ``as_of`` is the time of these values, in seconds since 1970: the earlier of the startd's and the collector's clock.
    ``global_job_id`` is ``""`` where the slot runs no job. ``started`` is JobCurrentStartDate, 0 where the ad does not
    say it. ``owner`` is ``""`` and ``group`` None where the ad does not say whose the job is. ``children`` are the
    dynamic slots of a partitionable one, None where the ad does not list them.
    """

    name: str
    machine: str
    as_of: float
    global_job_id: str = ""
    started: int = 0
    owner: str = ""
    group: str | None = None
    universe: int | None = None
    children: frozenset[str] | None = None


def slot_of(ad: AdValues) -> Slot | None:
    """The slot of a startd ad's values; None for an ad without Name, Machine or time."""
    name, machine = _text(ad, "Name"), _text(ad, "Machine")
    times = [time for key in ("LastHeardFrom", "MyCurrentTime") if (time := _number(ad, key)) is not None]
    if not name or not machine or not times:
        return None
    owner = _text(ad, "Owner") or _text(ad, "RemoteOwner").partition("@")[0]
    return Slot(
        name,
        machine,
        min(times),
        _text(ad, "GlobalJobId"),
        int(_number(ad, "JobCurrentStartDate") or 0),
        owner,
        _group(ad, owner),
        None if (universe := _number(ad, "JobUniverse")) is None else int(universe),
        _children(ad),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """The collector's ads at one time.

    ``at`` is when it was asked and ``began`` when it had started (its own clock; it forgets everything when it stops),
    in seconds since 1970. ``machines`` maps each machine (lower case) to the time of its last ad.
    """

    at: float
    began: float
    slots: Mapping[str, Slot]
    runs: Mapping[str, tuple[Slot, ...]] = field(repr=False)
    machines: Mapping[str, float] = field(repr=False)


def reading(at: float, began: float, slots: Iterable[Slot]) -> Reading:
    """A reading of these slots; of two ads with one name the later counts."""
    by_name: dict[str, Slot] = {}
    for slot in slots:
        known = by_name.get(slot.name)
        if known is None or known.as_of <= slot.as_of:
            by_name[slot.name] = slot
    runs: dict[str, list[Slot]] = {}
    machines: dict[str, float] = {}
    for slot in by_name.values():
        if slot.global_job_id and len(known_runs := runs.setdefault(slot.global_job_id, [])) < MOST_OF_JOB:
            known_runs.append(slot)
        machine = slot.machine.lower()
        machines[machine] = max(slot.as_of, machines.get(machine, 0.0))
    return Reading(at, began, by_name, {name: tuple(found) for name, found in runs.items()}, machines)


def parent_of(name: str) -> str | None:
    """The partitionable slot that a dynamic slot (``slot1_2@host``) is part of; None for a name of another form."""
    slot, at, host = name.partition("@")
    parent, under, number = slot.partition("_")
    return f"{parent}@{host}" if at and under and number.isdecimal() else None


def _group(ad: AdValues, owner: str) -> str | None:
    """The job's group; None where the ad does not say it.

    An ad without a group shows that there is none only where STARTD_JOB_ATTRS puts groups there, as other names show.
    """
    acct_group, whole, user = (_text(ad, name) for name in ("AcctGroup", "AccountingGroup", "AcctGroupUser"))
    if not acct_group and not whole and not (_text(ad, "Owner") and _number(ad, "JobCurrentStartDate") is not None):
        return None
    return group_of(acct_group, whole, user, owner=owner)


def _children(ad: AdValues) -> frozenset[str] | None:
    if _text(ad, "SlotType") != "Partitionable":
        return None
    if _number(ad, "NumDynamicSlots") == 0:
        return frozenset()
    names = ad.get("ChildName")
    return frozenset(map(str, names)) if isinstance(names, list) else None


def _text(ad: AdValues, name: str) -> str:
    value = ad.get(name)
    return value if isinstance(value, str) else ""


def _number(ad: AdValues, name: str) -> float | None:
    value = ad.get(name)
    # JSON's infinity and NaN are no time or count.
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None
