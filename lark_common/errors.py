"""The one exception tree.

    LarkError
    ├── AdError            an ad that cannot be accepted: attribute and reason
    ├── PolicyError        a policy file with mistakes, all of them
    ├── AddressError       no address can be assigned, or one is held by another live job
    ├── AdmissionError     bandwidth that cannot be promised
    │   ├── ApartError         the policy lets nothing pass from a job to a destination
    │   ├── CapacityError      a link has no room; all such links
    │   ├── ExternalAddressError   no external address for a job, or not on these terms
    │   └── PathError          the declared topology has no path between two ends, or there is none
    ├── NotFoundError      no such job, switch, address, reservation or policy version
    ├── AmbiguousError     a word that names several jobs; all of them
    ├── SettingError       a setting (environment or option) that cannot be used
    ├── BusyError          a limit on waiting or queued work was reached
    ├── ChangedError       the policy in force is another than the one that a change was made for
    ├── StateError         a job is not in the state that a change is for
    ├── StoreError         the database cannot be reached or refuses
    │   └── FencedError        another controller is the active one; nothing was written
    ├── StandbyError       this controller stands by; another one is active, or none yet
    ├── PoolError          HTCondor's collector cannot be asked
    ├── NameServerError    a DNS server that does not do what it was asked
    └── SwitchError        a switch that does not do what it was asked
        ├── UnsupportedError   the switch lacks a feature that the policy needs
        └── RuleLimitError     the switch's rule limit would be exceeded

Every one carries a sentence that a user can read; none needs a traceback to be understood.
"""

from __future__ import annotations

from dataclasses import dataclass


class LarkError(Exception):
    """Base of Lark's exceptions; ``str()`` is a sentence for the user."""


