"""The starters of this worker, and the processes below them that move files.

A starter moves files in a copy of itself (a fork that runs the same program), and plugins are started by that copy. So
a connection is a transfer's if such a copy or a process below it holds it, and the starter itself does not: what the
starter holds too, its copies have inherited. Hooks, the job and sessions of condor_ssh_to_job are children of the
starter that run other programs, and the job's processes have another network namespace.

Checkpoints a starter moves itself. For as long as that takes it does nothing else and acts as its job's user (by
effective id), and otherwise for moments only. So the connections that it had not held for long before are a transfer's
then, and those that its new children hold, which are plugins.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from lark_worker.identity.processes import Programs, is_alive, read_process
from lark_worker.records.known_jobs import Key

# Processes below one starter that are looked at, and threads of each whose children are.
MOST_PROCESSES: Final = 64
MOST_THREADS: Final = 64
# Descriptors that are looked at, of all processes below one starter together: a job may bring its own plugins, and the
# time that one job's processes take is taken from the looks at all others.
MOST_DESCRIPTORS: Final = 4096
# Seconds between two looks for startds, and at what a starter holds while its job runs.
STARTD_SECONDS: Final = 5.0
REST_SECONDS: Final = 15.0
# Part of the looks at a startd in which it acts as HTCondor's account at least; for moments it acts as others.
ACCOUNT_SHARE: Final = 0.1
# Bytes of a list of children after which no more is read: some 8,000 of a daemon's, some 300 of another process. The
# kernel gives a page a read, whatever is asked for.
_MOST_BYTES: Final = 1 << 16
_MOST_OF_OTHERS: Final = 1 << 11
_PAGE: Final = 1 << 12
_LINKS_OF_ONE: Final = 3
_SOCKET: Final = "socket:["


@dataclass(frozen=True, slots=True)
class Mover:
    """A starter with its processes that move files now. ``before`` are the sockets that it held before it began to move
    files itself; None where it does not."""

    key: Key
    processes: tuple[int, ...]
    before: frozenset[int] | None = None


class _Child(NamedTuple):
    """A startd's child: the folder that it has in ``/proc``, which is another one when its id is used again, its
    effective user, and its key where it is a starter."""

    folder: int
    user: int
    key: Key | None


@dataclass(slots=True)
class _Rest:
    """A starter as it was when it last acted as itself, at the time ``at``: its sockets, its children, and the times at
    which those of its sockets were found that may be a transfer's. ``looks`` are those since then."""

    at: float
    sockets: frozenset[int]
    children: frozenset[int]
    new: dict[int, float] = field(default_factory=dict)
    looks: int = 0


