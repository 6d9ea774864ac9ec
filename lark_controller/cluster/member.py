"""One instance among those on a database: it stands by, takes over, and ends once another has taken over from it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from threading import Event, Lock
from typing import Final

from lark_common.errors import NotFoundError, StandbyError, StateError, StoreError
from lark_common.log import ERROR, WARNING, event, failure
from lark_common.threads import StoppableThread
from lark_controller.api.instances import (
    ACTIVE,
    LOST,
    STANDBY,
    STARTING,
    STOPPED,
    WORDS,
    Expected,
    Identity,
    Instance,
    Instances,
    Look,
    Standing,
    Term,
    Why,
)
from lark_controller.cluster.reach import SETTLED_SECONDS, Loss, Reach, asked_for, followed
from lark_controller.cluster.silence import Peer, interrupted, judged
from lark_controller.cluster.takeover import Watch, reason, watched
from lark_controller.store import Store
from lark_controller.store.membership import OLDER_RUNS

# Seconds between two readings of the term: of one that stands by, and of the active one.
STANDBY_SECONDS: Final = 0.5
# A session that was ended is to be replaced long before others take that for the end of this process, on a machine that
# has much else to do, too: they wait for 1.5 s (ENDED_SECONDS in takeover.py).
ACTIVE_SECONDS: Final = 0.5
# After a reading that failed, the next is at once; after more of them, the active one looks so often.
AGAIN_SECONDS: Final = 0.2
# And the least between any two: a lying switch, or its database, could otherwise have the term read all the time.
LEAST_SECONDS: Final = 0.05

# Seconds between two readings of all instances, which are shown while the database does not answer.
KNOWN_SECONDS: Final = 10.0

DRAIN: Final = "drain"
HAND_OVER: Final = "hand over"
_SUBJECT: Final = "controller"


class Member:
    """An instance, from :meth:`join` to :meth:`leave`.

    ``tokens`` is the digest of the tokens in this instance's own file, which others get to compare; ``counters`` the
    number of switches whose counters it has read in the last minute while it stood by, ``kept`` of those that are
    connected to it then, ``reached`` of those of some switches that are, ``copied`` when its copy of the directory was
    as the database had it, if it has one.
    ``won`` is called with the term when this instance has taken over, ``lost`` once with a sentence when another has
    taken over from it, ``drained`` when it is to let go, by an operator or since another has the switches, ``moved``
    when the term is another's than before: each on any thread, and none may wait.
    """

    def __init__(
        self,
        store: Store,
        me: Identity,
        *,
        won: Callable[[Term], None],
        lost: Callable[[str], None],
        drained: Callable[[], None],
        moved: Callable[[], None] = lambda: None,
        tokens: Callable[[], str] = str,
        counters: Callable[[], int] = int,
        kept: Callable[[], int] = int,
        reached: Callable[[Iterable[int]], int] = lambda _switches: 0,
        copied: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.me = me
        self._store = store
        self._place = store.instances
        self._won, self._lost, self._drained, self._moved = won, lost, drained, moved
        self._clock = clock
        self._tokens = tokens
        self._counters, self._kept, self._reached, self._copied = counters, kept, reached, copied
        self._expected: Callable[[], Expected | None] = lambda: None
        self._loss: Loss | None = None
        # The switches that the others are asked for, as it was written last; and the time until which none of it is.
        self._asked: tuple[int, ...] = ()
        self._settled_at = 0.0
        self._watch: Watch | None = None
        self._term: Term | None = None
        self._serves = False
        self._prepared = False
        self._trouble = ""
        self._look = Look(0)
        # All instances as they were read last: replaced as a whole, since any thread reads it.
        self._peers: Mapping[str, Peer] = {}
        # All instances as they were listed last, and when: replaced as a whole, too.
        self._listed: tuple[Instances, float] | None = None
        self._key = ""
        self._knows = store.newest_schema()
        self._lock = Lock()
        self._fenced = ""
        self._wake = Event()
        self._thread = StoppableThread("lark-instance", self._run, wake=self._wake.set)
        # Until this instance has the term, nothing may be written.
        store.guard(0, self.fence)

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from :meth:`join` to :meth:`leave`."""
        return (self._thread,)

    def join(self) -> None:
        """Look at the term once, and take over if nobody has it; then go on with it on a thread. Raises StoreError."""
        self._turn()
        self._thread.start()

    def serves(self, expected: Callable[[], Expected | None] = lambda: None) -> None:
        """Note that this instance has loaded all, and serves. ``expected`` returns the switches that are to connect,
        where they are known; it may not wait."""
        self._expected = expected
        self._serves = True
        self._wake.set()

    def share_key(self) -> None:
        """Give the term of this instance a key, which others need to hand requests on to it. Raises StoreError."""
        term = self._term
        if term is not None:
            key = secrets.token_hex(32)
            self._place.share_key(term.generation, key)
            self._key = key

    def look_now(self) -> None:
        """Look at the term at once: a sign that another instance has taken over."""
        self._wake.set()

    def release(self, why: Why) -> None:
        """Write nothing any more, and let the term go so that another takes over at once, as far as the database is
        there."""
        self._thread.stop(patience=10.0)
        self._store.guard(0, self.fence)
        term, self._term, self._serves = self._term, None, False
        if term is None or self._fenced:
            return
        try:
            if self._place.release(self.me, term.generation, why):
                event("the term is let go", generation=term.generation, why=str(why))
        except StoreError as error:
            event("the term cannot be let go; others will notice", level=WARNING, error=error)

    def leave(self) -> None:
        """Say that this instance has stopped, as far as the database is there."""
        self._thread.stop(patience=10.0)
        try:
            if self._prepared:
                self._place.leave(self.me)
        except StoreError as error:
            event("the end of this instance is not written", level=WARNING, error=error)

    def fence(self, sentence: str) -> None:
        """Another instance has taken over: this one is at its end. Only the first call counts."""
        with self._lock:
            if self._fenced:
                return
            self._fenced = sentence
        self._store.guard(0, self.fence)
        self._serves = False
        self._lost(sentence)

    # -- for REST ------------------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """The place of this instance in the term; asks no database."""
        term, look = self._term, self._look
        if term is not None and not self._fenced:
            sentence = "" if self._serves else "takes over, and loads the directory"
            key = self._key if self._serves else ""
            return Standing(self._serves, term.generation, term.since, self.me.name, self.me.url, sentence, key)
        if self._trouble or look.tables > self._knows:
            sentence = f"stands by; {self._trouble or self._behind(look)}"
        elif look.holder:
            sentence = f"stands by; {look.name or 'another controller'} at {look.url or 'an unknown address'} is active"
        elif self._watch is None:
            sentence = "stands by; it has not read yet whether a controller is active"
        else:
            sentence = "stands by; no controller is active"
        # A copied configuration may have this one's own URL.
        key = look.key if look.url and look.url != self.me.url else ""
        successor = look.generation > 0 and look.tables <= self._knows
        return Standing(False, look.generation, look.since, look.name, look.url, sentence, key, successor)

    def all(self) -> Instances:
        """All instances, as they were read last where the database does not answer. Raises StoreError where they have
        not been."""
        try:
            return self._read()
        except StoreError:
            if self._listed is None:
                raise
            found, at = self._listed
            age = self._clock() - at
            known = tuple(replace(each, beat_age=each.beat_age + age) for each in found.instances)
            return replace(found, instances=known, age=age)

    def _read(self) -> Instances:
        at = self._clock()
        found = self._place.all()
        found = replace(found, instances=tuple(self._judged(each, found.active) for each in found.instances))
        self._listed = found, at
        return found

    def _judged(self, instance: Instance, active: str | None) -> Instance:
        # An active one whose place another has taken has not found that yet, or is gone.
        replaced = instance.state in (ACTIVE, STARTING) and active not in (None, instance.id)
        if instance.state == STOPPED or not (replaced or self._is_lost(instance.id)):
            return instance
        return replace(instance, state=LOST, copy_age=None, counters_read=None, kept=None)

    def _is_lost(self, instance: str) -> bool:
        peer = self._peers.get(instance)
        return peer is not None and peer.is_lost

    def drain(self, instance: str, actor: str) -> Instances:
        """Have this instance let go, if it is the one that is meant and another stands by. Raises NotFoundError,
        StateError, StoreError."""
        found = self._read()
        meant = [each for each in found.instances if instance in (each.id, each.name)]
        if not meant:
            names = ", ".join(sorted({each.name for each in found.instances}))
            raise NotFoundError(f"No instance has the name or id {instance}; there are: {names}.")
        if all(each.id != found.active for each in meant):
            raise StateError(f"{instance} is not the active instance: it has nothing to let go.")
        if found.active != self.me.id:
            url = next(each.url for each in meant if each.id == found.active)
            raise StandbyError(f"{instance} is to be asked itself, at {url}.", url)
        waiting = [each for each in found.instances if each.state == STANDBY]
        if not waiting:
            raise StateError(f"No other instance stands by that could take over from {instance}.")
        if not any(each.successor for each in waiting):
            older = ", ".join(f"{each.name} ({each.version})" for each in waiting)
            raise StateError(
                f"{instance} has release {self.me.version}; of those that stand by, {older}, none has said that it "
                "knows its tables: upgrade one of them."
            )
        self._store.trail.record(time.time(), actor, DRAIN, _SUBJECT, f"instance {self.me.name}")
        self._drained()
        return found

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._fenced and not self._thread.pause(LEAST_SECONDS):
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._thread.stopping:
                return
            try:
                self._turn()
            except StoreError as error:
                self._failed(str(error))
            except Exception as error:
                # An unexpected error must not stop this thread: no other would take over.
                self._interrupted()
                failure("the term could not be looked at", error)

    def _pause(self) -> float:
        if self._term is None:
            return STANDBY_SECONDS
        return AGAIN_SECONDS if self._trouble else ACTIVE_SECONDS

    def _interrupted(self) -> None:
        self._watch = None
        self._peers = interrupted(self._peers)

    def _failed(self, trouble: str) -> None:
        self._interrupted()
        if trouble != self._trouble:
            event("the term cannot be looked at", level=ERROR, error=trouble)
        if not self._trouble:
            self._wake.set()
        self._trouble = trouble

    def _turn(self) -> None:
        if not self._prepared:
            trouble = self._place.prepare()
            if trouble:
                if trouble == OLDER_RUNS != self._trouble:
                    event(trouble, level=WARNING, hint="this one takes over when that one is stopped")
                self._trouble = trouble
                return
            self._prepared = True
            self._place.register(self.me)
        if self._term is not None:
            self._keep(self._term)
        else:
            self._stand_by()
        self._trouble = ""
        if self._listed is None or self._clock() - self._listed[1] > KNOWN_SECONDS:
            self._read()

    def _keep(self, term: Term) -> None:
        self._place.hold(term.generation)
        began = self._clock()
        look = self._meet(ACTIVE if self._serves else STARTING, away=self._asked)
        self._follow(look, began)
        if (look.generation, look.holder) != (term.generation, self.me.id) and not self._thread.stopping:
            name = look.name or "another controller"
            self.fence(f"{name} has taken over with generation {look.generation}")
        elif self._serves and not look.alone:
            self._look_at_switches()

    def _look_at_switches(self) -> None:
        """Let go where most switches are away from here, and connected to one that stands by."""
        counted, asked, now = self._expected(), self._asked, self._clock()
        self._asked = () if counted is None or now < self._settled_at else asked_for(counted.away)
        if counted is None or not (self._asked and asked):
            self._loss = None
            return
        living = (each for each in self._place.reached() if not self._is_lost(each.instance))
        most = max(living, key=attrgetter("number"), default=None)
        found = Reach(counted.total, counted.connected, len(asked), 0 if most is None else most.number)
        self._loss = followed(self._loss, found, now)
        if most is None or self._loss is None or not self._loss.is_over:
            return
        words = (
            f"{counted.connected} of {counted.total} switches are connected here, {found.there} others to {most.name}"
        )
        self._store.trail.record(time.time(), self.me.name, HAND_OVER, _SUBJECT, words)
        event("hands over", level=WARNING, reason=words)
        self._expected, self._asked = lambda: None, ()
        self._drained()

    def _follow(self, look: Look, began: float) -> float:
        """Take the signs of life of all in; the time now."""
        now = self._clock()
        self._peers = judged(self._peers, look.signs, now, now - began)
        return now

    def _stand_by(self) -> None:
        counters, kept, reached = self._counters(), self._kept(), self._reached(self._look.away)
        began = self._clock()
        look = self._meet(STANDBY, counters, kept, reached=reached, copied_at=self._copied())
        now = self._follow(look, began)
        before = self._look if self._watch is not None else None
        if (look.generation, look.holder) != (self._look.generation, self._look.holder):
            self._moved()
        self._look = look
        if look.holder == self.me.id:
            # It took over, and the database's answer was lost.
            self._place.hold(look.generation)
            self._win(Term(look.generation, look.since, Why(look.why)))
            return
        if look.tables > max(self._knows, before.tables if before is not None else ""):
            event("cannot take over", level=WARNING, reason=self._behind(look))
        self._watch = watched(self._watch, look, now, now - began)
        why = None if look.tables > self._knows else reason(self._watch, self.me)
        if why is None:
            if before is None or before.holder != look.holder:
                event("stands by", active=look.name, url=look.url, generation=look.generation)
            return
        self._place.check_schema()
        generation = self._place.take(self.me, look.generation, why)
        if generation is not None:
            # A sign of life was given with it, and another one would be one more commit to wait for.
            since = self._place.all().since or 0.0
            self._look = Look(generation, self.me.id, self.me.name, self.me.url, why=str(why), since=since)
            silence = next((each.age for each in look.signs if each.instance == look.holder), None)
            self._win(Term(generation, since, why, look.name, silence))

    def _meet(
        self,
        state: str,
        counters: int = 0,
        kept: int = 0,
        *,
        away: Iterable[int] = (),
        reached: int = 0,
        copied_at: float | None = None,
    ) -> Look:
        return self._place.meet(
            self.me, state, self._tokens(), counters, kept,
            knows=self._knows, away=away, reached=reached, copied_at=copied_at,
        )  # fmt: skip

    def _behind(self, look: Look) -> str:
        """The sentence of an instance that does not know the tables."""
        active = f"{look.name} at {look.url} is active, and this" if look.name else "no controller is active, and this"
        return f"{active} one cannot take over: the tables ({look.tables}) are of a newer Lark; install it here"

    def _win(self, term: Term) -> None:
        self._watch = None
        self._moved()
        self._store.guard(term.generation, self.fence)
        self._term = term
        if term.why is Why.DRAINED:
            self._settled_at = self._clock() + SETTLED_SECONDS
        event("took over", generation=term.generation, why=WORDS[term.why], before=term.before or None)
        self._won(term)
