"""The values that the views of one application share: the controller, the settings, tokens, metrics and limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, cast

from flask import current_app, g, request

from lark_common.errors import BusyError
from lark_common.limits import Buckets, Places
from lark_controller.api.controls import Controls
from lark_controller.api.metrics import Metrics
from lark_controller.rest.forwarding.active import ActiveController
from lark_controller.rest.identities.identities import Identities
from lark_controller.rest.identities.munge import MungeUsers
from lark_controller.rest.joins.joining import Joining
from lark_controller.rest.tokens import Token, Tokens
from lark_controller.settings import Settings

KEY: Final = "lark"
# Notes of one worker's hooks that are written into the audit trail: at once, and a second afterwards.
NOTES: Final = 60
NOTES_A_SECOND: Final = 1.0
# All users who see their own jobs alone have so small a part of the places where changes of links and paths are waited
# for: workers wait there for their jobs.
WATCHING_USERS: Final = 4


@dataclass(frozen=True, slots=True)
class Context:
    """``joining`` is what workers join by, None where none may. ``waits`` are the places for requests that wait for
    switches, ``polls`` those for workers that wait for their rules, ``requests`` those for requests at all. Of the
    waiting ones readers have a part, by token: ``asks`` and ``watches``; ``users`` is the part of all
    those who see their own jobs alone, ``changes`` that of all who wait for changes of links and paths. ``notes`` are
    what hooks may have written into the audit trail. ``active`` leads to the active controller while this one stands
    by; ``forwards`` are the places for requests that are handed on to it."""

    controls: Controls
    settings: Settings
    tokens: Tokens
    identities: Identities | None
    munge: MungeUsers | None
    joining: Joining | None
    metrics: Metrics
    rates: Buckets
    failures: Buckets
    notes: Buckets
    waits: Places
    polls: Places
    asks: Places
    users: Places
    reserves: Places
    watches: Places
    changes: Places
    requests: Places
    active: ActiveController | None = None
    forwards: Places = field(default_factory=lambda: Places(0))

    @contextmanager
    def waiting(self) -> Iterator[float]:
        """Hold a waiting place while asking switches; yields how many seconds that may take. Raises BusyError.

        Of those that read, one token has a part of the places. One token may be that of all hooks.
        """
        with self._part(), self.waits.place() as free:
            if not free:
                raise BusyError(f"{self.settings.waiting_posts} requests wait for switches already; ask again")
            yield self.settings.switch_timeout

    @contextmanager
    def _part(self) -> Iterator[None]:
        if g.lark_by_hook:
            yield
            return
        with self.asks.place(actor()) as own, self._of_users() as free:
            if not free:
                raise BusyError("requests of users wait for switches in all places that they have; ask again")
            if not own:
                raise BusyError(
                    f"the token {actor()} waits for switches in {self.asks.most} requests already; ask again"
                )
            yield

    @contextmanager
    def _of_users(self) -> Iterator[bool]:
        """Hold one of the places that all users with the scope ``self`` have together; False where none is free."""
        if g.lark_user is None:
            yield True
            return
        with self.users.place() as free:
            yield free

    @contextmanager
    def polling(self) -> Iterator[bool]:
        """Hold a place while waiting for another revision of a worker's rules; False where none is free."""
        if g.lark_by_hook:
            with self.polls.place() as free:
                yield free
            return
        with self.watches.place(actor()) as own, self.polls.place() as free:
            yield own and free

    @contextmanager
    def watching(self, wait: float) -> Iterator[float]:
        """Hold a place while waiting for a change of links or paths; yields for how many seconds: 0 where no place is
        free. Workers that wait for their rules have most places for themselves."""
        if wait <= 0:
            yield 0.0
            return
        with self._of_watching_users() as own, self.changes.place() as part, self.polling() as free:
            yield wait if own and part and free else 0.0

    @contextmanager
    def _of_watching_users(self) -> Iterator[bool]:
        """Hold one of the places that all users with the scope ``self`` have there; False where none is free."""
        if g.lark_user is None:
            yield True
            return
        with self.changes.place("users", max(1, self.changes.most // WATCHING_USERS)) as free:
            yield free

    def noting(self) -> float:
        """Take a note for the audit trail; 0 where one is left, else the seconds until there is. Each address has its
        own: a token may be that of all workers."""
        return self.notes.take((actor(), request.remote_addr))


def current() -> Context:
    """The context of the application that answers this request."""
    # Without a proxy, which takes three calls for each of its attributes.
    app = current_app._get_current_object()  # type: ignore[attr-defined]  # of the proxy, and Flask's to be called
    return cast("Context", app.extensions[KEY])


def actor() -> str:
    """The name of the token that the request carries, as the audit trail keeps it."""
    return cast("Token", g.lark_token).name