class Starters:
    """Finds starters and their transfers' processes in ``/proc``; not thread-safe."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        # Relative paths from here cost half of what whole ones do, and there are thousands a second.
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own = self._link("self/ns/net")
        self._startds: tuple[int, ...] = ()
        self._looked = -STARTD_SECONDS
        # By process id, while it is a startd's child: the starter, and its children when none was a copy of it.
        self._known: dict[int, _Child] = {}
        self._idle: dict[int, tuple[int, ...]] = {}
        self._rests: dict[int, _Rest] = {}
        # The effective users of HTCondor's daemons: root's, and that of its own account. By a startd's process id, in
        # how many looks it had which.
        self._users: set[int] = {0}
        self._acted: dict[int, Counter[int]] = {}
        # Copies of the look before, whose user need not be read again; and starters' children with the starter's
        # program that were none, of the look before and of this one.
        self._copies: set[int] = set()
        self._forked: set[int] = set()
        self._forking: set[int] = set()

    def close(self) -> None:
        """Look no more."""
        os.close(self._proc)

    def look(self, at: float) -> tuple[frozenset[Key], list[Mover]]:
        """All starters, and those that move files now. ``at`` is the time in seconds of any clock."""
        if at - self._looked >= STARTD_SECONDS or not all(map(self._is_startd, self._startds)):
            self._looked = at
            with os.scandir(self._proc) as entries:
                there = [int(entry.name) for entry in entries if entry.name.isdigit()]
            self._startds = tuple(pid for pid in there if self._is_startd(pid))
        self._note_users()
        pids = [pid for startd in self._startds for pid in self._children(startd)]
        # A list that is read while one of the children ends may leave out another (proc_pid_task(5)).
        absent = self._known.keys() - set(pids)
        pids += [pid for pid in absent if (key := self._known[pid].key) is not None and is_alive(*key)]
        before, self._known = self._known, {}
        for pid in pids:
            if (child := self._child(pid, before.get(pid))) is not None:
                self._known[pid] = child
        keys = {pid: child.key for pid, child in self._known.items() if child.key is not None}
        same = {pid for pid, key in keys.items() if pid in before and before[pid].key == key}
        self._idle = {pid: children for pid, children in self._idle.items() if pid in same}
        self._rests = {pid: rest for pid, rest in self._rests.items() if pid in same}
        self._forked, self._forking = self._forking, set()
        movers = [mover for pid, key in keys.items() if (mover := self._mover(pid, key, at))]
        self._copies = {pid for mover in movers for pid in mover.processes}
        return frozenset(keys.values()), movers

    def owners(self, movers: Collection[Mover], inodes: Collection[int], near: Collection[int] = ()) -> dict[int, Key]:
        """The starters whose transfers these sockets are, by inode; others are left out. ``near`` are the sockets whose
        other end is on this machine: a starter has such connections to its startd and its job."""
        found: dict[int, Key] = {}
        missing = set(inodes)
        for mover in movers:
            held, left = set[int](), MOST_DESCRIPTORS
            for pid in mover.processes:
                inodes_of, looked = self._sockets(pid, left)
                held |= inodes_of & missing
                left -= looked
                if left <= 0:
                    break
            own = self._own_sockets(mover.key[0]) if held or mover.before is not None else set()
            if own is None:
                # Nothing is its copies' alone while its own are unknown: it has ended, or is looked at again.
                continue
            if mover.before is not None:
                held = (held | own & missing).difference(mover.before, near)
            else:
                # Read after the others: a copy has everything that its starter had when it began.
                held -= own
            for inode in held:
                found[inode] = mover.key
            missing -= held | own
            if not missing:
                break
        return found

    def _note_users(self) -> None:
        """Note as whom the startds act now, and whose account HTCondor's is by that.

        No look alone shows it: a startd is root, or a job's user, for moments.
        """
        self._acted = {pid: self._acted.get(pid, Counter()) for pid in self._startds}
        for pid, acted in self._acted.items():
            if (user := self._user(pid)) is not None:
                acted[user] += 1
        self._users = {0}.union(
            user
            for acted in self._acted.values()
            for user, looks in acted.items()
            if looks >= ACCOUNT_SHARE * acted.total()
        )

    def _is_startd(self, pid: int) -> bool:
        return self._program(pid) in self._programs.startds and self._is_daemon(pid)

    def _is_daemon(self, pid: int) -> bool:
        try:
            return read_process(pid).uid == self._programs.uid
        except OSError:
            return False

    def _child(self, pid: int, before: _Child | None) -> _Child | None:
        """A startd's child as it is now; None where that shows at a later look, or not any more."""
        if (found := self._stat(pid)) is None:
            return None
        if before is not None and before.folder == found.st_ino:
            return before if before.user == found.st_uid else before._replace(user=found.st_uid)
        # Between fork and exec a starter runs its startd's program.
        if self._program(pid) in self._programs.startds:
            return None
        return _Child(found.st_ino, found.st_uid, self._starter(pid))

    def _starter(self, pid: int) -> Key | None:
        if self._program(pid) not in self._programs.starters:
            return None
        try:
            process = read_process(pid)
        except OSError:
            return None
        return (pid, process.started) if process.uid == self._programs.uid else None

    def _mover(self, pid: int, key: Key, at: float) -> Mover | None:
        children = self._children(pid)
        rest, forked = self._rests.get(pid), set[int]()
        # Now and then the same children, too: an id may have been used again.
        is_due = rest is None or at - rest.at >= REST_SECONDS
        if not children or is_due or self._idle.get(pid) != children:
            copies = [child for child in children if self._is_copy(child)]
            if copies:
                return Mover(key, self._below(copies))
            forked = {child for child in children if self._program(child) in self._programs.starters}
            self._forking |= forked
            if forked - self._forked:
                # Between fork and exec one may look like a copy, or not yet like one. One that stays so is a program of
                # a user's choice, and must hide nothing.
                return None
        # With the same children, too: a session of condor_ssh_to_job may last through a checkpoint.
        if rest is not None and self._acts_for_its_job(self._known[pid].user):
            rest.looks += 1
            if rest.looks == 1:
                # A moment, as at its job's start, is no transfer; the next look is soon.
                return Mover(key, ())
            new = [child for child in children if child not in rest.children and self._is_here(child)]
            return Mover(key, self._below(new), rest.sockets)
        if rest is None or is_due or rest.looks or rest.children != set(children):
            self._rested(pid, children, at)
        if children and not forked:
            # None of them becomes a copy any more.
            self._idle[pid] = children
        return None

    def _rested(self, pid: int, children: tuple[int, ...], at: float) -> None:
        """Keep a starter as it is while it does not move files itself.

        It has connected before it acts as its job's user, so a connection counts as one of its own after a while only;
        those that it has at the beginning are.
        """
        if self._acts_for_its_job(self._user(pid)):
            return
        held, rest = self._own_sockets(pid), self._rests.get(pid)
        if held is None:
            return
        if rest is None:
            self._rests[pid] = _Rest(at, frozenset(held), frozenset(children))
            return
        new = {inode: rest.new.get(inode, at) for inode in held - rest.sockets}
        young = {inode: found for inode, found in new.items() if at - found < REST_SECONDS}
        self._rests[pid] = _Rest(at, frozenset(held - young.keys()), frozenset(children), young)

    def _below(self, roots: list[int]) -> tuple[int, ...]:
        """These processes and those below them, in this service's own network namespace."""
        processes = list(roots)
        for each in processes:
            if len(processes) >= MOST_PROCESSES:
                break
            children = [child for thread in self._threads(each) for child in self._children(each, thread)]
            processes += [child for child in children[:MOST_PROCESSES] if self._is_here(child)]
        return tuple(processes[:MOST_PROCESSES])

    def _acts_for_its_job(self, user: int | None) -> bool:
        """True if a starter with this effective user has the rights of its job's user."""
        return user is not None and user not in self._users

    def _user(self, pid: int) -> int | None:
        """The effective user of a process, which has its folder; None where it has ended."""
        found = self._stat(pid)
        return None if found is None else found.st_uid

    def _stat(self, pid: int) -> os.stat_result | None:
        """The folder of a process; None where it has ended."""
        try:
            # A seventh of the time that its file "status" takes. Unlike the files in it, the folder is never root's
            # for a process that has changed its user.
            return os.stat(str(pid), dir_fd=self._proc)
        except OSError:
            return None

    def _is_copy(self, pid: int) -> bool:
        if self._program(pid) not in self._programs.starters or not self._is_here(pid):
            return False
        return pid in self._copies or self._is_daemon(pid)

    def _is_here(self, pid: int) -> bool:
        """True if a process is in this service's own network namespace."""
        return self._link(f"{pid}/ns/net") == self._own

    def _program(self, pid: int) -> str:
        return self._link(f"{pid}/exe").removesuffix(" (deleted)")

    def _link(self, name: str) -> str:
        """The target of a link in ``/proc``; empty where it cannot be read."""
        try:
            return os.readlink(name, dir_fd=self._proc)
        except OSError:
            return ""

    def _threads(self, pid: int) -> list[int]:
        """The threads of a process, the first one first; a plugin may start programs by any of them."""
        try:
            # A link for each thread beside those that every folder has: most processes need no list.
            if os.stat(f"{pid}/task", dir_fd=self._proc).st_nlink <= _LINKS_OF_ONE:
                return [pid]
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return [pid]
        try:
            with os.scandir(folder) as entries:
                return [int(entry.name) for entry in islice(entries, MOST_THREADS)]
        except OSError:
            return [pid]
        finally:
            os.close(folder)

    def _children(self, pid: int, thread: int | None = None) -> tuple[int, ...]:
        """The children of a process by one of its threads, without one by the first: HTCondor's daemons have no other
        that forks."""
        most = _MOST_BYTES if thread is None else _MOST_OF_OTHERS
        try:
            fd = os.open(f"{pid}/task/{thread or pid}/children", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return ()
        listed = b""
        try:
            # Each read ends with a whole number.
            while len(listed) < most and (part := os.read(fd, _PAGE)):
                listed += part
        except OSError:
            return ()
        finally:
            os.close(fd)
        return tuple(map(int, listed.split()))

    def _own_sockets(self, pid: int) -> set[int] | None:
        """The inodes of all sockets of a process; None where they cannot be read."""
        found, looked = self._sockets(pid, MOST_DESCRIPTORS)
        # The list of a process that is ending is empty.
        return found if 0 < looked < MOST_DESCRIPTORS else None

    def _sockets(self, pid: int, most: int) -> tuple[set[int], int]:
        """The inodes of the sockets among the first ``most`` descriptors of a process, and how many it looked at; 0
        where they cannot be read."""
        found, looked = set[int](), 0
        try:
            folder = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return found, looked
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, most):
                    looked += 1
                    with contextlib.suppress(OSError):
                        target = os.readlink(entry.name, dir_fd=folder)
                        if target.startswith(_SOCKET):
                            found.add(int(target[len(_SOCKET) : -1]))
        except OSError:
            return found, 0
        finally:
            os.close(folder)
        return found, looked
