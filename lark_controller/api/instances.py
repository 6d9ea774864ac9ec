"""The instances of the controller on one database: one is active, the others stand by."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, Protocol

from lark_controller.api.described import At

# Seconds without a new sign of life after which an instance counts as lost, where it is read often enough.
AWAY_SECONDS: Final = 6.0

ACTIVE: Final = "active"
STARTING: Final = "starting"
STANDBY: Final = "standby"
STOPPED: Final = "stopped"
LOST: Final = "lost"


class Why(StrEnum):
    """The reasons for which an instance becomes the active one."""

    FIRST = "first"
    RELEASED = "released"
    DRAINED = "drained"
    RESTARTED = "restarted"
    ENDED = "ended"
    SILENT = "silent"


# Words for each reason, after "took over: ".
WORDS: Final = {
    Why.FIRST: "none was active before",
    Why.RELEASED: "the active one stopped",
    Why.DRAINED: "an operator had the active one let go, or it had lost its switches",
    Why.RESTARTED: "it was the active one itself, and was started again",
    Why.ENDED: "the session of the active one with the database ended",
    Why.SILENT: "the active one gave no sign of life",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """An instance: ``id`` is of the process alone, ``name``, ``url`` and ``boot`` survive its restart.

    ``boot`` is the present run of the machine's kernel: by it, a copy of the machine is another instance.
    """

    id: str
    name: str
    url: str
    version: str
    boot: str = ""


class Sign(NamedTuple):
    """An instance's signs of life as they were read: their number, and the seconds since the last one was written, by
    the database's clock."""

    instance: str
    beat: int
    age: float


@dataclass(frozen=True, slots=True)
class Look:
    """The term as an instance has read it.

    ``holder`` is an instance's id, ``""`` where nobody is active; ``why`` then is why its last holder let go.
    ``beat`` counts the holder's signs of life. ``held`` is True while the session of that holder with the database is
    there, in ``server``: the database server's present run. ``alone`` is True where no other can use the database.
    ``key`` is the term's, ``""`` where its holder has written none yet. ``away`` are switches that the holder misses,
    while it misses most. ``tables`` is the version of the database's tables. ``signs`` are those of all instances.
    """

    generation: int
    holder: str = ""
    name: str = ""
    url: str = ""
    beat: int = 0
    held: bool = False
    server: str = ""
    why: str = ""
    since: float = 0.0
    alone: bool = False
    boot: str = ""
    key: str = field(default="", repr=False)
    away: tuple[int, ...] = ()
    tables: str = ""
    signs: tuple[Sign, ...] = ()


class Expected(NamedTuple):
    """The number of switches that are expected, since they are declared or have jobs, and of those of them that are
    connected to the active instance itself; the others are ``away``, and listed where they are most."""

    total: int
    connected: int
    away: tuple[int, ...] = ()


class Reached(NamedTuple):
    """An instance that stands by and knows the tables, and how many of the switches that it was asked for are connected
    to it."""

    instance: str
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Term:
    """The time in which one instance is the active one; ``since`` by the database's clock. ``before`` is the name of
    the one before, ``""`` where there was none; ``silence`` the seconds since that one's last sign of life, None where
    not known."""

    generation: int
    since: float
    why: Why
    before: str = ""
    silence: float | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of the controller."""

    id: Annotated[str, "Its id, another after each start"]
    name: Annotated[str, "Its name"]
    url: Annotated[str, "The URL of its REST API"]
    version: Annotated[str, "Its version of Lark"]
    state: Annotated[
        str,
        "active, starting, standby, stopped, or lost: another has its place, or it gives no sign of life, by the rule "
        "by which an active one is followed",
    ]
    started: Annotated[At, "Time when it started"]
    beat_age: Annotated[float, "Seconds since it wrote the last sign of life that is in the database"]
    tokens: Annotated[str, "Digest of the tokens in its LARK_TOKENS_FILE, to compare; empty where not known"] = ""
    copy_age: Annotated[
        float | None,
        "Seconds since its copy of the directory was as the database had it; null where it has none, or does not "
        "stand by",
    ] = None
    counters_read: Annotated[
        int | None,
        "Switches whose counters it has read in the last minute for the active one; null where it does not stand by, "
        "or that is not known",
    ] = None
    kept: Annotated[
        int | None,
        "Switches that are connected to it while it stands by; null where it does not, or that is not known",
    ] = None
    successor: Annotated[
        bool | None,
        "False where it cannot take over, since the database's tables are of a later release than it; null where it "
        "does not stand by, or that is not known",
    ] = None


@dataclass(frozen=True, slots=True)
class Instances:
    """All instances on the database, and the present term."""

    generation: Annotated[int, "The number of the term; each is higher than the one before"]
    active: Annotated[str | None, "The id of the active instance; null where there is none"]
    since: Annotated[At | None, "Time of the last takeover"]
    why: Annotated[str, "Its reason: first, released, drained, restarted, ended or silent; empty before the first"]
    instances: Annotated[tuple[Instance, ...], "The instances, the active one first"]
    age: Annotated[
        float,
        "Seconds since all this was read; more than 0 where the database does not answer, and it is the last known",
    ] = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of an instance in the term, as it has read it last. ``name`` and ``url`` are the active one's; ``key``
    is the term's, by which its instances recognise each other: ``""`` where no request can be handed on. ``successor``
    is True where it stands by and can take over: it knows the database's tables."""

    active: bool
    generation: int
    since: float
    name: str = ""
    url: str = ""
    sentence: str = ""
    key: str = field(default="", repr=False)
    successor: bool = False


class InstanceControls(Protocol):
    """Operations on the instances. Thread-safe."""

    def standing(self) -> Standing:
        """The place of this instance in the term; asks no database."""

    def all(self) -> Instances:
        """All instances, as they were read last where the database does not answer. Raises StoreError."""

    def drain(self, instance: str, actor: str) -> Instances:
        """Let the active instance, by id or name, let go, so that another takes over; then it ends, and stands by once
        it is started again. Raises NotFoundError, StateError, StoreError."""