class AdError(LarkError):
    """An ad that cannot be accepted.

    ``attribute`` is the one at fault (``""``: the whole ad), ``reason`` the mistake and what is accepted.
    """

    def __init__(self, attribute: str, reason: str) -> None:
        super().__init__(f"{attribute}: {reason}" if attribute else reason)
        self.attribute = attribute
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in a policy file: where it is (1-based line and column), which key, and what is accepted there."""

    line: int
    column: int
    key: str
    problem: str
    accepted: str = ""

    def __str__(self) -> str:
        accepted = f"; accepted: {self.accepted}" if self.accepted else ""
        return f"line {self.line}, {self.key or 'file'}: {self.problem}{accepted}"


class PolicyError(LarkError):
    """A policy file that cannot be used; ``mistakes`` holds every one found, in file order."""

    def __init__(self, source: str, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__("\n".join(f"{source}: {mistake}" for mistake in mistakes))
        self.source = source
        self.mistakes = mistakes


class AddressError(LarkError):
    """An address cannot be assigned, or is held by another live job (``holder`` is that job's id, or ``""``)."""

    def __init__(self, attribute: str, reason: str, holder: str = "") -> None:
        super().__init__(f"{attribute}: {reason}" if attribute else reason)
        self.attribute = attribute
        self.reason = reason
        self.holder = holder


@dataclass(frozen=True, slots=True)
class Shortage:
    """A link that has no room. Rates are Mb/s; ``asked`` would have come on top of ``reserved``.

    ``source`` and ``target`` are the direction of a full-duplex link that is short; both are ``""`` where both
    directions share the link. ``held``: the part of ``asked`` that the same reservation has already. ``own``: the part
    of ``reserved`` that jobs of the same cluster hold by other reservations; None: they are too many to be looked at.
    """

    link: str
    source: str
    target: str
    capacity: float
    reserved: float
    asked: float
    held: float = 0.0
    own: float | None = 0.0

    @property
    def available(self) -> float:
        """The most that the reservation could have of the link, Mb/s; less than 0 where the policy made it smaller than
        the reserved."""
        return round(self.capacity - self.reserved, 3)

    @property
    def channel(self) -> str:
        """The name under which reservations on it are counted."""
        return f"{self.link} {self.source}>{self.target}" if self.source else self.link

    def __str__(self) -> str:
        way = f" ({self.source} to {self.target})" if self.source else " (both directions)"
        left = max(0.0, round(self.available - self.held, 3))
        already = f" in all, {self.held:g} of them held already" if self.held else ""
        others = round(self.reserved - (self.own or 0), 3)
        who = "others hold" if self.own is not None else "others and jobs of the same cluster hold"
        holders = [f"{who} {others:g}"] if others > 0 else []
        holders += [f"jobs of the same cluster hold {self.own:g} besides"] if self.own else []
        return (
            f"link {self.link}{way} has {left:g} of {self.capacity:g} Mb/s left, and {self.asked:g} are asked{already}"
            + (f" ({', '.join(holders)})" if holders else "")
        )


class AdmissionError(LarkError):
    """Bandwidth that cannot be promised.

    ``idle``: a job that is refused for it goes back to Idle; else it goes on hold.
    """

    idle = False


class CapacityError(AdmissionError):
    """The network has no room; ``shortages`` holds every link that is short, in path order, ``notes`` are sentences on
    them."""

    def __init__(self, what: str, shortages: tuple[Shortage, ...], notes: tuple[str, ...] = ()) -> None:
        super().__init__(f"the network has no room for {what}: {'; '.join([*map(str, shortages), *notes])}")
        self.what = what
        self.shortages = shortages


class PathError(AdmissionError):
    """The declared topology does not say how two ends are connected, or how fast; or none is declared."""


class ApartError(AdmissionError):
    """The policy lets nothing pass from a job to another one, or to the WAN."""


class ExternalAddressError(AdmissionError):
    """A job cannot have an external address: no rule or pool has one for it, or a limit was met."""


class PoolExhaustedError(ExternalAddressError):
    """A pool of external addresses has none left."""


class NameServerError(LarkError):
    """A name is not added to its zone or removed from it. ``away``: nothing else would be either, now; ``untouched``:
    the zone is as it was, for certain."""

    def __init__(self, sentence: str, away: bool = False, untouched: bool = False) -> None:
        super().__init__(sentence)
        self.away = away
        self.untouched = untouched


class NotFoundError(LarkError):
    """No job, switch, address, reservation or policy version of that name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that a word may mean. ``name`` is CLUSTER.PROC with the access point in front (``submit1#103.0``)."""

    id: str
    name: str
    global_job_id: str
    slot: str
    state: str

    def __str__(self) -> str:
        return f"{self.name} on {self.slot} ({self.state}, id {self.id})"


class AmbiguousError(LarkError):
    """A word that names several jobs; ``candidates`` holds them, the newest first, up to a limit."""

    def __init__(self, word: str, candidates: tuple[Candidate, ...], more: bool = False) -> None:
        listed = "; ".join(map(str, candidates)) + ("; and more" if more else "")
        super().__init__(
            f"{word} may mean several jobs: {listed}. "
            "Say which by CLUSTER.PROC, with its access point (submit1#103.0), by its GlobalJobId or its id"
        )
        self.candidates = candidates


class SettingError(LarkError):
    """A setting that cannot be used; the sentence names it and what is accepted."""


class UnreadableError(SettingError):
    """A file cannot be opened or read now; its content may be good."""


class BusyError(LarkError):
    """A limit on waiting or queued work was reached; ask again later."""


class ChangedError(LarkError):
    """The policy in force is another than the one that a change was made for; nothing has changed."""


class StateError(LarkError):
    """A job is not in the state that a change is for; nothing has changed."""


class StoreError(LarkError):
    """The database cannot be reached, or refuses."""


class UnansweredError(StoreError):
    """The database gave no answer to a commit: the change was written, or it was not."""


class FencedError(StoreError):
    """Another controller is the active one, so that this one may not write; nothing was written."""


class StandbyError(LarkError):
    """This controller stands by; ``active`` is the URL of the active one, ``""`` where none is known."""

    def __init__(self, sentence: str, active: str = "") -> None:
        super().__init__(sentence)
        self.active = active


class PoolError(LarkError):
    """HTCondor's collector cannot be queried, or its answer cannot be read."""


class SwitchError(LarkError):
    """A switch that does not carry out a request."""


class UnsupportedError(SwitchError):
    """The switch lacks a feature (connection tracking, meters, a table) that the policy needs there."""


class RuleLimitError(SwitchError):
    """The switch's rule limit would be exceeded; nothing of the change was sent."""
