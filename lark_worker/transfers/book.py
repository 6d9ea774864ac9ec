"""The transfers' accounts: looks at connections in, sums by starter out. Pure: no kernel, clock or file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final, NamedTuple

from lark_common.runs import Address, Network
from lark_worker.records.known_jobs import Key
from lark_worker.transfers.inet_diag import Connection

# Connections that are followed at a time, of one starter and in all.
MOST_OF_STARTER: Final = 512
MOST: Final = 16_384
# Looks after which a connection that is gone, and whose end nobody reported, is given up; and such connections that are
# remembered: one whose other end has broken it off is in no list, until its process lets it go.
_PATIENCE: Final = 3
_MOST_GIVEN_UP: Final = 1024
# A connection that is nobody's transfer is asked about again after a look, then after twice as many each time, up to
# this: one that a starter has just made is handed to its copy, and others are many.
_LONGEST: Final = 64
# Pairs of a starter and another end whose bytes are kept apart until the local networks are known.
_MOST_UNSORTED: Final = 4096

# Finds the starters whose transfers these sockets (inodes) are.
Owners = Callable[[Collection[int]], Mapping[int, Key]]


class Sums(NamedTuple):
    """The counts of a starter's transfers: bytes of payload towards the worker (``in``) and from it, the part of them
    whose other end is in the WAN, and the milliseconds in which there was one."""

    bytes_in: int = 0
    bytes_out: int = 0
    wan_bytes_in: int = 0
    wan_bytes_out: int = 0
    millis: int = 0


NOTHING: Final = Sums()


@dataclass(frozen=True, slots=True)
class Missed:
    """The traffic that is in no job's account, since the service's beginning.

    ``unseen`` are connections of whatever program that began and ended between two looks while files were moved, with
    their bytes; ``beyond`` connections found when there was no place to follow them; ``late_bytes`` came after the end
    of their job.
    """

    unseen: int = 0
    unseen_bytes: int = 0
    beyond: int = 0
    late_bytes: int = 0


class Flow(NamedTuple):
    """A connection of a starter's transfers with its last counts, found at the time ``since``; ``again`` where an
    earlier service followed it already."""

    key: Key
    connection: Connection
    since: float
    again: bool = False


class Turns(NamedTuple):
    """The flows that have been found and those that have ended, since the last question."""

    found: list[Flow]
    over: list[Flow]


@dataclass(slots=True)
class _Followed:
    key: Key
    remote: Address
    wan: bool
    received: int = 0
    sent: int = 0
    absent: int = 0
    since: float = 0.0
    again: bool = False
    # Its beginning is in the turns.
    noted: bool = False
    # As it was read last; of one that a service before this one followed, not before the first look.
    connection: Connection | None = None

    def is_of(self, each: Connection) -> bool:
        """True if this is that connection, and no earlier one of the same socket to another end."""
        last = self.connection
        return each.remote == self.remote and (last is None or each.ports == last.ports)


@dataclass(slots=True)
class _Other:
    """A connection that is nobody's transfer: asked about again in ``wait`` looks, after that in twice as many."""

    wait: int = 1
    next: int = 2


