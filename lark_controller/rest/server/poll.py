"""Waits for waitress's connections, at a cost that grows with those that are busy.

wasyncore looks at every connection in each turn, and a request takes several: with some 250 that were kept open a post
took the thread of the connections 1.6 ms. Here a connection is looked at after something has happened to it, until it
waits for nothing but its next request, or for the thread that answers: posts wait for their switches by the dozen, and
to look at each of them took more than the post that came.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from typing import Any, Final

from waitress import wasyncore

_READ: Final = select.EPOLLIN | select.EPOLLPRI
# Connections that a thread answers are all looked at once in so many seconds, whatever that thread has told.
_SWEEP: Final = 1.0


class Poll:
    """The connections of one thread, and its turns; ``map`` is what waitress enters them in and takes them out of.

    One that has no attribute ``under_way`` (a listener) is looked at in every turn, and so is one that waits for
    anything but bytes to read. One whose ``under_way`` is true is changed by another thread, which calls :meth:`again`.
    """

    def __init__(self) -> None:
        self.map: _Map = _Map(self)
        self._epoll = select.epoll()
        # The events that each descriptor is registered for.
        self._registered: dict[int, int] = {}
        self._looked_at: set[int] = set()
        # Connections that a thread answers, and those of which it has told that they have changed.
        self._under_way: set[int] = set()
        self._changed: deque[int] = deque()
        self._swept = 0.0

    def entered(self, descriptor: int) -> None:
        """Look at a connection from the next turn on."""
        self._looked_at.add(descriptor)

    def left(self, descriptor: int) -> None:
        """Forget a connection, before its descriptor is closed or after."""
        self._looked_at.discard(descriptor)
        self._under_way.discard(descriptor)
        self._register(descriptor, 0)

    def again(self, descriptor: int | None) -> None:
        """Look at a connection (None: one that is closed) in the next turn, for which the caller wakes the thread; to
        be called on any thread, after the change."""
        if descriptor is not None:
            self._changed.append(descriptor)

    def turn(self, timeout: float) -> None:
        """Let the connections read and write what they can; wait for that at most ``timeout`` seconds."""
        while self._changed:
            self._looked_at.add(self._changed.popleft())
        if (now := time.monotonic()) - self._swept >= _SWEEP:
            self._swept = now
            self._looked_at |= self._under_way
            self._under_way.clear()
        for descriptor in list(self._looked_at):
            channel = self.map.get(descriptor)
            if channel is None:
                self._looked_at.discard(descriptor)
                continue
            # Before its state: what is under way changes that, and ends last.
            under_way = getattr(channel, "under_way", None)
            answered = bool(under_way)
            events = _READ if channel.readable() else 0
            if channel.writable() and not channel.accepting:
                events |= select.EPOLLOUT
            self._register(descriptor, events)
            if answered and not events & select.EPOLLOUT:
                self._looked_at.discard(descriptor)
                self._under_way.add(descriptor)
            elif under_way is not None and not answered and events == _READ:
                self._looked_at.discard(descriptor)
        for descriptor, events in self._epoll.poll(timeout):
            # One that was closed meanwhile may have left its descriptor to another, which then finds nothing to read.
            channel = self.map.get(descriptor)
            if channel is not None:
                self._looked_at.add(descriptor)
                wasyncore.readwrite(channel, events)

    def close(self) -> None:
        """Close every connection, and what waits for them."""
        wasyncore.close_all(self.map, ignore_all=True)
        self._epoll.close()

    def _register(self, descriptor: int, events: int) -> None:
        before = self._registered.get(descriptor, 0)
        if events == before:
            return
        if not events:
            del self._registered[descriptor]
            # A descriptor that was closed is not registered any more, and after the end nothing is.
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)
        else:
            self._registered[descriptor] = events
            if before:
                self._epoll.modify(descriptor, events)
            else:
                self._epoll.register(descriptor, events)


class _Map(dict[int, Any]):
    """The connections by descriptor."""

    def __init__(self, poll: Poll) -> None:
        super().__init__()
        self._poll = poll

    def __setitem__(self, descriptor: int, channel: Any) -> None:
        super().__setitem__(descriptor, channel)
        self._poll.entered(descriptor)

    def __delitem__(self, descriptor: int) -> None:
        super().__delitem__(descriptor)
        self._poll.left(descriptor)