class Book:
    """The accounts of one worker's starters; not thread-safe.

    :meth:`use` sets the networks that are not the WAN, and sorts by them the bytes that were counted before.
    """

    def __init__(self) -> None:
        self._local: tuple[Network, ...] | None = None
        self._unsorted: dict[tuple[Key, Address], tuple[int, int]] = {}
        self.missed = Missed()
        self._sums: dict[Key, Sums] = {}
        self._closed: set[Key] = set()
        self._followed: dict[int, _Followed] = {}
        self._given_up: dict[int, _Followed] = {}
        self._others: dict[int, _Other] = {}
        self._of: dict[Key, int] = {}
        self._at: float | None = None
        self._turns = Turns([], [])

    def __len__(self) -> int:
        """The number of connections that are followed now."""
        return len(self._followed)

    @property
    def knows_local(self) -> bool:
        """True if it is known which networks are not the WAN."""
        return self._local is not None

    def use(self, local: tuple[Network, ...]) -> bool:
        """Count as the WAN what is not in these networks, from connections on that begin now; True for new ones."""
        new, self._local = self._local != local, local
        for (key, remote), (received, sent) in self._unsorted.items():
            if self._is_wan(remote):
                self._add(key, Sums(wan_bytes_in=received, wan_bytes_out=sent))
        self._unsorted.clear()
        for each in self._followed.values():
            each.wan = self._is_wan(each.remote) if new else each.wan
        return new

    def turns(self) -> Turns:
        """The flows that have been found and that have ended, since the last call."""
        turns, self._turns = self._turns, Turns([], [])
        return turns

    def announce(self) -> None:
        """Have the flows that are followed now among those that :meth:`turns` has as found."""
        self._turns.found.extend(self.flows())

    def flows(self) -> list[Flow]:
        """The flows that are followed now."""
        return [_flow(each, each.connection) for each in self._followed.values() if each.connection is not None]

    def sums(self, key: Key) -> Sums:
        """The counts of a starter's transfers so far."""
        return self._sums.get(key, NOTHING)

    def close(self, key: Key) -> Sums:
        """Close the sums of a starter whose job is over: nothing is added to them any more; returns them."""
        self._closed.add(key)
        self._unsorted = {place: counts for place, counts in self._unsorted.items() if place[0] != key}
        return self._sums.pop(key, NOTHING)

    def keep(self, keys: Collection[Key]) -> None:
        """Forget starters that are not among these and have no connection left."""
        for each in [key for key in self._sums if key not in keys and key not in self._of]:
            self.close(each)
        self._closed = {key for key in self._closed if key in keys or key in self._of}
        self._given_up = {cookie: each for cookie, each in self._given_up.items() if each.key in keys}

    def look(self, at: float, there: Iterable[Connection], ended: Iterable[Connection], owners: Owners) -> None:
        """Take in a look at the time ``at`` (seconds): the connections that there are, and those that have ended since
        the look before, which may be among the former."""
        busy = set(self._of)
        over = {each.cookie: each for each in ended}
        open_ = {each.cookie: each for each in there if each.cookie not in over}
        for cookie, each in open_.items():
            if (known := self._known(cookie, each, at)) is not None:
                known.absent = 0
                self._count(known, each, at)
        for cookie, each in over.items():
            self._end(cookie, each, at)
        for cookie in [cookie for cookie in self._followed if cookie not in open_]:
            known = self._followed[cookie]
            known.absent += 1
            if known.absent >= _PATIENCE:
                self._give_up(cookie)
        self._others = {cookie: other for cookie, other in self._others.items() if cookie in open_}
        self._find([each for each in open_.values() if each.cookie not in self._followed and each.inode], owners, at)
        if self._at is not None and at > self._at:
            for key in busy:
                self._add(key, Sums(millis=round(1000 * (at - self._at))))
        self._at = at

    def connections(self, keys: Collection[Key]) -> list[tuple[Key, Connection]]:
        """The connections that are followed now of these starters."""
        return [
            (each.key, each.connection)
            for each in self._followed.values()
            if each.key in keys and each.connection is not None
        ]

    def rest(self) -> None:
        """Note that no files are moved: the time until the next look belongs to no transfer, and connections that begin
        and end until then are nobody's."""
        self._at = None
        self._others.clear()

    def stored(self) -> dict[str, Any]:
        """The accounts as JSON."""
        return {
            "local": None if self._local is None else [str(network) for network in self._local],
            "unsorted": [[*key, str(remote), *counts] for (key, remote), counts in self._unsorted.items()],
            "sums": [[*key, *sums] for key, sums in self._sums.items()],
            "followed": [
                [cookie, *each.key, str(each.remote), each.received, each.sent, each.since]
                for cookie, each in self._followed.items()
                if each.key not in self._closed
            ],
        }

    def restore(self, stored: Mapping[str, Any], same: bool) -> None:
        """Go on from stored accounts, with ``same`` of this very boot: of another one no connection lives on. Raises
        ValueError, TypeError, KeyError for what is none."""
        local = stored["local"]
        self._local = None if local is None else tuple(map(ip_network, local))
        if not same:
            return
        sums = {(int(row[0]), int(row[1])): Sums._make(map(_count, row[2:])) for row in stored["sums"]}
        followed = {
            int(cookie): _Followed(
                (int(pid), int(started)),
                ip_address(remote),
                False,
                _count(received),
                _count(sent),
                since=float(since[0]) if since else 0.0,
                again=True,
            )
            for cookie, pid, started, remote, received, sent, *since in stored["followed"]
        }
        unsorted = {
            ((int(pid), int(started)), ip_address(remote)): (_count(received), _count(sent))
            for pid, started, remote, received, sent in stored["unsorted"]
        }
        self._sums, self._followed, self._unsorted, self._of = sums, followed, unsorted, {}
        for each in followed.values():
            each.wan = self._is_wan(each.remote)
            self._of[each.key] = self._of.get(each.key, 0) + 1

    def _find(self, unknown: list[Connection], owners: Owners, at: float) -> None:
        due = []
        for each in unknown:
            other = self._others.get(each.cookie)
            if other is None:
                self._others[each.cookie] = _Other()
                due.append(each)
            elif other.wait > 1:
                other.wait -= 1
            else:
                other.wait, other.next = other.next, min(2 * other.next, _LONGEST)
                due.append(each)
        if not due:
            return
        found = owners({each.inode for each in due})
        for each in due:
            cookie, key = each.cookie, found.get(each.inode)
            if key is None:
                continue
            if len(self._followed) >= MOST or self._of.get(key, 0) >= MOST_OF_STARTER:
                # It may have room at a later look; the wait is counted.
                self._miss(beyond=1)
                continue
            del self._others[cookie]
            self._count(
                self._follow(cookie, _Followed(key, each.remote, self._is_wan(each.remote), since=at)), each, at
            )

    def _known(self, cookie: int, each: Connection, at: float) -> _Followed | None:
        """The place where a connection is followed; None where it is not.

        A process may disconnect a socket and connect it again (connect(2), AF_UNSPEC): nobody reports that, its cookie
        stays, and its counts begin anew.
        """
        if (known := self._given_up.pop(cookie, None)) is not None:
            # Its end was noted too early.
            known.again, known.noted = True, False
            self._follow(cookie, known)
        known = self._followed.get(cookie)
        if known is None or known.is_of(each):
            return known
        self._forget(cookie)
        return self._follow(cookie, _Followed(known.key, each.remote, self._is_wan(each.remote), since=at))

    def _follow(self, cookie: int, known: _Followed) -> _Followed:
        self._followed[cookie] = known
        self._of[known.key] = self._of.get(known.key, 0) + 1
        return known

    def _end(self, cookie: int, each: Connection, at: float) -> None:
        gone = self._given_up.get(cookie)
        if not each.ports[1] and (gone is not None or cookie in self._followed):
            # It was disconnected first, as by a close without lingering (SO_LINGER): its counts are gone, and no other
            # connection has come.
            self._given_up.pop(cookie, None)
            if cookie in self._followed:
                self._forget(cookie)
        elif gone is not None and gone.is_of(each):
            # Its end was noted before its last bytes were known.
            del self._given_up[cookie]
            gone.noted = True
            self._count(gone, each, at)
        elif (known := self._known(cookie, each, at)) is not None:
            self._count(known, each, at)
            self._forget(cookie)
        elif self._others.pop(cookie, None) is None and self._at is not None:
            self._miss(unseen=1, unseen_bytes=each.received + each.sent)

    def _give_up(self, cookie: int) -> None:
        if len(self._given_up) >= _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[cookie] = self._forget(cookie)

    def _forget(self, cookie: int) -> _Followed:
        known = self._followed.pop(cookie)
        key = known.key
        if known.connection is not None:
            self._turns.over.append(_flow(known, known.connection))
        self._of[key] -= 1
        if not self._of[key]:
            del self._of[key]
        return known

    def _count(self, known: _Followed, each: Connection, at: float) -> None:
        """Count what is new of a connection, whose counts go on from its beginning."""
        if not known.noted:
            known.noted = True
            # Stored by a service that kept no times.
            known.since = known.since or at
            self._turns.found.append(_flow(known, each))
        known.connection = each
        if each.received < known.received or each.sent < known.sent:
            # Connected anew, to the same end.
            known.received = known.sent = 0
        received, sent = each.received - known.received, each.sent - known.sent
        known.received, known.sent = each.received, each.sent
        if not received and not sent:
            return
        self._add(known.key, Sums(received, sent, received * known.wan, sent * known.wan))
        place = known.key, known.remote
        if self._local is None and (place in self._unsorted or len(self._unsorted) < _MOST_UNSORTED):
            before = self._unsorted.get(place, (0, 0))
            self._unsorted[place] = before[0] + received, before[1] + sent

    def _add(self, key: Key, new: Sums) -> None:
        if key in self._closed:
            self._miss(late_bytes=new.bytes_in + new.bytes_out)
            return
        old = self._sums.get(key, NOTHING)
        self._sums[key] = Sums(*(before + more for before, more in zip(old, new, strict=True)))

    def _miss(self, unseen: int = 0, unseen_bytes: int = 0, beyond: int = 0, late_bytes: int = 0) -> None:
        old = self.missed
        self.missed = Missed(
            old.unseen + unseen, old.unseen_bytes + unseen_bytes, old.beyond + beyond, old.late_bytes + late_bytes
        )

    def _is_wan(self, remote: Address) -> bool:
        if self._local is None:
            return False
        return not any(remote.version == network.version and remote in network for network in self._local)


def _flow(known: _Followed, connection: Connection) -> Flow:
    return Flow(known.key, connection, known.since, known.again)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
